import Synchronization

/// Ghost entries, as in ARC and S3-FIFO: use counts of evicted records, for when they are stored again.
///
/// A ghost entry is one word. A newer entry with the same place replaces an older one, so the table has a fixed size
/// and a use count can be lost. Thread-safe.
final class GhostTable: Sendable {
  private let words: Mutex<[UInt32]>
  private let placeMask: UInt64

  private static let useCountBits: UInt64 = 4

  /// - Parameter cellCount: The cells of the index. The table has about as many places as the index has records. With
  ///   more, records of long ago would displace others.
  init(cellCount: Int) {
    let count = max(cellCount / 2, 64)
    let powerOfTwo = 1 << (Int.bitWidth - 1 - count.leadingZeroBitCount)
    words = Mutex([UInt32](repeating: 0, count: powerOfTwo))
    placeMask = UInt64(powerOfTwo - 1)
  }

  /// Adds the use count of an evicted record.
  func remember(_ entry: IndexEntry) {
    let word = UInt32(truncatingIfNeeded: check(entry.tag) << Self.useCountBits | entry.useCount)
    words.withLock { words in words[place(entry.tag)] = word }
  }

  /// Removes and returns the use count of an evicted record; 0 if there is none.
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
