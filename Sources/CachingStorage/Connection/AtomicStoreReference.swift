import CacheModel
import Glibc
import ResponseStore
import Synchronization

/// A reference to a cache's store that many threads can read at once. It is replaced after the store has failed.
///
/// A lookup does not retain the store, because all threads would then modify the same reference count. It increments
/// one of several reader counters instead. A replaced store is released when all readers that may have loaded it have
/// left.
///
/// `@unchecked Sendable`: the pointer is atomic. `held` retains the store that it points to as long as a reader may use
/// that store.
package struct AtomicStoreReference: ~Copyable, @unchecked Sendable {
  private struct Held {
    var current: ResponseStore?
    /// Replaced stores that readers may still use.
    var replaced: [ResponseStore] = []
  }

  /// How long ``set(_:)`` waits for readers.
  ///
  /// Readers only read memory, so a reader that takes longer is not running. The next call then releases the replaced
  /// store.
  private static let patience = Duration.milliseconds(200)

  private let pointer = Atomic<UnsafeRawPointer?>(nil)
  private let readers = ReaderCounts()
  private let held = Mutex(Held())

  package init() {}

  deinit {
    readers.destroy()
  }

  package func load() -> ResponseStore? {
    use { $0 }
  }

  /// Calls `body` with the store without retaining it; returns nil if there is no store.
  ///
  /// `body` must be short and must not call ``set(_:)``.
  @inline(__always)
  package func use<R>(_ body: (ResponseStore) -> R) -> R? {
    let place = readers.enter()
    defer { readers.leave(place) }
    guard let store = pointer.load(ordering: .sequentiallyConsistent) else { return nil }
    return Unmanaged<ResponseStore>.fromOpaque(store)._withUnsafeGuaranteedRef { body($0) }
  }

  /// Replaces the store. Nil for none.
  package func set(_ store: ResponseStore?) {
    let released = held.withLock { held -> [ResponseStore] in
      guard held.current !== store else { return [] }
      if let current = held.current { held.replaced.append(current) }
      held.current = store
      let new = store.map { UnsafeRawPointer(Unmanaged.passUnretained($0).toOpaque()) }
      pointer.store(new, ordering: .sequentiallyConsistent)
      guard !held.replaced.isEmpty, readers.waitUntilLeft(patience: Self.patience) else { return [] }
      defer { held.replaced = [] }
      return held.replaced
    }
    // Release outside the lock, because releasing the last reference closes the store.
    withExtendedLifetime(released) {}
  }
}

/// Counters of the readers in a section, striped so that threads rarely modify the same one.
///
/// `@unchecked Sendable`: the pointer is constant and the counters are atomic.
private struct ReaderCounts: @unchecked Sendable {
  private static let stripeBits = 5
  /// The size of a stripe, which holds two counters; see ``turn``.
  ///
  /// A stripe has two cache lines to itself, because processors fetch them in pairs.
  private static let stripeByteCount = 128

  private let memory: UnsafeMutableRawPointer

  init() {
    let byteCount = (1 << Self.stripeBits) * Self.stripeByteCount + Self.stripeByteCount
    memory = .allocate(byteCount: byteCount, alignment: Self.stripeByteCount)
    memory.initializeMemory(as: UInt8.self, repeating: 0, count: byteCount)
  }

  /// Frees the memory. No reader may enter afterwards.
  func destroy() {
    memory.deallocate()
  }

  typealias Place = UnsafeMutablePointer<Atomic<Int>>

  /// Selects which of the two counters of a stripe new readers use.
  private var turn: Place { count(stripe: 1 << Self.stripeBits, turn: 0) }

  private func count(stripe: Int, turn: Int) -> Place {
    (memory + stripe * Self.stripeByteCount + turn * MemoryLayout<Int>.stride).assumingMemoryBound(to: Atomic<Int>.self)
  }

  @inline(__always)
  func enter() -> Place {
    let place = count(
      stripe: ThreadStripe.number(bits: UInt(Self.stripeBits)), turn: turn.pointee.load(ordering: .relaxed))
    // Sequentially consistent: either the waiting thread sees this reader, or this reader sees the new pointer.
    place.pointee.add(1, ordering: .sequentiallyConsistent)
    return place
  }

  @inline(__always)
  func leave(_ place: Place) {
    place.pointee.subtract(1, ordering: .releasing)
  }

  /// Waits until every reader that entered before the call has left; returns false after `patience`.
  ///
  /// Calls must not overlap. New readers use the other counters in the meantime, so that the old ones reach zero. This
  /// is done for both turns, because a reader may have read `turn` long before it increments its counter.
  func waitUntilLeft(patience: Duration) -> Bool {
    let deadline = ContinuousClock.now + patience
    for _ in 0..<2 {
      let old = turn.pointee.load(ordering: .relaxed)
      turn.pointee.store(old ^ 1, ordering: .sequentiallyConsistent)
      for stripe in 0..<(1 << Self.stripeBits) {
        while count(stripe: stripe, turn: old).pointee.load(ordering: .sequentiallyConsistent) != 0 {
          guard ContinuousClock.now < deadline else { return false }
          usleep(50)
        }
      }
    }
    return true
  }
}
