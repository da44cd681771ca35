import Glibc
import Synchronization

/// The records whose checksums this process has verified.
///
/// A table of 2²⁰ slots, which the row ID selects. A slot contains the checksum of the record header that was verified.
/// Records that share a slot overwrite each other and are then verified again. A stale slot does no harm, because a
/// changed header has another checksum. Lock-free.
///
/// `@unchecked Sendable`: the memory is allocated once and freed with the object, and every access is atomic.
final class VerifiedChecksums: @unchecked Sendable {
  private static let slotCount = 1 << 20
  private let slots: UnsafeMutablePointer<Atomic<UInt64>>

  init() {
    // Pages from calloc take memory only after they are written. Their zeros are the value of `Atomic(0)`.
    let memory = calloc(Self.slotCount, MemoryLayout<Atomic<UInt64>>.stride)
    guard let memory else { fatalError("No memory for the table of verified checksums") }
    slots = memory.bindMemory(to: Atomic<UInt64>.self, capacity: Self.slotCount)
  }

  deinit {
    free(slots)
  }

  func contains(rowID: UInt64, checksum: UInt64) -> Bool {
    slots[slot(of: rowID)].load(ordering: .relaxed) == content(checksum)
  }

  func insert(rowID: UInt64, checksum: UInt64) {
    slots[slot(of: rowID)].store(content(checksum), ordering: .relaxed)
  }

  private func slot(of rowID: UInt64) -> Int {
    Int(truncatingIfNeeded: rowID & UInt64(Self.slotCount - 1))
  }

  /// Returns the content of a slot for a checksum. An empty slot is 0, so a checksum of 0 is stored as 1.
  private func content(_ checksum: UInt64) -> UInt64 {
    checksum == 0 ? 1 : checksum
  }
}
