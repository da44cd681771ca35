/// What can go wrong in the engine itself. A transport's own errors pass through unchanged.
public enum CachingClientError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The body ended before the length its Content-Length announced (RFC 9112 section 8).
  ///
  /// What arrived was handed on chunk by chunk, and nothing of it was kept as a complete response.
  case incompleteBody(expectedByteCount: Int, receivedByteCount: Int)

  /// Nothing came of another request's fetch for as long as ``ClientRequest/timeLimit``.
  case timedOut

  /// ``ResponseBody/collect(upTo:)`` met more bytes than its caller accepts.
  case bodyTooLarge(limit: Int)

  /// What happened and what to do about it.
  public var description: String {
    switch self {
    case .incompleteBody(let expected, let received):
      "The response ended early: \(received) of \(expected) bytes arrived. Nothing was stored; send the request again."
    case .timedOut:
      "Nothing came of the fetch that the request shared within its time limit. Send it again, or allow more time."
    case .bodyTooLarge(let limit):
      "The response is larger than the \(limit) bytes its reader accepts. Read it in chunks, or raise the limit."
    }
  }
}
