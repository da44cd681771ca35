import Glibc
import Synchronization

/// A counting Bloom filter of the keys with pending writes. A lookup takes no lock if its key has none.
///
/// It has 4,096 cache lines with 64 counts each. A key has two counts in one line, so that a lookup during a write
/// waits for at most one line. With 10,000 pending keys, 1% of the other keys also seem to be pending. A count that has
/// reached 255 stays until no write is pending.
///
/// `@unchecked Sendable`: the pointers are constant, and their memory is accessed atomically.
final class PendingWriteFilter: @unchecked Sendable {
  private static let lineCount = 4096
  private static let lineByteCount = 64
  private static let maximumCount = UInt8.max

  private let memory: UnsafeMutableRawPointer
  private let counts: UnsafeMutablePointer<Atomic<UInt8>>
  /// 1 while a write is pending. It is not in the cache line of ``total``, which changes with each write.
  private let isInUse: UnsafeMutablePointer<Atomic<UInt32>>
  /// The number of pending writes.
  private let total = Atomic<Int>(0)
  /// Whether a count has reached its maximum.
  private let isSaturated = Atomic<Bool>(false)

  init() {
    // Pages from calloc take memory only after they are written. Their zeros are the value of `Atomic(0)`.
    let byteCount = (Self.lineCount + 5) * Self.lineByteCount
    guard let memory = calloc(1, byteCount) else { fatalError("No memory for the filter of pending writes") }
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
    let (one, other) = countIndices(of: digest)
    return counts[one].load(ordering: .acquiring) != 0 && counts[other].load(ordering: .acquiring) != 0
  }

  /// Adds a key. One thread at a time may call this or ``remove(_:)``.
  func add(_ digest: UInt64) {
    let (one, other) = countIndices(of: digest)
    increase(one)
    increase(other)
    if total.add(1, ordering: .relaxed).oldValue == 0 { isInUse.pointee.store(1, ordering: .releasing) }
  }

  func remove(_ digest: UInt64) {
    let (one, other) = countIndices(of: digest)
    decrease(one)
    decrease(other)
    guard total.subtract(1, ordering: .relaxed).newValue == 0 else { return }
    isInUse.pointee.store(0, ordering: .releasing)
    guard isSaturated.load(ordering: .relaxed) else { return }
    for index in 0..<(Self.lineCount * Self.lineByteCount) { counts[index].store(0, ordering: .releasing) }
    isSaturated.store(false, ordering: .relaxed)
  }

  private func increase(_ index: Int) {
    let count = counts[index].load(ordering: .relaxed)
    guard count < Self.maximumCount else { return }
    counts[index].store(count + 1, ordering: .releasing)
    if count + 1 == Self.maximumCount { isSaturated.store(true, ordering: .relaxed) }
  }

  private func decrease(_ index: Int) {
    let count = counts[index].load(ordering: .relaxed)
    if count < Self.maximumCount { counts[index].store(count - 1, ordering: .releasing) }
  }

  private func countIndices(of digest: UInt64) -> (Int, Int) {
    let line = Int(digest >> 52) * Self.lineByteCount
    return (line + Int(digest >> 46 & 63), line + Int(digest >> 40 & 63))
  }
}
