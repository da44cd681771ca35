import CacheModel
import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Key spaces: sets of cache keys that one removal makes unreachable, although nobody knows all of them.
///
/// A space has a small record, which is stored like a response and has a random nonce. The keys in the space contain the
/// nonce. So when the record is removed, no process finds the responses in the space again, and they are evicted later.
/// The record is used by each lookup in the space, so it is not evicted before them.
private struct KeySpace {
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

extension CachingClient {
  // MARK: Queries

  /// Returns a query as a GET of its equivalent resource under a key with its content (RFC 10008, sections 2.2 and 2.7);
  /// nil for another request, and for a query that goes past the cache.
  ///
  /// Makes the space of the URL's queries if there is none.
  package func placedQuery(_ request: CachingClientRequest) -> CachingClientRequest? {
    guard request.isQuery, storage.usesRequestKeys, let query = request.query, let key = request.fetchKey else {
      return nil
    }
    let spaceKey = key.querySpace(method: query.method)
    let space: KeySpace
    if let known = self.space(spaceKey, for: request) {
      space = known
    } else {
      let made = KeySpace()
      store(made, spaceKey, for: request)
      // Another request may have replaced it.
      space = self.space(spaceKey, for: request) ?? made
    }
    return request.placed(
      at: spaceKey.query(
        nonce: space.nonce, digest: storage.contentDigest(query.content.bytes), byteCount: query.content.byteCount),
      KeyPlacement(query, in: spaceKey))
  }

  // MARK: Equivalent URLs

  /// Returns the request under the key that all URLs have which are equivalent to its URL by the latest No-Vary-Search of
  /// their path; nil if there is none.
  package func placedAmongEquivalents(_ request: CachingClientRequest) -> CachingClientRequest? {
    guard options.usesNoVarySearch, storage.usesRequestKeys, request.placement == nil, let key = request.key,
      let space = space(key.searchSpace, for: request), let variation = space.variation
    else { return nil }
    return placed(request, in: space, variation, key)
  }

  private func placed(
    _ request: CachingClientRequest, in space: KeySpace, _ variation: URLVariation, _ key: RequestKey
  ) -> CachingClientRequest? {
    RequestKey(
      simplifiedURL: variation.simplified(request.keyURL.absoluteString), partition: request.partition,
      nonce: space.nonce
    ).map { request.placed(at: $0, KeyPlacement(variation, urlKey: key)) }
  }

  /// Returns the request under whose key a response is stored: the key of equivalent URLs if the response has
  /// No-Vary-Search, and otherwise that of its own URL.
  ///
  /// Makes the space of the path if there is none with this variation, and if nothing was removed since the lookup: what was
  /// removed may be equivalent to this URL.
  func destination(of proposal: ProposedResponse, _ plan: Plan, _ fetch: InFlightFetch) -> CachingClientRequest {
    let request = plan.request
    guard request.placement?.query == nil else { return request }
    guard options.usesNoVarySearch, storage.usesRequestKeys, proposal.fields.contains("No-Vary-Search"),
      let variation = URLVariation(proposal.fields)
    else { return request.atURL }
    if request.placement?.variation == variation { return request }
    let exact = request.atURL
    guard plan.owner == nil, !proposal.freshness.flags.contains(.incomplete), let key = exact.key,
      !hasRemoved(since: plan.start)
    else { return exact }
    let spaceKey = key.searchSpace
    var space = self.space(spaceKey, for: exact)
    if space?.variation != variation {
      let made = KeySpace(variation: variation)
      store(made, spaceKey, for: exact, permit: fetch.permit)
      space = made
    }
    return space.flatMap { placed(exact, in: $0, variation, key) } ?? exact
  }

  /// Whether anything was removed or invalidated since a lookup.
  func hasRemoved(since start: LookupStart) -> Bool {
    if inFlightFetches.invalidationCount != start.invalidationCount { return true }
    guard storage.hasRemovals(since: start.removalToken) else { return false }
    var token = start.removalToken
    return storage.effectOfRemovals(on: nil, partition: "", since: &token) != .none
  }

  /// Makes a response unreachable that was stored in a space if something was removed meanwhile: the removal may have found
  /// no space.
  func leaveSpace(ifRemovedSince plan: Plan, _ destination: CachingClientRequest) {
    guard let variation = destination.placement?.variation, hasRemoved(since: plan.start),
      let key = destination.atURL.key
    else { return }
    store(KeySpace(variation: variation), key.searchSpace, for: destination)
  }

  /// Returns the stored response that a newer one replaces under another key: it ends the equivalence of its URL with others.
  func replacedEntry(by proposal: ProposedResponse, _ plan: Plan) -> Storage.Entry? {
    guard let entry = plan.entry, let variation = plan.request.placement?.variation else { return nil }
    return URLVariation(proposal.fields) == variation ? nil : entry
  }

  // MARK: Records

  private func space(_ key: RequestKey, for request: CachingClientRequest) -> KeySpace? {
    storage.lookup(request.forSpace(key)).flatMap { KeySpace($0.fields) }
  }

  /// - Parameter permit: The permit of the fetch whose response makes the space. A removal since then prevents it.
  private func store(
    _ space: KeySpace, _ key: RequestKey, for request: CachingClientRequest, permit: StorePermit? = nil
  ) {
    var record = space.record(at: clock(), isShared: options.mode == .shared)
    record.permit = permit
    storage.store(record, for: request.forSpace(key))
  }

  /// The keys of the spaces to which responses for a URL may belong, with the key of the URL.
  func keysWithSpaces(_ key: RequestKey) -> [RequestKey] {
    guard storage.usesRequestKeys else { return [key] }
    return [key, key.querySpace(method: "QUERY"), key.querySpace(method: "POST"), key.searchSpace]
  }
}
