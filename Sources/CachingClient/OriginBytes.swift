import FoundationEssentials
import ResponseStore

extension RequestCounters {
  /// Returns the body of a response that is not stored, whose bytes are counted as they arrive.
  func countingBytes(of body: ResponseBody) -> ResponseBody {
    guard let bytes = body.bytes else { return ResponseBody(CountedChunks(base: body, activity: activity)) }
    activity.add(bytes.count, .originBytes)
    return body
  }
}

/// The chunks of a body from the origin, which are counted in the directory's counters.
private struct CountedChunks: AsyncSequence, Sendable {
  let base: ResponseBody
  let activity: ActivityReference

  func makeAsyncIterator() -> Iterator { Iterator(base: base.makeAsyncIterator(), activity: activity) }

  struct Iterator: AsyncIteratorProtocol {
    var base: ResponseBody.AsyncIterator
    let activity: ActivityReference

    mutating func next() async throws -> Data? {
      let chunk = try await base.next()
      if let chunk { activity.add(chunk.count, .originBytes) }
      return chunk
    }
  }
}
