import HTTPCaching
import ResponseStore

/// The key by which concurrent requests share a fetch: the cache key and the credentials.
///
/// A response to one user is never served to another, so a request does not wait for another user's fetch.
struct CoalescingKey: Hashable, Sendable {
  let key: RequestKey
  let credentials: String?

  init(_ key: RequestKey, of request: RequestHead) {
    self.key = key
    credentials = request.credentials
  }
}

extension ClientRequest {
  /// The cache key for registering fetches. Nil unless the URL is an HTTP URL (RFC 9110 section 4.2).
  var fetchKey: RequestKey? {
    keyURL.isHTTPWithHost ? key : nil
  }
}
