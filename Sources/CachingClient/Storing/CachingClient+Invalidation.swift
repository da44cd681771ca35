public import CacheModel
import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Sends a request past the storage, and removes the stored responses that its response invalidates (RFC 9111
  /// section 4.4).
  func forward(_ request: CachingClientRequest, over transport: some Transport, because rule: Rule) async throws
    -> Response
  {
    let forwarded = ForwardedRequest(request, past: self)
    counters.activity.observers.emit(
      .fetchBegan(method: request.head.method, url: request.head.url.textWithoutUserInformation))
    let incoming = try await transport.send(request.outgoing())
    await forwarded.invalidate(answeredBy: incoming.head)
    if let response = try await forwarded.collect(incoming, because: rule) { return response }
    let refusal: Rule? =
      switch request.head.method {
      case "GET", "HEAD": nil
      case _ where request.isQuery: nil
      case "POST": .postNotCached
      default: .methodNotCached
      }
    let body = counters.countingBytes(of: incoming.lengthCheckedBody(for: request))
    return networkResponse(
      incoming, body: body, rule, refusal == nil ? .bypass : .method, StorageReport(.notStored(refusal ?? rule)))
  }

  /// Removes stored responses and revokes the permits of the fetches that could store them again.
  ///
  /// The permits are revoked first. The removal then covers all responses that these fetches have stored until then.
  ///
  /// - Parameter change: The fetch whose own response invalidates; it keeps its permit.
  func invalidate(_ targets: Invalidation, for request: CachingClientRequest, by change: InFlightFetch? = nil) async {
    let urls = targets.urls.map { request.overrides.keyURL(for: $0) }
    let keys = urls.compactMap { RequestKey(url: $0, partition: request.partition) }
    // The groups of a response are known only when its head has arrived. So revoke the permits of all fetches from that
    // origin, in all partitions.
    let scopes = targets.groups.compactMap { RemovalScope.group($0, ofOrigin: request.head.url) }
    let members = scopes.first.map { scope in { (key: RequestKey) in scope.mayCover(key) } }
    await inFlightFetches.invalidate(keys, where: members, by: change) { [storage] revokesPermits, spared in
      let invalidation = StorageInvalidation(
        urls: urls, resources: keys, groups: targets.groups, scopes: scopes, origin: targets.origin,
        revokesPermits: revokesPermits)
      // A response is covered by the removals after its fetch's token. The removals made here must not cover the
      // response of this change, nor those that arrive later, so advance their tokens past the removals. A removal for
      // another reason that a permit does not know yet revokes it first.
      var token = storage.removalToken
      let permits = (spared.filter { $0.key == request.key } + (change.map { [$0] } ?? [])).map(\.permit)
      let known = permits.filter { !$0.isRevoked }.map { (permit: $0, token: $0.token) }
      let before = token
      await storage.invalidate(invalidation, for: request, movingPast: &token)
      guard token != before else { return }
      for (permit, known) in known { permit.advance(from: known, to: token) }
    }
  }

  /// Revokes the store permits of in-flight fetches. Their callers still receive the responses.
  ///
  /// Call this **before** you remove responses from the storage other than through this client. Otherwise a response
  /// that was requested before the purge could be stored after it.
  ///
  /// - Parameters:
  ///   - isSoft: Whether a soft purge is the reason. The fetches may then still serve a stored response if the origin
  ///     fails.
  ///   - matches: Returns whether to revoke the permit for a cache key. The default is all keys.
  public func revokeStorePermits(isSoft: Bool = false, where matches: (RequestKey) -> Bool = { _ in true }) {
    state.revokeStorePermits(isSoft: isSoft, where: matches)
  }
}
