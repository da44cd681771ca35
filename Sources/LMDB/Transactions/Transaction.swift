internal import CLMDB

/// A read or write transaction: a consistent view of all tables.
///
/// Transactions exist only within the closures of ``LMDBEnvironment/read(_:)`` and
/// ``LMDBEnvironment/write(_:committed:)``. Only two types of this module conform.
public protocol Transaction: ~Copyable {
  /// The number of the snapshot. `mdb_txn_id`.
  ///
  /// For a read transaction, the number of the last commit. For a write transaction, the number that its commit will
  /// have.
  var id: UInt64 { get }

  /// The handle for tables and cursors.
  var handle: TransactionHandle { get }
}

/// The part of a transaction that tables and cursors use; opaque to other code.
public struct TransactionHandle {
  @usableFromInline let pointer: OpaquePointer
  /// The serial number of the environment.
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

/// A read-only snapshot. It is neither sendable nor copyable, so it cannot outlive its closure.
public struct ReadTransaction: ~Copyable, Transaction {
  /// The handle for tables and cursors.
  public let handle: TransactionHandle

  @usableFromInline
  init(handle: TransactionHandle) {
    self.handle = handle
  }

  /// The number of the commit that the snapshot shows. `mdb_txn_id`.
  public var id: UInt64 { handle.id }
}

/// The only transaction that can write. It belongs to its thread, and exists only within its closure.
public struct WriteTransaction: ~Copyable, Transaction {
  /// The handle for tables and cursors.
  public let handle: TransactionHandle

  @usableFromInline
  init(handle: TransactionHandle) {
    self.handle = handle
  }

  /// The number that its commit will have. `mdb_txn_id`.
  public var id: UInt64 { handle.id }

  /// The state that protects borrowed bytes.
  @usableFromInline var state: UnsafeMutablePointer<WriteState> { handle.writeState.unsafelyUnwrapped }
}

/// The state that protects borrowed bytes in a write transaction, because LMDB moves pages when it writes.
@usableFromInline
struct WriteState {
  /// The number of closures that borrow stored bytes now.
  @usableFromInline var borrowCount = 0
  /// The number of changes, which tells a cursor that its bytes may have moved.
  @usableFromInline var changeCount: UInt = 0
  /// The cached cursors by table handle. Tables with higher handles have none.
  var cachedWriteCursors = InlineArray<16, CachedWriteCursor>(repeating: CachedWriteCursor())

  @usableFromInline init() {}
}
