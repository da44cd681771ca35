import CacheModel
import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Where a response is stored that is not under the key of its URL alone: in a key space.
@usableFromInline
package final class KeyPlace: Sendable {
  /// A query, whose key contains a digest of its content.
  @usableFromInline
  struct Query: Sendable {
    let method: String
    /// The content to send; nil for none.
    let body: RequestBodySource?
    let content: QueryContent
  }

  /// The key of the response; nil as long as its space has no record.
  @usableFromInline package let key: RequestKey?
  /// The key of the request's URL; nil for the record of a space.
  let urlKey: RequestKey?
  /// The query, which the caching client treats as a GET of its equivalent resource (RFC 10008, section 2.2). Nil for other
  /// requests.
  let query: Query?
  /// The content of the query and the user by which the key differs from others in the space.
  let member: RequestKey.Member
  /// The variation of the equivalent URLs that have the key; nil for other keys.
  let variation: URLVariation?

  private init(
    key: RequestKey?, urlKey: RequestKey?, query: Query? = nil, _ member: RequestKey.Member,
    variation: URLVariation? = nil
  ) {
    self.key = key
    self.urlKey = urlKey
    self.query = query
    self.member = member
    self.variation = variation
  }

  /// The place of a query, or of a response for one user, in the space of its URL.
  ///
  /// - Parameter section: The section of the space; nil if it has no record.
  convenience init(
    _ member: RequestKey.Member, query: Query? = nil, of urlKey: RequestKey, in section: KeySpace.Section?
  ) {
    let method = query?.method ?? "GET"
    self.init(
      key: section.map { urlKey.inURLSpace(nonce: $0.nonce, method: method, member) }, urlKey: urlKey, query: query,
      member)
  }

  /// The place of a URL among the equivalent URLs of its path; nil if the section is none of a path.
  convenience init?(equivalent urlKey: RequestKey, user: String?, in section: KeySpace.Section) {
    guard let variation = section.variation else { return nil }
    let key = urlKey.equivalent(
      nonce: section.nonce, user: user, maximumByteCount: URLVariation.maximumByteCount, variation.simplify)
    self.init(key: key, urlKey: urlKey, RequestKey.Member(user: user), variation: variation)
  }

  /// The place of the record of a space.
  static let record = KeyPlace(key: nil, urlKey: nil, RequestKey.Member())

  /// Whether the request is a query.
  @usableFromInline var isQuery: Bool { query != nil }

  /// Whether the place is one of a response for one user of the request's own URL.
  package var isForURL: Bool { urlKey != nil && query == nil && variation == nil }

  /// The key by which requests for the same response know each other, also while the space has no record.
  var identity: RequestKey? {
    if variation != nil { return key }
    guard let query, let content = member.content else { return urlKey }
    return urlKey?.inURLSpace(nonce: "", method: query.method, RequestKey.Member(content: content))
  }

  /// The key that the machines of a fleet have in common, which has no nonce; nil for the record of a space.
  var sharedKey: RequestKey? { query == nil ? urlKey : urlKey?.urlSpace }
}

extension CachingClientRequest {
  /// The key of the request's URL, also if the request is placed elsewhere.
  @usableFromInline package var urlKey: RequestKey? { place?.urlKey ?? key }

  /// The key by which requests for the same response know each other.
  package var identity: RequestKey? { place?.identity ?? key }

  /// Whether the storage holds the response under the URL of the request, for everybody or for one user, and not for a
  /// query or for equivalent URLs.
  package var isForURL: Bool { place?.isForURL ?? true }

  /// The request under the key of its URL.
  var atURL: CachingClientRequest {
    guard let place, place.query == nil, let urlKey = place.urlKey else { return self }
    var request = self
    request.unplace(at: urlKey)
    return request
  }

  /// Returns this request at the place of another one for the same URL, method and content.
  func placed(like other: CachingClientRequest) -> CachingClientRequest {
    other.place.map { placed(at: $0) } ?? self
  }
}
