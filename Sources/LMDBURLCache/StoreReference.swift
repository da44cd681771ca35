import Glibc
import ResponseStore
import Synchronization

/// The store of a cache: read at any rate, and replaced when it was given up.
///
/// A lookup does not count a reference to the store, as all threads would change the same count. It counts itself among
/// the readers instead, on one of several counters. A store that was replaced is released when every reader that may
/// have found it has left.
///
/// `@unchecked Sendable`: the pointer is atomic, and leads to a store in `held`, which keeps it as long as a reader may
/// use it.
struct StoreReference: ~Copyable, @unchecked Sendable {
  private struct Held {
    var current: ResponseStore?
    /// Stores that were replaced, and that readers may still use.
    var replaced: [ResponseStore] = []
  }

  /// How long ``set(_:)`` waits for readers. They only read memory, so one that takes longer has lost its processor,
  /// and the next call releases what it used.
  private static let patience = Duration.milliseconds(200)

  private let pointer = Atomic<UnsafeRawPointer?>(nil)
  private let readers = ReaderCounts()
  private let held = Mutex(Held())

  deinit {
    readers.destroy()
  }

  func load() -> ResponseStore? {
    use { $0 }
  }

  /// Calls `body` with the store, without counting a reference to it. Nil if there is none. `body` must be short and
  /// must not call ``set(_:)``.
  @inline(__always)
  func use<R>(_ body: (ResponseStore) -> R) -> R? {
    let place = readers.enter()
    defer { readers.leave(place) }
    guard let store = pointer.load(ordering: .sequentiallyConsistent) else { return nil }
    return Unmanaged<ResponseStore>.fromOpaque(store)._withUnsafeGuaranteedRef { body($0) }
  }

  /// Puts a store in the place of the one before.
  func set(_ store: ResponseStore) {
    let released = held.withLock { held -> [ResponseStore] in
      guard held.current !== store else { return [] }
      if let current = held.current { held.replaced.append(current) }
      held.current = store
      let new = UnsafeRawPointer(Unmanaged.passUnretained(store).toOpaque())
      pointer.store(new, ordering: .sequentiallyConsistent)
      guard !held.replaced.isEmpty, readers.waitUntilLeft(patience: Self.patience) else { return [] }
      defer { held.replaced = [] }
      return held.replaced
    }
    // Without the lock: the last reference closes what is left of a store.
    withExtendedLifetime(released) {}
  }
}

/// How many readers are within a section, on several counters, so that threads seldom change the same one.
///
/// `@unchecked Sendable`: the pointer is constant, and what it leads to is atomic.
private struct ReaderCounts: @unchecked Sendable {
  private static let stripeBits = 5
  /// A stripe has a counter for each of two turns, alone on its cache lines, as processors fetch them in pairs.
  private static let stripeByteCount = 128

  private let memory: UnsafeMutableRawPointer

  init() {
    let byteCount = (1 << Self.stripeBits) * Self.stripeByteCount + Self.stripeByteCount
    memory = .allocate(byteCount: byteCount, alignment: Self.stripeByteCount)
    memory.initializeMemory(as: UInt8.self, repeating: 0, count: byteCount)
  }

  /// Frees the memory; nobody may enter any more.
  func destroy() {
    memory.deallocate()
  }

  typealias Place = UnsafeMutablePointer<Atomic<Int>>

  /// Which of the two counters of a stripe new readers take.
  private var turn: Place { count(stripe: 1 << Self.stripeBits, turn: 0) }

  private func count(stripe: Int, turn: Int) -> Place {
    (memory + stripe * Self.stripeByteCount + turn * MemoryLayout<Int>.stride).assumingMemoryBound(to: Atomic<Int>.self)
  }

  @inline(__always)
  func enter() -> Place {
    // A thread is known by an address; multiplying spreads what differs over the upper bits.
    let thread = UInt(pthread_self()) &* 0x9E37_79B9_7F4A_7C15
    let place = count(
      stripe: Int(thread >> (64 - UInt(Self.stripeBits))), turn: turn.pointee.load(ordering: .relaxed))
    // Sequentially consistent: either whoever waits sees this reader, or this reader sees what was set before the wait.
    place.pointee.add(1, ordering: .sequentiallyConsistent)
    return place
  }

  @inline(__always)
  func leave(_ place: Place) {
    place.pointee.subtract(1, ordering: .releasing)
  }

  /// Waits until every reader that entered before the call has left; false if that takes too long. One call at a time.
  ///
  /// New readers take the other counters meanwhile, so these come to zero. Both have their turn, since a reader may
  /// have chosen its counter long ago.
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
