import Synchronization

/// Use counts of evicted records, for the time when they are stored again: ghost entries, as in ARC and S3-FIFO.
///
/// A ghost entry is one word in the memory of this process, and a newer one takes the place of an older one. So the table has a
/// fixed size, and a use count may be lost. From any thread.
final class GhostTable: Sendable {
  private let words: Mutex<[UInt32]>
  private let placeMask: UInt64

  private static let useCountBits: UInt64 = 4

  /// - Parameter slotCount: Of the index. The table remembers about as many records as that holds; more would have records of
  ///   long ago drive out others.
  init(slotCount: Int) {
    let count = max(slotCount / 2, 64)
    let powerOfTwo = 1 << (Int.bitWidth - 1 - count.leadingZeroBitCount)
    words = Mutex([UInt32](repeating: 0, count: powerOfTwo))
    placeMask = UInt64(powerOfTwo - 1)
  }

  /// Keeps the use count of an evicted record.
  func remember(_ entry: IndexEntry) {
    let word = UInt32(truncatingIfNeeded: check(entry.tag) << Self.useCountBits | entry.useCount)
    words.withLock { words in words[place(entry.tag)] = word }
  }

  /// Takes the use count of an evicted record; 0 if it is not known.
  func takeUseCount(digest: UInt64) -> UInt64 {
    let tag = IndexEntry.tag(of: digest)
    return words.withLock { words in
      let word = UInt64(words[place(tag)])
      guard word != 0, word >> Self.useCountBits == check(tag) else { return 0 }
      words[place(tag)] = 0
      return word & (1 << Self.useCountBits - 1)
    }
  }

  private func place(_ tag: UInt64) -> Int { Int(tag & placeMask) }

  /// The upper 28 of a tag's 40 bits.
  private func check(_ tag: UInt64) -> UInt64 { tag >> 12 }
}
