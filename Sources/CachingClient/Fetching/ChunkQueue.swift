import FoundationEssentials

/// Chunks of a body in memory, of which the first can be dropped.
struct ChunkQueue {
  /// The position of the first byte in the body.
  private(set) var position = 0
  private(set) var byteCount = 0
  private var chunks: [Data] = []
  /// The position of each chunk in the body.
  private var positions: [Int] = []
  private var firstIndex = 0

  mutating func append(_ chunk: Data) {
    guard !chunk.isEmpty else { return }
    positions.append(position + byteCount)
    chunks.append(chunk)
    byteCount += chunk.count
  }

  /// Drops the chunks that end at or before a position.
  mutating func drop(upTo end: Int) {
    while firstIndex < chunks.count, position + chunks[firstIndex].count <= end {
      position += chunks[firstIndex].count
      byteCount -= chunks[firstIndex].count
      chunks[firstIndex] = Data()
      firstIndex += 1
    }
    // Only when they are more than half of the array, so that the cost per chunk is constant.
    guard firstIndex * 2 > chunks.count else { return }
    chunks.removeFirst(firstIndex)
    positions.removeFirst(firstIndex)
    firstIndex = 0
  }

  /// Returns the rest of the chunk at a position, which must be in memory.
  func chunk(at position: Int) -> Data {
    let index = index(at: position)
    let offset = position - positions[index]
    return offset == 0 ? chunks[index] : chunks[index].dropFirst(offset)
  }

  /// Returns up to `limit` bytes from a position, which must be in memory, without copying them.
  func pieces(from position: Int, upTo limit: Int) -> [Data] {
    var pieces = [chunk(at: position).prefix(limit)]
    var left = limit - pieces[0].count
    for chunk in chunks[(index(at: position) + 1)...] where left > 0 {
      pieces.append(chunk.prefix(left))
      left -= pieces[pieces.count - 1].count
    }
    return pieces
  }

  /// Returns all bytes in memory.
  func joined() -> Data {
    if chunks.count - firstIndex == 1 { return chunks[firstIndex] }
    var bytes = Data(capacity: byteCount)
    for chunk in chunks[firstIndex...] { bytes.append(chunk) }
    return bytes
  }

  /// The index of the chunk that has a position.
  private func index(at position: Int) -> Int {
    var (low, high) = (firstIndex, positions.count)
    while high - low > 1 {
      let middle = (low + high) / 2
      if positions[middle] <= position { low = middle } else { high = middle }
    }
    return low
  }
}
