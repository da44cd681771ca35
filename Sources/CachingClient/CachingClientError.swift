public import FoundationEssentials

/// An error of the caching client itself.
///
/// A transport's errors are passed on unchanged.
public enum CachingClientError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The body ended before the length that Content-Length declares (RFC 9112 section 8).
  ///
  /// The caller received the chunks that arrived. They are not stored as a complete response.
  case incompleteBody(expectedByteCount: Int, receivedByteCount: Int)

  /// The fetch that the request waited for made no progress within ``CachingClientRequest/timeLimit``.
  case timedOut

  /// The body is larger than the limit of ``ResponseBodyStream/collect(upTo:)``.
  case bodyTooLarge(limit: Int)

  /// Another reader has begun to read the body, which comes from the network and can be read once.
  case bodyAlreadyRead

  /// The stored response was evicted, removed or replaced while its body was being read.
  case storedBodyLost

  /// The request was redirected more than ``CachingClientRequest/maximumRedirectCount`` times.
  case tooManyRedirects(limit: Int)

  /// The cause and the remedy.
  public var description: String {
    switch self {
    case .incompleteBody(let expected, let received):
      "The response ended early: \(received) of \(expected) bytes arrived. Nothing was stored. Send the request again."
    case .timedOut:
      "The fetch that the request waited for made no progress within its time limit. Try again or raise the limit."
    case .bodyAlreadyRead:
      "The body was read before, or is being read. Read it once, and share the chunks or collect the whole body."
    case .storedBodyLost:
      "The stored response was evicted, removed or replaced while its body was read. Send the request again."
    case .tooManyRedirects(let limit):
      "The request was redirected more than \(limit) times. Check the origin for a loop, or raise the limit."
    case .bodyTooLarge(let limit):
      "The response is larger than the limit of \(limit) bytes. Read it in chunks or raise the limit."
    }
  }
}

extension CachingClientError: LocalizedError {
  /// The ``description``.
  public var errorDescription: String? { description }
}
