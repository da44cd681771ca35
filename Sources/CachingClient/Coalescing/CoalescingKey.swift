import CacheModel
import HTTPCaching

/// The key by which concurrent requests share a fetch: the identity of the response, the credentials, and the variant
/// if it is known.
///
/// A response to one user is never served to another, so a request does not wait for another user's fetch. The same
/// holds for requests whose transports deliver encoded content in different forms.
struct CoalescingKey: Hashable, Sendable {
  /// The identity of the requests (``CachingClientRequest/identity``).
  let key: RequestKey
  let credentials: String?
  let contentDecoding: ContentDecoding
  /// The values of the request fields that a recent response named in `Vary`; nil if none is known.
  private(set) var variant: VaryKey?

  init(_ identity: RequestKey, of request: RequestHead) {
    key = identity
    credentials = request.credentials
    contentDecoding = request.contentDecoding
  }

  /// Returns the same key for one variant.
  func narrowed(to variant: VaryKey) -> CoalescingKey {
    var key = self
    key.variant = variant.ofRequest
    return key
  }
}

extension VaryKey {
  /// The names of the fields, as in `Vary`, if they distinguish variants that can be shared.
  ///
  /// Nil without fields, for a response that matches no request, and for more names than are worth remembering.
  var distinguishingNames: String? {
    guard hasVaryFields, !fields.contains(where: { $0.name == "*" }) else { return nil }
    let names = ofRequest.fields.map(\.name).joined(separator: ", ")
    return names.utf8.count <= 256 ? names : nil
  }
}

extension CachingClientRequest {
  /// The key of the URL, by which removals find the fetches that they concern. Nil unless the URL is an HTTP URL (RFC
  /// 9110 section 4.2).
  var fetchKey: RequestKey? {
    keyURL.isHTTPWithHost ? urlKey : nil
  }
}
