import CacheActivity
import CacheModel
import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import ResponseStore

/// Explanations of the effect that a request would have now.
extension CacheDirectory {
  /// The effect of a request, and the stored response that a lookup selects.
  package struct Explanation: Sendable {
    package let decision: RequestExplanation
    /// The number of stored variants of the URL.
    package let variantCount: Int
    /// The stored response that the decision is about; nil if none matches the request.
    package let selected: StoredResponse?
    /// The request fields in the Vary keys of all variants.
    package let varyNames: [String]
    /// The last time that a response for the URL was not stored, by any process; nil if that is not known.
    package let lastRefusal: StorageRefusal?
    /// The maximum size of a body that a cache with default options stores in the directory.
    package let maximumBodyByteCount: Int
    /// The machine's state in its fleet; nil if the directory is in no fleet, or the state cannot be read.
    package let machine: FleetMachineState?
    /// The caching rules that match the request, in their order.
    package let cachingRules: [CachingRules.Match]
    /// The partition of the cache key.
    package let partition: String
    /// The cache key; nil if the URL has none. That of a query has the digest of its content.
    package let key: RequestKey?
  }

  /// Returns the effect that a request would have now: the decision of a cache with these options, and each check.
  ///
  /// It uses the cache's own code, and considers only committed responses.
  ///
  /// - Parameters:
  ///   - request: The request. Its partition is not derived from it.
  ///   - partition: The partition of the cache key, without the part that the rules add.
  ///   - options: The options of the cache that decides.
  ///   - rules: The rules of the cache that decides.
  ///   - now: The time for which to decide.
  /// - Returns: Nil for a request without a URL.
  package func explain(
    _ request: URLRequest, partition: String = "", options: CachingOptions = CachingOptions(),
    rules: CachingRules = CachingRules(), now: Date = Date()
  ) -> Explanation? {
    guard let head = request.head else { return nil }
    var clientRequest = CachingClientRequest(
      head: head, body: request.contentSource, policy: RequestPolicy(request.cachePolicy),
      partition: partition, rules: rules)
    let machine = FleetMachineState.read(directory: path)
    let storage = InspectedStorage(store: store, options: options, isCutOff: machine.map { !$0.hasLease } ?? false)
    let client = CachingClient(storage: storage, options: options, clock: { now })
    let lookups = client.lookups(of: clientRequest)
    clientRequest = lookups.first ?? clientRequest
    var selected: InspectedStorage.Entry?
    for lookup in lookups where selected == nil {
      selected = lookup.key.flatMap { storage.lookup(lookup, at: $0) }
      if selected != nil { clientRequest = lookup }
    }
    let variants = storage.variants(of: lookups)
    return Explanation(
      decision: client.explain(clientRequest, selected), variantCount: variants.count,
      selected: selected?.response,
      varyNames: Set(variants.flatMap { $0.vary.fields }.filter { !$0.isForm }.map(\.name)).sorted(),
      lastRefusal: lastRefusal(of: lookups),
      maximumBodyByteCount: TieredStorage.maximumBodyByteCount(diskCapacity: capacityByteCount),
      machine: machine,
      cachingRules: rules.matches(
        of: head.url, contentType: selected?.fields["Content-Type"], hasResponse: selected != nil),
      partition: clientRequest.partition, key: clientRequest.identity)
  }

  /// Returns the last refusal of a response to one of the requests.
  private func lastRefusal(of requests: [CachingClientRequest]) -> StorageRefusal? {
    let keys = Set(requests.flatMap { [$0.key, $0.identity] }.compactMap { $0 })
    return keys.compactMap { store.activity.file?.lastRefusal(of: $0) }.max { $0.time < $1.time }
  }
}

/// The storage of a caching client that only explains decisions. It finds committed responses and stores nothing.
private struct InspectedStorage: ResponseStorage {
  /// A committed response, as the cache of a program uses it.
  struct Entry: StoredResponseMetadata, Sendable {
    let response: StoredResponse
    let mustBeValidated: Bool

    var status: Int { response.status }
    var fields: HeaderFields { response.fields }
    var bodyByteCount: Int { response.bodyByteCount }
    var freshness: FreshnessInfo {
      mustBeValidated ? response.freshness.requiringValidation : response.freshness
    }
  }

  let store: ResponseStore
  let options: CachingOptions
  /// Whether the machine has no valid lease.
  let isCutOff: Bool

  func lookup(_ request: CachingClientRequest, at key: RequestKey) -> Entry? {
    let found = store.inspect(key) {
      $0.matches(request.head, options: options, credentialDigest: store.credentialDigest)
    }
    // A response that is not HTTP is only for `cachedResponse(for:)`.
    return found.flatMap { $0.status > 0 ? Entry(response: $0, mustBeValidated: isCutOff) : nil }
  }

  func variants(of requests: [CachingClientRequest]) -> [StoredResponse] {
    requests.compactMap(\.key).flatMap { store.inspectVariants(of: $0) }
  }

  // Nothing reads the body of an explained response.
  func body(of entry: Entry) -> Data { Data() }
  func chunks(of entry: Entry, in range: Range<Int>) -> ResponseBodyStream { .empty }

  func digest(_ bytes: UnsafeRawBufferPointer) -> String { store.contentDigest(bytes) }

  func store(_ proposal: ProposedResponse, for request: CachingClientRequest) {}
  func update(
    _ entry: Entry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) {}
  func remove(_ entry: Entry, for request: CachingClientRequest) async {}
  func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) async {}
}

extension CacheDirectory {
  /// Returns the cache keys under which the response to a request may be stored, in the order of lookups.
  ///
  /// - Parameter content: The content of a query; nil for a GET.
  func keys(of head: RequestHead, _ content: Data?, partition: String, options: CachingOptions) -> [RequestKey] {
    let request = CachingClientRequest(
      head: head, body: content.map { .bytes($0) }, partition: partition,
      overrides: RequestOverrides(treatsAsQuery: content != nil))
    let storage = InspectedStorage(store: store, options: options, isCutOff: false)
    return CachingClient(storage: storage, options: options).lookups(of: request).compactMap(\.key)
  }
}
