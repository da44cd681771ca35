import CacheModel
public import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Lookups and stores in key spaces.
extension CachingClient {
  // MARK: Lookups

  /// Returns a query as a GET of its equivalent resource under a key with its content (RFC 10008, sections 2.2 and 2.7);
  /// nil for another request, and for a query that goes past the cache.
  ///
  /// Makes the space of the URL's queries if there is none.
  @inlinable  // For specialization, like ``evaluate(_:)``.
  package func placedQuery(_ request: CachingClientRequest) -> CachingClientRequest? {
    guard storage.usesRequestKeys, let place = request.queryPlace else { return nil }
    var space: KeySpace?
    if let record = storage.keySpaceRecord(at: place.spaceKey) { space = KeySpace(record) }
    guard let space = space ?? makeSpace(of: place, for: request) else { return nil }
    var digest = ""
    place.content.withKeyedBytes { digest = storage.contentDigest($0) }
    return place.placed(request, in: space, digest: digest)
  }

  @usableFromInline
  func makeSpace(of place: QueryPlace, for request: CachingClientRequest) -> KeySpace? {
    guard request.fetchKey != nil else { return nil }
    let made = KeySpace()
    store(made, place.spaceKey, for: request)
    // Another request may have replaced it.
    return space(place.spaceKey) ?? made
  }

  /// Returns the place that a request has by the latest No-Vary-Search of its path; nil if there is none.
  @inlinable  // For specialization, like ``evaluate(_:)``.
  package func equivalentPlace(of request: CachingClientRequest) -> EquivalentPlace? {
    guard options.usesNoVarySearch, storage.usesRequestKeys, let space = request.searchSpaceKey,
      let record = storage.keySpaceRecord(at: space)
    else { return nil }
    return request.equivalentPlace(by: record)
  }

  // MARK: Stores

  /// Returns the request under whose key a response is stored: the key of equivalent URLs if the response has
  /// No-Vary-Search, and otherwise that of its own URL.
  ///
  /// Makes the space of the path if there is none with this variation. Returns nil if something was removed since the
  /// lookup: it may be equivalent to this URL, and under the URL's own key a later removal of an equivalent URL would not
  /// reach the response.
  func destination(of proposal: ProposedResponse, _ plan: Plan, _ fetch: InFlightFetch) -> CachingClientRequest? {
    let request = plan.request
    guard request.placement?.query == nil else { return request }
    guard options.usesNoVarySearch, storage.usesRequestKeys, proposal.fields.contains("No-Vary-Search"),
      let variation = URLVariation(proposal.fields)
    else { return request.atURL }
    if request.placement?.variation == variation { return request }
    let exact = request.atURL
    guard plan.owner == nil, !proposal.freshness.flags.contains(.incomplete), let key = exact.key else { return exact }
    if hasRemoved(since: plan.start) { return nil }
    let spaceKey = key.searchSpace
    var space = self.space(spaceKey)
    if space?.variation != variation {
      let made = KeySpace(variation: variation)
      store(made, spaceKey, for: exact, permit: fetch.permit)
      space = made
    }
    return space.flatMap { EquivalentPlace(of: key, in: $0) }?.placed(exact) ?? exact
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

  /// Returns the stored response that a newer one replaces under another key. It would still answer its own URL, or URLs
  /// that are no longer equivalent.
  func replacedEntry(
    by proposal: ProposedResponse, _ plan: Plan, _ outcome: StoreOutcome
  ) -> Storage.Entry? {
    guard let entry = plan.entry, plan.request.placement?.query == nil else { return nil }
    if case .stored(let key?) = outcome { return key == plan.request.key ? nil : entry }
    guard let variation = plan.request.placement?.variation else { return nil }
    return URLVariation(proposal.fields) == variation ? nil : entry
  }

  // MARK: Records

  private func space(_ key: RequestKey) -> KeySpace? { storage.keySpaceRecord(at: key).flatMap { KeySpace($0) } }

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
