import FoundationEssentials
public import ResponseStore

extension ResponseBody {
  /// Creates a body that reads a range of a stored body on demand, in pieces of 256 KiB.
  ///
  /// It can be read any number of times. Reading throws ``CachingClientError/storedBodyLost`` if the response is
  /// evicted, removed or replaced before the end of the range.
  public init(_ stored: StoredBody, in range: Range<Int>) {
    self.init(StoredChunks(stored: stored, range: range))
  }
}

private struct StoredChunks: AsyncSequence, Sendable {
  let stored: StoredBody
  let range: Range<Int>

  func makeAsyncIterator() -> Iterator {
    Iterator(stored: stored, rest: range)
  }

  struct Iterator: AsyncIteratorProtocol {
    let stored: StoredBody
    var rest: Range<Int>

    private static let chunkByteCount = 256 << 10

    mutating func next() async throws -> Data? {
      guard !rest.isEmpty else { return nil }
      try Task.checkCancellation()
      let range = rest.prefix(Self.chunkByteCount)
      guard let chunk = await onBlockingThread({ [stored] in stored.read(range) }) else {
        rest = rest.suffix(0)
        throw CachingClientError.storedBodyLost
      }
      rest = rest.dropFirst(range.count)
      return chunk
    }
  }
}
