/// How a body that lies apart from its head is divided among the rows of `bodies`.
///
/// Chunks of one size, then the rest. A rest that would begin another page for little is divided once more: what fills whole pages,
/// and a tail that goes into a leaf, where it shares a page. So a body of 4,096 bytes takes one page and not two, as LMDB's header
/// takes 16 bytes of the first. A tail of more than a quarter of a page is none: leaves are half full at worst.
struct BodyChunks {
  private let bodyByteCount: Int
  private let chunkByteCount: Int
  private let fullCount: Int
  /// Where the tail begins; the body's end if it has none.
  private let tailStart: Int
  let count: Int

  init(bodyByteCount: Int, chunkByteCount: Int, pageByteCount: Int) {
    self.bodyByteCount = bodyByteCount
    self.chunkByteCount = chunkByteCount
    // A body in its head, which is what most lookups find: they need not pay for two divisions.
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

  /// Where a chunk lies in the body.
  func range(_ index: Int) -> Range<Int> {
    let start = index <= fullCount ? index * chunkByteCount : tailStart
    return start..<(index < fullCount ? start + chunkByteCount : start < tailStart ? tailStart : bodyByteCount)
  }
}
