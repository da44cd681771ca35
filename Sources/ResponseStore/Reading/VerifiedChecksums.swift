import Glibc
import Synchronization

/// The records whose checksums this process has compared: a slot for each row ID holds the checksum of the header that
/// passed. Records that share a slot displace each other and are compared again. A stale slot does no harm, as a
/// changed header has another checksum.
///
/// 8 bytes per record, touched only for rows that are read. Lock-free. `@unchecked Sendable`: the memory is allocated
/// once and freed with the object, and every access is atomic.
final class VerifiedChecksums: @unchecked Sendable {
  private static let placeCount = 1 << 20
  private let places: UnsafeMutablePointer<Atomic<UInt64>>

  init() {
    // calloc maps zero pages that cost memory only once they are written; all zeros is `Atomic(0)`.
    let memory = calloc(Self.placeCount, MemoryLayout<Atomic<UInt64>>.stride)
    guard let memory else { fatalError("No memory for the table of verified records") }
    places = memory.bindMemory(to: Atomic<UInt64>.self, capacity: Self.placeCount)
  }

  deinit {
    free(places)
  }

  func contains(rowID: UInt64, checksum: UInt64) -> Bool {
    places[place(of: rowID)].load(ordering: .relaxed) == mark(checksum)
  }

  func insert(rowID: UInt64, checksum: UInt64) {
    places[place(of: rowID)].store(mark(checksum), ordering: .relaxed)
  }

  private func place(of rowID: UInt64) -> Int {
    Int(truncatingIfNeeded: rowID & UInt64(Self.placeCount - 1))
  }

  /// An empty place is 0, so no mark is.
  private func mark(_ checksum: UInt64) -> UInt64 {
    checksum == 0 ? 1 : checksum
  }
}
