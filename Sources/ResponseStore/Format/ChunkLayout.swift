/// The division of a body outside its record header into rows of `bodies`.
///
/// A body has chunks of one size, then the rest. If a small part of the rest would begin another page, the rest is
/// divided again: a chunk of whole pages, and a tail that shares a leaf page. So a body of 4,096 bytes takes one page
/// and not two, although LMDB's page header takes 16 bytes of the first. A tail has at most a quarter of a page,
/// because leaves can be half empty.
struct ChunkLayout {
  private let bodyByteCount: Int
  private let chunkByteCount: Int
  private let fullCount: Int
  /// The offset of the tail; the body's end if there is no tail.
  private let tailStart: Int
  let count: Int

  init(bodyByteCount: Int, chunkByteCount: Int, pageByteCount: Int) {
    self.bodyByteCount = bodyByteCount
    self.chunkByteCount = chunkByteCount
    // Most lookups find an inline body; they skip the divisions.
    guard bodyByteCount > 0 else {
      (fullCount, tailStart, count) = (0, 0, 0)
      return
    }
    fullCount = bodyByteCount / chunkByteCount
    let rest = bodyByteCount - fullCount * chunkByteCount
    let wholePagesByteCount = (rest + 15) / pageByteCount * pageByteCount - 16
    let hasTail = wholePagesByteCount > 0 && (1...pageByteCount / 4).contains(rest - wholePagesByteCount)
    tailStart = hasTail ? bodyByteCount - rest + wholePagesByteCount : bodyByteCount
    count = fullCount + (rest > 0 ? 1 : 0) + (hasTail ? 1 : 0)
  }

  /// Returns the part of the body that is in a chunk.
  func range(_ index: Int) -> Range<Int> {
    let start = index <= fullCount ? index * chunkByteCount : tailStart
    return start..<(index < fullCount ? start + chunkByteCount : start < tailStart ? tailStart : bodyByteCount)
  }

  /// Returns the chunks that hold a non-empty part of the body.
  func indices(of part: Range<Int>) -> ClosedRange<Int> {
    index(of: part.lowerBound)...index(of: part.upperBound - 1)
  }

  private func index(of position: Int) -> Int {
    position >= tailStart ? count - 1 : min(position / chunkByteCount, fullCount)
  }
}
