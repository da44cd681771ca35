import Glibc
import Synchronization

/// A counting Bloom filter of the keys with pending writes. A lookup passes without a lock if its key has none.
///
/// 4,096 lines of memory with 64 counts each. A key has two counts in one line, so that a lookup during a write waits
/// for one cache line at most. With 10,000 pending keys, 1% of the others seem to be pending, too. A count that has
/// reached 255 stays until nothing is pending.
///
/// `@unchecked Sendable`: the pointers are constant, and their memory is atomic or changed with the lock of the pending
/// writes.
final class PendingWriteFilter: @unchecked Sendable {
  private static let lineCount = 4096
  private static let lineByteCount = 64
  private static let largestCount = UInt8.max

  private let memory: UnsafeMutableRawPointer
  private let counts: UnsafeMutablePointer<Atomic<UInt8>>
  /// 1 while a write is pending. On another line than ``total``, which changes with each write and so travels between
  /// the processors' caches.
  private let isInUse: UnsafeMutablePointer<Atomic<UInt32>>
  /// The number of pending writes, and whether a count is at its maximum.
  private let total = Atomic<Int>(0)
  private let isSaturated = Atomic<Bool>(false)

  init() {
    // calloc maps zero pages that cost memory only once they are written; all zeros is `Atomic(0)`.
    let byteCount = (Self.lineCount + 5) * Self.lineByteCount
    guard let memory = calloc(1, byteCount) else { fatalError("No memory for the counts of staged responses") }
    self.memory = memory
    let aligned = memory.alignedUp(toMultipleOf: Self.lineByteCount)
    counts = aligned.bindMemory(to: Atomic<UInt8>.self, capacity: Self.lineCount * Self.lineByteCount)
    isInUse = (aligned + (Self.lineCount + 2) * Self.lineByteCount).bindMemory(to: Atomic<UInt32>.self, capacity: 1)
  }

  deinit {
    free(memory)
  }

  var isEmpty: Bool { isInUse.pointee.load(ordering: .acquiring) == 0 }

  /// Whether a key with this digest may have a pending write.
  func mightContain(_ digest: UInt64) -> Bool {
    let (one, other) = places(of: digest)
    return counts[one].load(ordering: .acquiring) != 0 && counts[other].load(ordering: .acquiring) != 0
  }

  /// Call this with the lock of the filter, and also ``remove(_:)``.
  func add(_ digest: UInt64) {
    let (one, other) = places(of: digest)
    increase(one)
    increase(other)
    if total.add(1, ordering: .relaxed).oldValue == 0 { isInUse.pointee.store(1, ordering: .releasing) }
  }

  func remove(_ digest: UInt64) {
    let (one, other) = places(of: digest)
    decrease(one)
    decrease(other)
    guard total.subtract(1, ordering: .relaxed).newValue == 0 else { return }
    isInUse.pointee.store(0, ordering: .releasing)
    guard isSaturated.load(ordering: .relaxed) else { return }
    for place in 0..<(Self.lineCount * Self.lineByteCount) { counts[place].store(0, ordering: .releasing) }
    isSaturated.store(false, ordering: .relaxed)
  }

  private func increase(_ place: Int) {
    let count = counts[place].load(ordering: .relaxed)
    guard count < Self.largestCount else { return }
    counts[place].store(count + 1, ordering: .releasing)
    if count + 1 == Self.largestCount { isSaturated.store(true, ordering: .relaxed) }
  }

  private func decrease(_ place: Int) {
    let count = counts[place].load(ordering: .relaxed)
    if count < Self.largestCount { counts[place].store(count - 1, ordering: .releasing) }
  }

  private func places(of digest: UInt64) -> (Int, Int) {
    let line = Int(digest >> 52) * Self.lineByteCount
    return (line + Int(digest >> 46 & 63), line + Int(digest >> 40 & 63))
  }
}
