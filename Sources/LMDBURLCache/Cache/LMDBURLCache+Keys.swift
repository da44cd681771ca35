import CacheModel
import CachingClient
import CachingStorage
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
    let (partition, overrides) = (options.partition(request), options.overrides?(request))
    return options.rules.apply(to: url, partition: partition, overrides: overrides) { name in
      HeaderFields(foundation: request.allHTTPHeaderFields).values(of: name)
    }
  }

  /// The parts of a request that affect where its response is stored, as found while its cache key is created.
  private struct SelectingParts {
    var method = "GET"
    var hasUser = false
    var hasFields = false
  }

  /// Returns the cache key of a request's URL and method; nil if the URL cannot be cached or its `Host` differs from
  /// the URL's, and for a query.
  private func urlKey(for request: URLRequest, url: URL, parts: inout SelectingParts) -> RequestKey? {
    if let fields = request.allHTTPHeaderFields, !fields.isEmpty {
      guard !url.isOtherHost(thanIn: fields) else { return nil }
      parts.hasFields = true
    }
    var (keyURL, partition) = (url, "")
    if options.overrides == nil, options.rules.isEmpty {
      partition = options.partition(request)
    } else {
      let selection = selection(for: request, url: url)
      (keyURL, partition) = (selection.overrides.keyURL(for: url), selection.partition)
    }
    if let method = request.httpMethod { parts.method = method }
    return RequestKey(
      urlString: keyURL.absoluteString, method: parts.method, partition: partition, hasUser: &parts.hasUser)
  }

  /// Whether the response to a request may be stored elsewhere than under the key of its URL, in a key space.
  private func mayUseSpace(_ request: URLRequest, _ parts: SelectingParts) -> Bool {
    guard parts.method == "GET" else { return parts.method == "QUERY" || parts.method == "POST" }
    return parts.hasUser || parts.hasFields && request.value(forHTTPHeaderField: "Authorization") != nil
  }

  /// Returns the request for the caching client if its response may be stored in a key space; nil otherwise.
  private func spaceRequest(_ request: URLRequest, _ parts: SelectingParts) -> CachingClientRequest? {
    guard mayUseSpace(request, parts), let space = clientRequest(request) else { return nil }
    return space.isQuery || space.head.method == "GET" ? space : nil
  }

  /// Returns the cache key under which a response to a request is stored, and makes the record of its key space; nil if
  /// it cannot be stored.
  ///
  /// - Parameter isMemoryOnly: Whether nothing of the request may reach the disk.
  func keyForStoring(_ request: URLRequest, isMemoryOnly: @autoclosure () -> Bool) -> RequestKey? {
    var parts = SelectingParts()
    guard let url = request.url, let key = urlKey(for: request, url: url, parts: &parts) else { return nil }
    guard let space = spaceRequest(request, parts) else { return key }
    return client.keyForStoring(space, isMemoryOnly: isMemoryOnly())
  }

  /// Returns the stored response for a request, like ``cachedResponse(for:)``.
  ///
  /// - Parameter limit: The maximum size of a body that is in memory; nil for no maximum. A larger one is read when the
  ///   caller asks for the response's data.
  func lookup(_ request: URLRequest, leavingBodiesBeyond limit: Int? = nil) -> LMDBCachedURLResponse? {
    guard let url = request.url else { return nil }
    return lookupEntry(request, url, leavingBodiesBeyond: limit).map { LMDBCachedURLResponse($0, askedURL: url) }
  }

  private func lookupEntry(_ request: URLRequest, _ url: URL, leavingBodiesBeyond limit: Int?) -> CacheEntry? {
    var parts = SelectingParts()
    guard let key = urlKey(for: request, url: url, parts: &parts), !core.isCutOff else {
      return nil
    }
    var found: CacheEntry?
    if let space = spaceRequest(request, parts) {
      found = lookup(at: space, leavingBodiesBeyond: limit) { matches($0, request) }
    } else {
      let cache = Unretained(self)
      // Without a Vary key a response is for all requests without credentials.
      found = core.lookup(key, leavingBodiesBeyond: limit) { vary in
        vary.fields.isEmpty || cache.use { $0.matches(vary, request) }
      }
      if found == nil, core.mayHaveEquivalentURLs, parts.method == "GET" {
        found = clientRequest(request).flatMap {
          lookup(at: $0, withoutURL: true, leavingBodiesBeyond: limit) { matches($0, request) }
        }
      }
    }
    // The caller would use a suspect response without a validation.
    guard let found, !found.freshness.flags.contains(.suspect) else { return nil }
    // A caller that has not asked for a range would take a part for the whole.
    if found.freshness.flags.contains(.incomplete), request.value(forHTTPHeaderField: "Range") == nil { return nil }
    return found
  }

  /// Returns the first stored response under the keys of a request to the caching client.
  ///
  /// - Parameter withoutURL: Whether to look for equivalent URLs only.
  private func lookup(
    at space: CachingClientRequest, withoutURL: Bool = false,
    leavingBodiesBeyond limit: Int? = TieredStorage.maximumCopiedBodyByteCount, where matches: (VaryKey) -> Bool
  ) -> CacheEntry? {
    var found: CacheEntry?
    _ = client.forEachKey(of: space, withoutURL: withoutURL) { key, _ in
      if withoutURL, key.isForURL { return true }
      found = core.lookup(key, leavingBodiesBeyond: limit, where: matches)
      return found == nil
    }
    return found
  }

  private func matches(_ vary: VaryKey, _ request: URLRequest) -> Bool {
    request.head.map { core.matches(vary, $0) } ?? false
  }

  private func clientRequest(_ request: URLRequest) -> CachingClientRequest? {
    ownContext.clientRequest(request, context: RequestContext(request: request), cache: self)
  }

  /// Whether a response to a GET without credentials is stored, with any Vary key.
  func isStored(_ url: URL) -> Bool {
    let request = URLRequest(url: url)
    var parts = SelectingParts()
    guard let key = urlKey(for: request, url: url, parts: &parts) else { return false }
    if let found = core.lookup(key, where: { _ in true }) { return !found.freshness.flags.contains(.incomplete) }
    guard core.mayHaveEquivalentURLs, let space = clientRequest(request) else { return false }
    return lookup(at: space, withoutURL: true) { _ in true } != nil
  }

  /// Returns the key of the response for equivalent URLs that would answer a request; nil if there is none.
  func keyOfStoredEquivalent(of request: URLRequest) -> RequestKey? {
    guard core.mayHaveEquivalentURLs, let space = clientRequest(request), space.head.method == "GET" else {
      return nil
    }
    return lookup(at: space, withoutURL: true) { matches($0, request) }?.key
  }

  /// The responses that `removeCachedResponse(for:)` removes.
  enum RemovedResponses {
    /// Those of a URL, with its key spaces.
    case resource(RequestKey)
    /// Those of a query of a URL.
    case query([RequestKey], urlKey: RequestKey)
  }

  func removedResponses(for request: URLRequest) -> RemovedResponses? {
    var parts = SelectingParts()
    guard let url = request.url, let key = urlKey(for: request, url: url, parts: &parts) else { return nil }
    guard let space = spaceRequest(request, parts), space.isQuery, let urlKey = space.key else {
      return .resource(key)
    }
    // The keys of queries differ between machines, so all queries of the URL are removed.
    let keys = core.hasOtherMachines ? [urlKey.urlSpace] : client.lookups(of: space).compactMap(\.key)
    return .query(keys, urlKey: urlKey)
  }

  /// Whether `no-store` in a request or a response keeps it off the disk.
  func forbidsStoring(_ cached: CachedURLResponse, for request: URLRequest) -> Bool {
    guard let response = cached.response as? HTTPURLResponse, let head = request.head else { return false }
    let options = options.caching
    return ManualStorage.forbidsStoring(request: head, response: response.head, options: options)
  }

  /// Creates the entry of a response that a caller stores with `storeCachedResponse(_:for:)`.
  ///
  /// - Returns: The entry, whether it may be stored on disk, and the rule because of which it is stored nowhere.
  func makeEntry(
    from cached: CachedURLResponse, for request: URLRequest, _ key: RequestKey
  ) -> (response: CacheEntry, allowsDiskStorage: Bool, refusal: Rule?) {
    let attachment = ResponseAttachment(cached, for: key)?.bytes
    guard let response = cached.response as? HTTPURLResponse, let head = request.head else {
      let vary = request.head.map {
        VaryKey(request: $0, response: HeaderFields(), credentialDigest: core.credentialDigest)
      }
      let response = CacheEntry(
        CacheableResponse(
          status: 0, fields: HeaderFields(), body: cached.data, freshness: .unknown(at: core.now),
          vary: vary ?? VaryKey(fields: [])),
        for: key, attachment: attachment, storedAt: core.now, prepared: PreparedURLResponse(copying: cached))
      return (response, true, nil)
    }
    let received = response.head
    let overrides = overrides(for: request).resolved(forContentType: received.fields["Content-Type"])
    let seen = overrides.applied(to: received)
    let manual = ManualStorage(
      request: head, response: seen, responseTime: core.now, options: options.caching)
    var freshness = overrides.applied(to: manual.freshness, status: response.statusCode)
    // Callers have the content as a session delivers it.
    if manual.fields.contains("Content-Encoding") { freshness.flags.insert(.decoded) }
    let stored = CacheEntry(
      CacheableResponse(
        status: response.statusCode, fields: manual.fields, body: cached.data, freshness: freshness,
        vary: VaryKey(request: head, response: manual.fields, credentialDigest: core.credentialDigest)),
      for: key, attachment: attachment, storedAt: core.now, prepared: PreparedURLResponse(copying: cached))
    let allowsDiskStorage =
      !manual.forbidsStoring && core.meetsMinimumLifetime(stored.freshness) { manual.hasExplicitLifetime }
    var refusal = Storability.sizeRefusal(of: seen.fields, options: options.caching)
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
