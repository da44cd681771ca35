import CacheModel
import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Updates the stored response from a 304 and serves it (RFC 9111 section 4.3.4).
  ///
  /// - Returns: `false` if the 304 does not validate the stored response, so that the complete response must be
  ///   requested.
  func confirm(
    _ entry: Storage.Entry, by arrival: Arrival, _ plan: Plan, in fetch: InFlightFetch
  ) async -> Bool {
    // The fields of a 304 replace those of the stored response.
    let overrides = plan.request.overrides.resolved(
      forContentType: arrival.response.head.fields["Content-Type"] ?? entry.fields["Content-Type"])
    let refusal = overrides.refusal(ofStatus: entry.status, to: plan.request.head.url)
    let freshening = Freshening.decide(
      notModified: overrides.applied(to: arrival.response.head), request: plan.request.head, stored: entry,
      requestTime: arrival.requestTime, responseTime: arrival.responseTime, options: options)
    switch freshening {
    case .update(let fields, let freshness, let rule) where refusal == nil:
      let freshened = FreshenedResponse(
        base: entry, fields: fields, freshness: overrides.applied(to: freshness, status: entry.status))
      return await serve(freshened, rule, plan, in: fetch) {
        guard !fetch.permit.isRevoked else {
          return fetch.storageReport.decide(.notStored(.invalidatedInFlight))
        }
        await update(
          entry, fields: fieldsToStore(freshened.fields), freshness: freshened.freshness, plan, in: fetch)
        if await removeIfRevoked(plan, fetch) {
          fetch.storageReport.decide(.notStored(.invalidatedInFlight))
        } else {
          fetch.storageReport.decideStored(freshened.freshness)
        }
      }
    case .updateAndRemove(let fields, let freshness, let rule), .update(let fields, let freshness, let rule):
      // A response that must not be stored must not be shared with followers either.
      let freshened = FreshenedResponse(base: entry, fields: fields, freshness: freshness)
      return await serve(freshened, rule, plan, in: fetch, isForOthers: false) {
        refuse(refusal ?? rule, plan.request, fetch)
        await storage.remove(entry, for: plan.request)
      }
    case .markStale(let freshness, _):
      if !fetch.permit.isRevoked {
        storage.update(
          entry, fields: entry.fields, freshness: freshness, askedAt: fetch.permit.token, for: plan.request)
        await removeIfRevoked(plan, fetch)
      }
      return false
    case .unrelated: return false
    }
  }

  /// Serves a validated response. The store is updated before the leader and the followers resume.
  ///
  /// - Returns: `false` if the stored response lacks the requested range, or is removed before its large body is read.
  private func serve(
    _ freshened: FreshenedResponse<Storage.Entry>, _ rule: Rule, _ plan: Plan, in fetch: InFlightFetch,
    isForOthers: Bool = true, updatingStore: () async -> Void
  ) async -> Bool {
    guard let response = revalidatedResponse(plan, from: freshened, rule, of: fetch) else { return false }
    if !isForOthers, response.body.bytes == nil {
      await storage.remove(freshened.base, for: plan.request)
      return false
    }
    counters.revalidations.count()
    await updatingStore()
    let (shared, body) = share(freshened, plan)
    let isShareable =
      isForOthers && decideSharing(shared, plan.request, requestedAt: shared.freshness.responseTime) != nil
    if isShareable {
      recordShareable(plan, shared.vary)
    } else {
      recordUnshareable(plan, shared.vary, status: response.status)
    }
    inFlightFetches.finish(fetch)
    fetch.deliver(.success(response))
    let isOpen = fetch.coalescingKey != nil && !fetch.permit.isRevoked
    fetch.resolve(isOpen && isForOthers ? .shared(shared, body) : .notShareable(variant: shared.vary))
    return true
  }

  /// Returns the validated response for the followers, and apart from it a large body.
  private func share(
    _ freshened: FreshenedResponse<Storage.Entry>, _ plan: Plan
  ) -> (CacheableResponse, body: ResponseBodyStream?) {
    // The entry matched this request, so the request's fields are the Vary key.
    let vary = VaryKey(
      request: plan.request.head, response: freshened.fields, options: options,
      isContentDecoded: freshened.freshness.flags.contains(.decoded), credentialDigest: storage.credentialDigest)
    let body = wholeBody(of: freshened.base)
    let shared = CacheableResponse(
      status: freshened.status, fields: fieldsToStore(freshened.fields), body: body.bytes ?? Data(),
      freshness: freshened.freshness, vary: vary)
    return (shared, body.bytes == nil ? body : nil)
  }

  /// Updates the stored response to GET from the response to a HEAD, or marks it stale (RFC 9111 section 4.3.5).
  func freshen(by head: ResponseHead, _ arrival: Arrival, _ plan: Plan, in fetch: InFlightFetch) async {
    guard let entry = plan.entry, !fetch.permit.isRevoked else { return }
    let freshening = Freshening.decide(
      head: head, request: plan.request.head, stored: entry, requestTime: arrival.requestTime,
      responseTime: arrival.responseTime, options: options)
    let overrides = plan.request.overrides.resolved(
      forContentType: head.fields["Content-Type"] ?? entry.fields["Content-Type"])
    switch freshening {
    case .update(let fields, let freshness, _)
    where overrides.refusal(ofStatus: entry.status, to: plan.request.head.url) == nil:
      let freshness = overrides.applied(to: freshness, status: entry.status)
      await update(entry, fields: fieldsToStore(fields), freshness: freshness, plan, in: fetch)
      await removeIfRevoked(plan, fetch)
    case .markStale(let freshness, _):
      storage.update(entry, fields: entry.fields, freshness: freshness, askedAt: fetch.permit.token, for: plan.request)
      await removeIfRevoked(plan, fetch)
    case .updateAndRemove, .update: await storage.remove(entry, for: plan.request)
    case .unrelated: break
    }
  }

  /// Updates a stored response, or removes it if its No-Vary-Search has changed: it is then stored for the wrong URLs.
  private func update(
    _ entry: Storage.Entry, fields: HeaderFields, freshness: FreshnessInfo, _ plan: Plan, in fetch: InFlightFetch
  ) async {
    guard plan.request.keepsKey(with: fields) else { return await storage.remove(entry, for: plan.request) }
    storage.update(entry, fields: fields, freshness: freshness, askedAt: fetch.permit.token, for: plan.request)
  }

  /// Removes the stored response again if the permit was revoked while the store was being changed.
  ///
  /// A soft purge needs no removal: the storage compares the token, and the response is stale.
  ///
  /// - Parameter key: The key under which the response was stored, if it is not that of the plan.
  /// - Returns: Whether the response was removed.
  @discardableResult
  func removeIfRevoked(_ plan: Plan, _ fetch: InFlightFetch, storedAt key: RequestKey? = nil) async -> Bool {
    guard fetch.permit.isRemoved else { return false }
    var token = storage.removalToken
    guard let key = key ?? plan.request.key else { return true }
    let invalidation = StorageInvalidation(urls: [plan.request.keyURL], exactly: key)
    await storage.invalidate(invalidation, for: plan.request, movingPast: &token)
    return true
  }
}
