internal import CLMDB

/// A read or a write transaction: a consistent view of all tables.
///
/// Values of it exist only within the closures of ``Environment/read(_:)`` and ``Environment/write(_:)``, and only this
/// module's two types conform.
public protocol Transaction: ~Copyable {
  /// The number of the snapshot: of the last commit for a read transaction, of the coming commit for a write
  /// transaction. `mdb_txn_id`.
  var id: UInt64 { get }

  /// What tables need of it.
  var handle: TransactionHandle { get }
}

/// The part of a transaction that tables and cursors use; opaque to everyone else.
public struct TransactionHandle {
  @usableFromInline let pointer: OpaquePointer
  /// Of the environment.
  @usableFromInline let serial: UInt
  /// Nil for a read transaction.
  @usableFromInline let writeState: UnsafeMutablePointer<WriteState>?

  @usableFromInline
  init(pointer: OpaquePointer, serial: UInt, writeState: UnsafeMutablePointer<WriteState>?) {
    self.pointer = pointer
    self.serial = serial
    self.writeState = writeState
  }

  var id: UInt64 {
    UInt64(mdb_txn_id(pointer))
  }
}

/// A snapshot to read from. Not sendable and not copyable: it cannot outlive its closure.
public struct ReadTransaction: ~Copyable, Transaction {
  /// What tables need of it.
  public let handle: TransactionHandle

  @usableFromInline
  init(handle: TransactionHandle) {
    self.handle = handle
  }

  /// The number of the commit whose state it shows. `mdb_txn_id`.
  public var id: UInt64 { handle.id }
}

/// The one transaction that may write. Bound to its thread, and alive only within its closure.
public struct WriteTransaction: ~Copyable, Transaction {
  /// What tables need of it.
  public let handle: TransactionHandle

  @usableFromInline
  init(handle: TransactionHandle) {
    self.handle = handle
  }

  /// The number that its commit will have. `mdb_txn_id`.
  public var id: UInt64 { handle.id }

  /// The part that knows about borrowed bytes.
  @usableFromInline var state: UnsafeMutablePointer<WriteState> { handle.writeState.unsafelyUnwrapped }
}

/// What a write transaction must know to keep borrowed bytes safe: LMDB moves pages when it writes.
@usableFromInline
struct WriteState {
  /// Closures that look at stored bytes right now.
  @usableFromInline var borrowCount = 0
  /// Counts changes, so that a cursor knows when its own bytes may have moved.
  @usableFromInline var changeCount: UInt = 0
  /// By table handle; tables with higher ones go without.
  var keptPlaces = InlineArray<16, KeptPlace>(repeating: KeptPlace())

  @usableFromInline init() {}
}
