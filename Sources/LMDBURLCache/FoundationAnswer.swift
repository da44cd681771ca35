import CachingClient
import CurlTransport
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The engine's answers as Foundation's callers want them.
enum FoundationAnswer {
  /// The response object.
  ///
  /// - Throws: `URLError.resourceUnavailable` where `returnCacheDataDontLoad` found nothing, as Apple's loading system does.
  static func response(for answer: CachingClient<CacheStorage>.Response, url: URL) throws -> URLResponse {
    if answer.source == .unavailable, answer.reason == .doNotLoad { throw URLError(.resourceUnavailable) }
    if answer.isWholeEntry, let stored = answer.entry?.cached { return stored.response(age: answer.age, url: url) }
    guard let response = HTTPURLResponse.make(url: url, head: answer.head) else { throw URLError(.badServerResponse) }
    return response
  }

  /// The error as a session's callers know it; those of a session inside are passed on as they are.
  static func error(for error: any Error) -> any Error {
    switch error {
    case is CancellationError: URLError(.cancelled)
    case let error as CurlTransportError: URLError(error)
    case CachingClientError.timedOut: URLError(.timedOut)
    // What a session says of a transfer that ended before its announced length.
    case is CachingClientError: URLError(.networkConnectionLost)
    default: error
    }
  }
}
