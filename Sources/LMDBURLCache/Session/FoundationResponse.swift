import CachingClient
import CachingStorage
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching

/// The caching client's responses in Foundation's form.
enum FoundationResponse {
  /// Returns the response object.
  ///
  /// - Throws: `URLError.resourceUnavailable` if `returnCacheDataDontLoad` found nothing, like Apple's loading system.
  static func response(for loaded: CachingClient<ResponseCache>.Response, url: URL) throws -> URLResponse {
    if loaded.source == .unavailable, loaded.reason == .doNotLoad { throw URLError.nothingStored }
    let provenance = CacheProvenance(loaded)
    if loaded.isWholeEntry, let entry = loaded.entry {
      return PreparedURLResponse.of(entry).response(of: entry, with: provenance, url: url)
    }
    guard
      let response = HTTPURLResponse.make(
        url: url, head: loaded.head, provenance: provenance, isContentDecoded: loaded.isContentDecoded)
    else {
      throw URLError(.badServerResponse, "Foundation cannot represent the status or the fields of the response.")
    }
    return response
  }

  /// Converts an error to the one that a session's callers expect; errors of the inner session stay unchanged.
  static func error(for error: any Error) -> any Error {
    switch error {
    case is CancellationError: URLError(.cancelled)
    case let error as CurlTransportError: URLError(error)
    case CachingClientError.timedOut:
      URLError(
        .timedOut, "The fetch of another request, which this one waited for, made no progress within its time limit.")
    case CachingClientError.tooManyRedirects:
      URLError(.httpTooManyRedirects, "The load was redirected more than 20 times. Follow the redirects of the origin.")
    case CachingClientError.bodyAlreadyRead: error
    // The error of a session for a transfer that ends before its declared length.
    case is CachingClientError:
      URLError(.networkConnectionLost, "The response ended before its declared length. Load it again.")
    default: error
    }
  }
}
