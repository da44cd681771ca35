import HTTPCaching
import ResponseStore

/// What one fetch can be shared under: nothing that differs here can use the other's result.
///
/// It is what responses are stored under, and the credentials: a response to one user is never given to another, so nobody waits
/// for a result that is another user's.
struct SharingKey: Hashable, Sendable {
  let key: RequestKey
  let credentials: String?

  init(_ key: RequestKey, of request: RequestHead) {
    self.key = key
    credentials = request.credentials
  }
}

extension ClientRequest {
  /// What the answer is stored under, always as that of a GET, and what the fetch of it is filed under; `nil` for a URL that no
  /// cache can key by (RFC 9110 section 4.2).
  var key: RequestKey? {
    Invalidation.origin(of: keyURL) == nil ? nil : RequestKey(url: keyURL, partition: partition)
  }
}
