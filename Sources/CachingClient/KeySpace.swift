import CacheModel
public import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Key spaces: sets of cache keys that one removal makes unreachable, although no process knows all of them.
///
/// A space has a small record, which is stored like a response and has a random nonce. The keys in the space contain the
/// nonce. So when the record is removed, no process finds the responses in the space again, and they are evicted later.
/// The record is used by each lookup in the space, so it is not evicted before them.
@usableFromInline
struct KeySpace: Sendable {
  /// A number that no other record has.
  let nonce: String
  /// For the equivalent URLs of a path: which of their parameters count, as the path's latest response says.
  let variation: URLVariation?

  static let nonceField = "Key-Space-Nonce"
  static let variationField = "Key-Space-Vary"

  init(variation: URLVariation? = nil) {
    nonce = String(UInt64.random(in: .min ... .max), radix: 16)
    self.variation = variation
  }

  /// Reads a record; nil if it is not one.
  @usableFromInline
  init?(_ fields: HeaderFields) {
    var nonce: String?
    var variation: URLVariation?
    // No other names and no other spellings are stored. Names of 15 bytes at most are compared without a loop.
    for position in 0..<fields.count {
      let field = fields[position]
      if field.name == Self.nonceField {
        nonce = field.value
      } else if field.name == Self.variationField {
        variation = URLVariation(text: field.value)
      }
    }
    guard let nonce else { return nil }
    (self.nonce, self.variation) = (nonce, variation)
  }

  /// The record, which stays fresh for a year.
  func record(at now: Date, isShared: Bool) -> ProposedResponse {
    var fields: HeaderFields = [Self.nonceField: nonce]
    if let variation { fields.append(name: Self.variationField, value: variation.text) }
    return ProposedResponse(
      status: 200, fields: fields, body: Data(),
      freshness: FreshnessInfo(
        responseTime: now, initialAge: 0, lifetime: 31_536_000, date: now, staleWhileRevalidate: -1, staleIfError: -1,
        flags: isShared ? [.sharedMode] : []),
      vary: VaryKey(fields: []))
  }
}

/// A query, and the space of its URL's queries.
@usableFromInline
struct QueryPlace {
  private let placement: KeyPlacement
  @usableFromInline let content: QueryContent
  @usableFromInline let spaceKey: RequestKey

  fileprivate init(_ query: KeyPlacement.Query, urlKey: RequestKey) {
    spaceKey = urlKey.querySpace(method: query.method)
    content = query.content
    placement = KeyPlacement(query, in: spaceKey)
  }

  /// Returns the request under its key in a space.
  @usableFromInline
  func placed(_ request: CachingClientRequest, in space: KeySpace, digest: String) -> CachingClientRequest {
    request.placed(
      at: spaceKey.query(nonce: space.nonce, digest: digest, byteCount: content.byteCount), placement)
  }
}

/// Where the responses of URLs are that are equivalent to that of a request (No-Vary-Search).
@usableFromInline
package struct EquivalentPlace {
  /// The key of all these URLs.
  @usableFromInline package let key: RequestKey
  /// The key of the request's URL.
  private let urlKey: RequestKey
  private let variation: URLVariation

  init?(of urlKey: RequestKey, in space: KeySpace) {
    guard let variation = space.variation else { return nil }
    (self.urlKey, self.variation) = (urlKey, variation)
    key = urlKey.equivalent(
      nonce: space.nonce, maximumByteCount: URLVariation.maximumByteCount, variation.simplify)
  }

  /// Returns the request under the key of the place.
  @usableFromInline
  package func placed(_ request: CachingClientRequest) -> CachingClientRequest {
    request.placed(at: key, KeyPlacement(variation, urlKey: urlKey))
  }
}

/// Functions of the request, because an initializer would copy it.
extension CachingClientRequest {
  /// The place of a query; nil for another request, and for a query that goes past the cache.
  @usableFromInline var queryPlace: QueryPlace? {
    guard let query, let key else { return nil }
    return QueryPlace(query, urlKey: key)
  }

  /// The key of the space of the path's equivalent URLs; nil for a request that is placed already.
  @usableFromInline var searchSpaceKey: RequestKey? { isForURL ? key?.searchSpace : nil }

  /// Returns the place of the request by the record of its path's space; nil if that is malformed.
  @usableFromInline
  func equivalentPlace(by record: HeaderFields) -> EquivalentPlace? {
    guard let key, let space = KeySpace(record) else { return nil }
    return EquivalentPlace(of: key, in: space)
  }
}
