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
  static let variationField = "Key-Space-Variation"

  init(variation: URLVariation? = nil) {
    nonce = String(UInt64.random(in: .min ... .max), radix: 16)
    self.variation = variation
  }

  /// Reads a record; nil if it is not one.
  @usableFromInline
  init?(_ fields: HeaderFields) {
    guard let nonce = fields[Self.nonceField] else { return nil }
    self.nonce = nonce
    variation = fields[Self.variationField].flatMap { URLVariation(text: $0) }
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
  private let query: KeyPlacement.Query
  let spaceKey: RequestKey

  /// Creates the place of a query; nil for another request, and for a query that goes past the cache.
  @usableFromInline
  init?(_ request: CachingClientRequest) {
    guard request.isQuery, let query = request.query, let key = request.fetchKey else { return nil }
    self.query = query
    spaceKey = key.querySpace(method: query.method)
  }

  /// Returns the request for the record of the space.
  @usableFromInline
  func record(for request: CachingClientRequest) -> CachingClientRequest { request.forSpace(spaceKey) }

  /// The bytes whose digest is in the key.
  @usableFromInline var bytes: [UInt8] { query.content.bytes }

  /// Returns the request under its key in a space.
  @usableFromInline
  func placed(_ request: CachingClientRequest, in space: KeySpace, digest: String) -> CachingClientRequest {
    request.placed(
      at: spaceKey.query(
        method: query.method, nonce: space.nonce, digest: digest, byteCount: query.content.byteCount),
      KeyPlacement(query, in: spaceKey))
  }
}

extension CachingClientRequest {
  /// The request for the record of the space of the path's equivalent URLs; nil for a request that is placed already.
  @usableFromInline var recordOfSearchSpace: CachingClientRequest? {
    guard isForURL, let key else { return nil }
    return forSpace(key.searchSpace)
  }

  /// Returns the request under the key of the URLs that are equivalent by a record.
  @usableFromInline
  func placed(by record: HeaderFields) -> CachingClientRequest? {
    guard let key, let space = KeySpace(record) else { return nil }
    return placed(in: space, of: key)
  }

  /// Returns the request under the key of the equivalent URLs in a space.
  ///
  /// - Parameter key: The key of the request's URL.
  func placed(in space: KeySpace, of key: RequestKey) -> CachingClientRequest? {
    guard let variation = space.variation else { return nil }
    return placed(
      at: key.equivalent(nonce: space.nonce) { variation.simplified($0) }, KeyPlacement(variation, urlKey: key))
  }
}
