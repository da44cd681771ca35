import CacheModel
import FoundationEssentials
import HTTPCaching

extension KeySpace {
  /// The cache key of a response in a key space, with the parts of the request from which it was made.
  @usableFromInline
  package final class Key: Sendable {
    /// A query, which the caching client treats as a GET of its equivalent resource (RFC 10008, section 2.2).
    @usableFromInline
    struct Query: Sendable {
      let method: String
      /// The content to send; nil for none.
      let body: RequestBodySource?
      let content: QueryContent
    }

    /// The cache key.
    @usableFromInline package let value: RequestKey
    /// Whether the space has a record. If not, nothing is stored under the key.
    let hasRecord: Bool
    /// The query; nil for other requests.
    let query: Query?
    /// The content of the query and the user by which the key differs from others in the space.
    let member: RequestKey.Member
    /// The variation of the equivalent URLs that have the key; nil for other keys.
    let variation: URLVariation?

    /// Makes the key of a query, or of a response for one user, in the space of its URL.
    ///
    /// - Parameter section: The section of the space; nil if it has no record.
    @usableFromInline
    init(_ member: RequestKey.Member, query: Query?, of urlKey: RequestKey, in section: Section?) {
      value = urlKey.inURLSpace(nonce: section?.nonce ?? "", method: query?.method ?? "GET", member)
      hasRecord = section != nil
      (self.query, self.member, variation) = (query, member, nil)
    }

    /// Makes the key of a URL among the equivalent URLs of its path; nil if the section is none of a path.
    @usableFromInline
    init?(equivalent urlKey: RequestKey, user: String?, in section: Section) {
      guard let variation = section.variation else { return nil }
      value = urlKey.equivalent(
        nonce: section.nonce, user: user, maximumByteCount: URLVariation.maximumByteCount, variation.simplify)
      hasRecord = true
      (query, member, self.variation) = (nil, RequestKey.Member(user: user), variation)
    }

    /// Wraps the key of the record of a space.
    fileprivate init(ofRecord key: RequestKey) {
      value = key
      hasRecord = true
      (query, member, variation) = (nil, RequestKey.Member(), nil)
    }
  }
}

extension CachingClientRequest {
  /// Creates the request for the record of a key space, which is the same for all users; nil if the key has no URL.
  init?(forRecordAt key: RequestKey) {
    guard let url = URL(string: key.urlString) else { return nil }
    self = CachingClientRequest(head: RequestHead(url: url), partition: key.partition)
      .under(KeySpace.Key(ofRecord: key))
  }

  /// The key by which requests for the same response know each other, also while a key space has no record.
  package var identity: RequestKey? {
    guard let spaceKey, spaceKey.variation == nil else { return key }
    guard let query = spaceKey.query, let content = spaceKey.member.content else { return urlKey }
    return urlKey?.inURLSpace(nonce: "", method: query.method, RequestKey.Member(content: content))
  }

  /// The key that the machines of a fleet have in common: without nonces, which differ between them.
  var sharedKey: RequestKey? { spaceKey?.query == nil ? urlKey : urlKey?.urlSpace }

  /// Whether a response with these fields would be stored under the key that the request has: its No-Vary-Search is
  /// that of the equivalent URLs with the key, if it is one of them.
  func keepsKey(with fields: HeaderFields) -> Bool {
    spaceKey?.variation.map { URLVariation(fields) == $0 } ?? true
  }

  /// Whether the request has credentials, in a field or in its URL.
  @usableFromInline var hasCredentials: Bool { namesUser || head.fields.contains("authorization") }
}
