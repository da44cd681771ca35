import Glibc
import Synchronization

/// The records whose checksums this process has verified.
///
/// A table of 2²⁰ cells, which the row ID selects. A cell contains the checksum of the record header that was verified.
/// Records that share a cell overwrite each other and are then verified again. A stale cell does no harm, because a
/// changed header has another checksum. Lock-free.
///
/// `@unchecked Sendable`: the memory is allocated once and freed with the object, and every access is atomic.
final class VerifiedChecksums: @unchecked Sendable {
  private static let cellCount = 1 << 20
  private let cells: UnsafeMutablePointer<Atomic<UInt64>>

  init() {
    // Pages from calloc take memory only after they are written. Their zeros are the value of `Atomic(0)`.
    let memory = calloc(Self.cellCount, MemoryLayout<Atomic<UInt64>>.stride)
    guard let memory else { fatalError("No memory for the table of verified checksums") }
    cells = memory.bindMemory(to: Atomic<UInt64>.self, capacity: Self.cellCount)
  }

  deinit {
    free(cells)
  }

  func contains(rowID: UInt64, checksum: UInt64) -> Bool {
    cells[cell(of: rowID)].load(ordering: .relaxed) == content(checksum)
  }

  func insert(rowID: UInt64, checksum: UInt64) {
    cells[cell(of: rowID)].store(content(checksum), ordering: .relaxed)
  }

  private func cell(of rowID: UInt64) -> Int {
    Int(truncatingIfNeeded: rowID & UInt64(Self.cellCount - 1))
  }

  /// Returns the content of a cell for a checksum. An empty cell is 0, so a checksum of 0 is stored as 1.
  private func content(_ checksum: UInt64) -> UInt64 {
    checksum == 0 ? 1 : checksum
  }
}
