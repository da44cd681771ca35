import CachingClient
import Foundation
import HTTPCaching
import ResponseStore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What direct lookups and stores have in common with those of the engine.
extension LMDBURLCache {
  /// The caller's overrides for a request.
  func overrides(for request: URLRequest) -> RequestOverrides {
    core.options.overrides?(request) ?? RequestOverrides()
  }

  func key(for request: URLRequest) -> RequestKey? {
    request.url.flatMap { key(for: request, url: $0) }
  }

  /// What can select among the variants of a key, as a first look at the request shows it.
  struct SelectingParts {
    var hasUser = false
    var hasFields = false
  }

  /// The key of a request whose URL is at hand; nil for one that is not cached because its `Host` is not that of the URL.
  func key(for request: URLRequest, url: URL) -> RequestKey? {
    var parts = SelectingParts()
    return key(for: request, url: url, parts: &parts)
  }

  /// The same; also tells what may select among the variants, as a lookup needs both and should look once.
  func key(for request: URLRequest, url: URL, parts: inout SelectingParts) -> RequestKey? {
    if let fields = request.allHTTPHeaderFields, !fields.isEmpty {
      guard !url.isOtherHost(thanIn: fields) else { return nil }
      parts.hasFields = true
    }
    var url = url
    if let overrides = core.options.overrides { url = overrides(request).keyURL(for: url) }
    return RequestKey(
      urlString: url.absoluteString, method: request.httpMethod ?? "GET", partition: core.options.partition(request),
      hasUser: &parts.hasUser)
  }

  func credentialDigest(_ value: String) -> String {
    core.store?.credentialDigest(value) ?? ResponseStore.credentialDigestInProcess(value)
  }

  func matches(_ vary: VarySelection, _ request: URLRequest, parts: SelectingParts) -> Bool {
    if vary.selectors.isEmpty {
      guard !parts.hasUser else { return false }
      return !parts.hasFields || request.value(forHTTPHeaderField: "Authorization") == nil
    }
    return request.head.map { vary.matches($0, credentialDigest: credentialDigest) } ?? false
  }

  /// Makes a response that a caller stores by hand one of ours.
  ///
  /// - Returns: The response, whether it may go to disk, and whether its fields are few enough to be kept at all.
  func adopt(
    _ cached: CachedURLResponse, for request: URLRequest, _ key: RequestKey
  ) -> (response: StoredURLResponse, mayReachDisk: Bool, isStorable: Bool) {
    let attachment = ResponseAttachment(cached, keyURL: key.urlString)?.bytes
    guard let response = cached.response as? HTTPURLResponse, let head = request.head else {
      let vary = request.head.map {
        VarySelection(request: $0, response: HTTPFields(), credentialDigest: credentialDigest)
      }
      let record = CachedRecord(
        key: key, status: 0, fields: HTTPFields(), body: cached.data, facts: .unknown(at: core.now),
        vary: vary ?? VarySelection(selectors: []), attachment: attachment, storedAt: core.now)
      return (StoredURLResponse(record, copying: cached), true, true)
    }
    let overrides = overrides(for: request)
    let judged = overrides.judged(response.head)
    let direct = DirectStorage(
      request: head, response: judged, responseTime: core.now, options: core.options.caching)
    let record = CachedRecord(
      key: key, status: response.statusCode, fields: direct.fields, body: cached.data,
      facts: overrides.applied(to: direct.facts, status: response.statusCode),
      vary: VarySelection(request: head, response: direct.fields, credentialDigest: credentialDigest),
      attachment: attachment, storedAt: core.now)
    let mayReachDisk =
      !direct.forbidsStoring && core.livesLongEnough(record.facts) { direct.hasExplicitLifetime }
    return (StoredURLResponse(record, copying: cached), mayReachDisk, judged.fields.isStorable)
  }

  /// Whether one of ours may go to disk, apart from its storage policy.
  func mayReachDisk(_ record: CachedRecord, _ request: URLRequest) -> Bool {
    guard record.status > 0, let head = request.head else { return true }
    var direct: DirectStorage {
      DirectStorage(
        request: head, response: ResponseHead(status: record.status, fields: record.fields),
        responseTime: record.facts.responseTime, options: core.options.caching)
    }
    if record.fields.contains("cache-control") || head.fields.contains("cache-control"), direct.forbidsStoring {
      return false
    }
    return core.livesLongEnough(record.facts) { direct.hasExplicitLifetime }
  }
}

extension FreshnessFacts {
  /// Of a response that is not HTTP: nothing is known.
  static func unknown(at now: Date) -> FreshnessFacts {
    FreshnessFacts(
      responseTime: now, initialAge: 0, lifetime: 0, date: now, staleWhileRevalidate: -1, staleIfError: -1,
      flags: [.dateAssumed])
  }
}
