import Glibc
import Synchronization

/// How many responses are staged for a key, or for others that share its place: what lets a lookup pass the staging area
/// without its lock while others store.
///
/// 64 Ki counts, so that among as many staged responses as the queue holds most places are 0. `@unchecked Sendable`: the
/// pointer is constant, and what it leads to is atomic.
final class StagedKeys: @unchecked Sendable {
  private static let placeCount = 1 << 16
  private let places: UnsafeMutablePointer<Atomic<UInt32>>
  /// Of all places: a lookup while nothing is staged need not look for the key's.
  private let total = Atomic<Int>(0)

  init() {
    // calloc maps zero pages that cost memory only once they are written; all zeros is `Atomic(0)`.
    let memory = calloc(Self.placeCount, MemoryLayout<Atomic<UInt32>>.stride)
    guard let memory else { fatalError("No memory for the counts of staged responses") }
    places = memory.bindMemory(to: Atomic<UInt32>.self, capacity: Self.placeCount)
  }

  deinit {
    free(places)
  }

  var isEmpty: Bool { total.load(ordering: .acquiring) == 0 }

  /// False if nothing is staged for the key.
  func mayContain(_ key: RequestKey) -> Bool {
    !isEmpty && places[place(of: key)].load(ordering: .acquiring) != 0
  }

  func add(_ key: RequestKey) {
    places[place(of: key)].add(1, ordering: .releasing)
    total.add(1, ordering: .releasing)
  }

  func remove(_ key: RequestKey) {
    places[place(of: key)].subtract(1, ordering: .releasing)
    total.subtract(1, ordering: .releasing)
  }

  private func place(of key: RequestKey) -> Int {
    Int(key.spreadingDigest >> 48)
  }
}
