import CacheModel
import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import ResponseStore

/// The cache keys and Vary keys of `URLRequest`s.
extension LMDBURLCache {
  /// Returns the overrides for a request, with those of the rules.
  func overrides(for request: URLRequest) -> RequestOverrides {
    request.url.map { selection(for: request, url: $0).overrides } ?? RequestOverrides()
  }

  /// Returns the partition and the overrides of a request.
  private func selection(
    for request: URLRequest, url: URL
  ) -> (partition: String, overrides: RequestOverrides) {
    let (partition, overrides) = (core.options.partition(request), core.options.overrides?(request))
    return core.options.rules.apply(to: url, partition: partition, overrides: overrides) { name in
      HeaderFields(foundation: request.allHTTPHeaderFields).values(of: name)
    }
  }

  /// The parts of a request that affect the selection of a variant, as found while its cache key is created.
  private struct SelectingParts {
    var hasUser = false
    var hasFields = false
  }

  /// Returns the cache key of a request; nil if its URL cannot be cached or its `Host` differs from the URL's.
  func key(for request: URLRequest) -> RequestKey? {
    var parts = SelectingParts()
    return request.url.flatMap { key(for: request, url: $0, parts: &parts) }
  }

  private func key(for request: URLRequest, url: URL, parts: inout SelectingParts) -> RequestKey? {
    if let fields = request.allHTTPHeaderFields, !fields.isEmpty {
      guard !url.isOtherHost(thanIn: fields) else { return nil }
      parts.hasFields = true
    }
    let method = request.httpMethod ?? "GET"
    if method != "GET", let query = query(request) { return cachingClient.placedQuery(query)?.key }
    var (keyURL, partition) = (url, "")
    if core.options.overrides == nil, core.options.rules.isEmpty {
      partition = core.options.partition(request)
    } else {
      let selection = selection(for: request, url: url)
      (keyURL, partition) = (selection.overrides.keyURL(for: url), selection.partition)
    }
    return RequestKey(
      urlString: keyURL.absoluteString, method: method, partition: partition,
      hasUser: &parts.hasUser)
  }

  private func matches(_ vary: VaryKey, _ request: URLRequest, parts: SelectingParts) -> Bool {
    if vary.fields.isEmpty {
      guard !parts.hasUser else { return false }
      return !parts.hasFields || request.value(forHTTPHeaderField: "Authorization") == nil
    }
    return request.head.map { core.matches(vary, $0) } ?? false
  }

  /// Returns the stored response for a request, like ``cachedResponse(for:)``.
  func lookup(_ request: URLRequest) -> LMDBCachedURLResponse? {
    var parts = SelectingParts()
    guard let url = request.url, let key = key(for: request, url: url, parts: &parts), !core.isCutOff else {
      return nil
    }
    let cache = Unretained(self)
    let found =
      core.lookup(key, url: url) { vary in cache.use { $0.matches(vary, request, parts: parts) } }
      ?? lookupEquivalent(to: request, url, key, parts)
    // The caller would use a suspect response without a validation.
    guard let found, !found.freshness.flags.contains(.suspect) else { return nil }
    return found
  }

  /// Returns the stored response for a URL that is equivalent to that of a request.
  private func lookupEquivalent(
    to request: URLRequest, _ url: URL, _ key: RequestKey, _ parts: SelectingParts
  ) -> LMDBCachedURLResponse? {
    equivalentKey(for: request, key).flatMap { key in
      core.lookup(key, url: url) { matches($0, request, parts: parts) }
    }
  }

  /// Returns the request for the caching client if it is a query; nil for another one.
  private func query(_ request: URLRequest) -> CachingClientRequest? {
    guard request.httpMethod == "QUERY" || request.httpMethod == "POST" else { return nil }
    return clientRequest(request).flatMap { $0.isQuery ? $0 : nil }
  }

  private func clientRequest(_ request: URLRequest) -> CachingClientRequest? {
    ownContext.clientRequest(request, context: RequestContext(request: request), cache: self)
  }

  /// Returns the key of the URLs that are equivalent to that of a GET, by the latest No-Vary-Search of their path; nil if
  /// there is none.
  func equivalentKey(for request: URLRequest, _ key: RequestKey) -> RequestKey? {
    guard core.options.caching.usesNoVarySearch, key.queryContent == nil,
      core.keySpaceRecord(at: key.searchSpace) != nil
    else { return nil }
    return clientRequest(request).flatMap { cachingClient.equivalentPlace(of: $0)?.key }
  }

  /// Returns the keys of the spaces whose records must be removed, so that nothing on any machine answers a request.
  func spaceKeys(of request: URLRequest, _ key: RequestKey) -> [RequestKey] {
    if key.queryContent != nil {
      // The keys of queries differ between machines.
      return core.fleet == nil ? [] : [key.querySpace(method: key.requestMethod)]
    }
    let space = key.searchSpace
    return core.fleet != nil || core.mayHaveOtherUsers || core.holds(space) ? [space] : []
  }

  /// Creates the entry of a response that a caller stores with `storeCachedResponse(_:for:)`.
  ///
  /// - Returns: The entry, whether it may be stored on disk, and the rule because of which it is stored nowhere.
  func makeEntry(
    from cached: CachedURLResponse, for request: URLRequest, _ key: RequestKey
  ) -> (response: LMDBCachedURLResponse, allowsDiskStorage: Bool, refusal: Rule?) {
    let attachment = ResponseAttachment(cached, keyURL: key.urlString)?.bytes
    guard let response = cached.response as? HTTPURLResponse, let head = request.head else {
      let vary = request.head.map {
        VaryKey(request: $0, response: HeaderFields(), credentialDigest: core.credentialDigest)
      }
      let response = LMDBCachedURLResponse(
        CacheableResponse(
          status: 0, fields: HeaderFields(), body: cached.data, freshness: .unknown(at: core.now),
          vary: vary ?? VaryKey(fields: [])),
        for: key, attachment: attachment, storedAt: core.now, copying: cached)
      return (response, true, nil)
    }
    let received = response.head
    let overrides = overrides(for: request).resolved(forContentType: received.fields["Content-Type"])
    let seen = overrides.applied(to: received)
    let manual = ManualStorage(
      request: head, response: seen, responseTime: core.now, options: core.options.caching)
    var freshness = overrides.applied(to: manual.freshness, status: response.statusCode)
    // Callers have the content as a session delivers it.
    if manual.fields.contains("Content-Encoding") { freshness.flags.insert(.decoded) }
    let stored = LMDBCachedURLResponse(
      CacheableResponse(
        status: response.statusCode, fields: manual.fields, body: cached.data, freshness: freshness,
        vary: VaryKey(request: head, response: manual.fields, credentialDigest: core.credentialDigest)),
      for: key, attachment: attachment, storedAt: core.now, copying: cached)
    let allowsDiskStorage =
      !manual.forbidsStoring && core.meetsMinimumLifetime(stored.freshness) { manual.hasExplicitLifetime }
    var refusal = seen.fields.isStorable ? nil : Rule.tooManyFields
    if !overrides.allowsStoring { refusal = .storingDisallowed }
    return (stored, allowsDiskStorage, refusal)
  }
}

extension FreshnessInfo {
  /// The freshness of a response that is not HTTP: unknown.
  static func unknown(at now: Date) -> FreshnessInfo {
    FreshnessInfo(
      responseTime: now, initialAge: 0, lifetime: 0, date: now, staleWhileRevalidate: -1, staleIfError: -1,
      flags: [.dateAssumed])
  }
}
