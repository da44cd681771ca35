import CacheModel
import Synchronization

/// Blocks of memory for copies of records: up to one free block for each of 16 stripes of threads.
///
/// Above about 1 KB, glibc has no lists for each thread, and `malloc` and `free` would be a large part of a hit.
enum CopyMemory {
  /// The sizes of copies that use a block. glibc takes smaller ones from lists of the thread.
  static let copyByteCounts = 960...blockByteCount
  private static let blockByteCount = 4096

  private struct Slot: ~Copyable {
    let block = Atomic<UnsafeMutableRawPointer?>(nil)
    // Two lines of 64 bytes, because processors fetch them in pairs.
    private let padding = InlineArray<15, Int>(repeating: 0)
  }

  private static let slotCountBits: UInt = 4
  // Unsafe only because it is a pointer: it is constant, and its memory is atomic.
  nonisolated(unsafe) private static let slots = {
    let count = 1 << Int(slotCountBits)
    let slots = UnsafeMutableRawPointer.allocate(byteCount: count * MemoryLayout<Slot>.stride, alignment: 128)
      .bindMemory(to: Slot.self, capacity: count)
    for index in 0..<count { (slots + index).initialize(to: Slot()) }
    return slots
  }()

  /// Returns a block, which the caller gives back.
  static func take() -> UnsafeMutableRawPointer {
    let slot = slots + ThreadStripe.number(bits: slotCountBits)
    return slot.pointee.block.exchange(nil, ordering: .acquiring) ?? .allocate(byteCount: blockByteCount, alignment: 16)
  }

  /// Keeps a block for the next copy of the calling thread, and frees the one kept before.
  static func giveBack(_ block: UnsafeMutableRawPointer) {
    let slot = slots + ThreadStripe.number(bits: slotCountBits)
    slot.pointee.block.exchange(block, ordering: .acquiringAndReleasing)?.deallocate()
  }
}
