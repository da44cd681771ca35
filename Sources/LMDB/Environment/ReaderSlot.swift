internal import Glibc
internal import Synchronization

/// A slot in an environment's pool of read transactions, on cache lines of its own.
///
/// A thread that swaps itself into `owner` has the slot to itself until it stores ``free`` again. Only the owner
/// accesses `transaction`.
struct ReaderSlot: ~Copyable {
  static let free: UInt = 0
  /// The slot is free, and was not used since it was marked idle.
  static let idle: UInt = 1

  /// The thread that uses the slot, or ``free`` or ``idle``.
  let owner: Atomic<UInt>

  /// A read transaction, which is reset while the slot is free; nil if the slot has none.
  var transaction: OpaquePointer?

  // Pads the slot to two cache lines of 64 bytes, because processors fetch them in pairs.
  private let padding: InlineArray<14, UInt>

  /// The calling thread, as stored in `owner`.
  static var currentThread: UInt {
    UInt(pthread_self())
  }
}

/// Whether read transactions may begin.
///
/// Resizing the map closes the gate temporarily; closing the environment, permanently.
enum TransactionGate {
  static let open: UInt = 0
  /// The map is about to move: wait.
  static let closed: UInt = 1
  /// The environment was closed, or the map could not be mapped again: all calls fail.
  static let broken: UInt = 2
}
