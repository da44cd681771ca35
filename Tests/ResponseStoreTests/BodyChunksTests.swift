import Testing

@testable import ResponseStore

@Suite("Layout of body chunks")
struct BodyChunksTests {
  private func sizes(_ byteCount: Int, chunkByteCount: Int = 16_368) -> [Int] {
    let chunks = ChunkLayout(bodyByteCount: byteCount, chunkByteCount: chunkByteCount, pageByteCount: 4096)
    return (0..<chunks.count).map { chunks.range($0).count }
  }

  @Test(
    "A remainder that fills at most a quarter of a further page becomes a chunk of its own",
    arguments: [
      (0, []), (1, [1]), (4_080, [4_080]), (4_081, [4_080, 1]), (4_096, [4_080, 16]), (5_104, [4_080, 1_024]),
      (5_105, [5_105]), (8_176, [8_176]), (8_192, [8_176, 16]), (16_368, [16_368]), (16_384, [16_368, 16]),
      (16_368 + 4_096, [16_368, 4_080, 16]), (2 * 16_368 + 2_000, [16_368, 16_368, 2_000]),
    ])
  func tails(byteCount: Int, expected: [Int]) {
    #expect(sizes(byteCount) == expected)
  }

  @Test("Single-page chunks have no smaller chunk before the last one", arguments: [4_079, 4_080, 4_081, 100_000])
  func singlePages(byteCount: Int) {
    #expect(sizes(byteCount, chunkByteCount: 4_080).dropLast().allSatisfy { $0 == 4_080 })
    #expect(sizes(byteCount, chunkByteCount: 4_080).count == (byteCount + 4_079) / 4_080)
  }

  @Test("The chunks are consecutive and cover the whole body", arguments: [4_080, 16_368, 65_520])
  func coverage(chunkByteCount: Int) {
    for byteCount in stride(from: 0, to: 200_000, by: 61) {
      let chunks = ChunkLayout(bodyByteCount: byteCount, chunkByteCount: chunkByteCount, pageByteCount: 4096)
      var end = 0
      for index in 0..<chunks.count {
        let range = chunks.range(index)
        #expect(range.lowerBound == end && !range.isEmpty && range.count <= chunkByteCount)
        end = range.upperBound
      }
      #expect(end == byteCount)
    }
  }
}
