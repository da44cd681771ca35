internal import Glibc
internal import Synchronization

/// One place of an environment's pool of read transactions, alone on its cache lines.
///
/// Whoever swaps a thread into `owner` has the slot to itself until it stores ``free`` again; only the owner touches
/// `transaction`.
struct ReaderSlot: ~Copyable {
  /// Nobody uses the slot.
  static let free: UInt = 0
  /// Nobody uses the slot, or has since it was marked so.
  static let idle: UInt = 1

  /// The thread that uses the slot, or ``free`` or ``idle``, which are no threads.
  let owner: Atomic<UInt>

  /// A read transaction that is reset while nobody owns the slot; nil while it has none.
  var transaction: OpaquePointer?

  // Two lines of 64 bytes, as processors fetch them in pairs.
  private let padding: InlineArray<14, UInt>

  /// The calling thread, as `owner` has it.
  static var currentThread: UInt {
    UInt(pthread_self())
  }
}

/// Whether read transactions may begin. Resizing the map closes it for a while, and closing the environment for good.
enum Gate {
  static let open: UInt = 0
  /// The map is about to move: wait.
  static let closed: UInt = 1
  /// The map is gone, as it could not be placed again or the environment was closed: nothing works any more.
  static let broken: UInt = 2
}
