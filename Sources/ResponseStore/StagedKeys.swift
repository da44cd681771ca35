import Glibc
import Synchronization

/// How many responses are staged for a key, told by its digest, or for others that share its place: what lets a lookup pass the staging area
/// without its lock while others store.
///
/// 64 Ki counts, so that among as many staged responses as the queue holds most places are 0. `@unchecked Sendable`: the
/// pointer is constant, and what it leads to is atomic.
final class StagedKeys: @unchecked Sendable {
  private static let placeCount = 1 << 16
  private let places: UnsafeMutablePointer<Atomic<UInt32>>
  /// How many are staged in all.
  private let total = Atomic<Int>(0)
  /// 1 while something is staged. Apart from ``total``, which changes with each store: whoever reads that line beside a writer
  /// waits for it to come over from the writer's processor.
  private let isInUse: UnsafeMutablePointer<Atomic<UInt32>>

  init() {
    // calloc maps zero pages that cost memory only once they are written; all zeros is `Atomic(0)`.
    let spare = 256 / MemoryLayout<Atomic<UInt32>>.stride
    let memory = calloc(Self.placeCount + 2 * spare, MemoryLayout<Atomic<UInt32>>.stride)
    guard let memory else { fatalError("No memory for the counts of staged responses") }
    places = memory.bindMemory(to: Atomic<UInt32>.self, capacity: Self.placeCount + 2 * spare)
    isInUse = places + Self.placeCount + spare
  }

  deinit {
    free(places)
  }

  var isEmpty: Bool { isInUse.pointee.load(ordering: .acquiring) == 0 }

  /// False if nothing is staged for a key with this digest.
  func mayContain(_ digest: UInt64) -> Bool {
    places[place(of: digest)].load(ordering: .acquiring) != 0
  }

  /// With the staging area's lock, as is ``remove(_:)``.
  func add(_ digest: UInt64) {
    places[place(of: digest)].add(1, ordering: .releasing)
    if total.add(1, ordering: .relaxed).oldValue == 0 { isInUse.pointee.store(1, ordering: .releasing) }
  }

  func remove(_ digest: UInt64) {
    places[place(of: digest)].subtract(1, ordering: .releasing)
    if total.subtract(1, ordering: .relaxed).newValue == 0 { isInUse.pointee.store(0, ordering: .releasing) }
  }

  private func place(of digest: UInt64) -> Int {
    Int(digest >> 48)
  }
}
