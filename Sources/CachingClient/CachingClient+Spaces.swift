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

  /// The result of a search: where a response was found, or where a lookup would find it later.
  @usableFromInline
  struct SearchResult {
    /// The response; nil if none was found.
    @usableFromInline let entry: Storage.Entry?
    /// The place of the response; nil for the key of the URL.
    @usableFromInline let place: KeyPlace?

    @usableFromInline
    init(_ entry: Storage.Entry?, at place: KeyPlace?) { (self.entry, self.place) = (entry, place) }
  }

  /// Looks a request up at each of its places; nil for a query that goes past the cache.
  ///
  /// - Parameter withoutURL: Whether the lookup with the key of the URL was made, or is not needed.
  @inlinable  // For specialization, like ``evaluate(_:)``.
  func search(_ request: CachingClientRequest, withoutURL: Bool = false) -> SearchResult? {
    var entry: Storage.Entry?
    var found: KeyPlace?
    let place = forEachPlace(of: request, withoutURL: withoutURL) { place in
      entry = lookup(request, at: place)
      if entry != nil { found = place }
      return entry == nil
    }
    if let entry { return SearchResult(entry, at: found) }
    return place.map { SearchResult(nil, at: $0) }
  }

  @inlinable
  func lookup(_ request: CachingClientRequest, at place: KeyPlace?) -> Storage.Entry? {
    guard let place else { return storage.lookup(request) }
    if let key = place.key { return storage.lookup(request, at: key) }
    // A storage that calls a program for each lookup of a URL does so for this one, too.
    return place.isQuery ? nil : storage.lookup(request.placed(at: place))
  }

  /// Calls a closure for each place at which a response to a request may be stored, until it returns false: first those of
  /// its URL, then those of the equivalent URLs.
  ///
  /// - Parameters:
  ///   - withoutURL: Whether to leave out the key of the URL.
  ///   - body: Receives nil for the key of the URL.
  /// - Returns: The place at which a miss looks for the response of its fetch; nil for the key of the URL, and for a query
  ///   that goes past the cache.
  @inlinable
  package func forEachPlace(
    of request: CachingClientRequest, withoutURL: Bool = false, _ body: (KeyPlace?) -> Bool
  ) -> KeyPlace? {
    guard storage.usesRequestKeys, let urlKey = request.urlKey else {
      if !request.isQuery, !withoutURL { _ = body(nil) }
      return nil
    }
    var place: KeyPlace?
    var user: String?
    if request.isQuery || isForOneUser(request) {
      guard let (member, query) = member(of: request) else { return nil }
      user = member.user
      let record = storage.keySpaceRecord(at: urlKey.urlSpace)
      if member.user != nil, options.mode == .shared {
        // Most responses of a shared cache to requests with credentials are for everybody.
        let everybody = query.flatMap { request.place(RequestKey.Member(content: member.content), $0, record) }
        guard body(everybody) else { return everybody }
        if request.isQuery { place = everybody }
      }
      let own = request.place(member, query, record)
      guard body(own) else { return own }
      if place == nil, options.mode == .private || request.isQuery { place = own }
    } else if !withoutURL {
      guard body(nil) else { return nil }
    }
    guard !request.isQuery, options.usesNoVarySearch, storage.mayHaveEquivalentURLs,
      let record = storage.keySpaceRecord(at: urlKey.searchSpace)
    else { return place }
    var newest: KeyPlace?
    var position = 0
    while let section = KeySpace.nextSection(in: record, &position) {
      let isShared = options.mode == .shared
      guard let equivalent = request.equivalentPlace(in: section, isShared ? nil : user) else { continue }
      newest = newest ?? equivalent
      guard body(equivalent) else { return equivalent }
      guard isShared, let user, let own = request.equivalentPlace(in: section, user) else { continue }
      guard body(own) else { return own }
    }
    return newest ?? place
  }

  /// Whether the response to a request is for its user alone, unless a shared cache has one for everybody.
  @inlinable
  func isForOneUser(_ request: CachingClientRequest) -> Bool {
    request.hasCredentials && storage.usesRequestKeys
  }

  /// Returns what distinguishes the response to a request from others of its URL, and the query; nil for a query that goes
  /// past the cache.
  @usableFromInline
  func member(of request: CachingClientRequest) -> (member: RequestKey.Member, query: KeyPlace.Query?)? {
    let user = request.hasCredentials ? request.head.credentials.map { storage.credentialDigest($0) } : nil
    guard request.isQuery else { return (RequestKey.Member(user: user), nil) }
    guard let query = request.query else { return nil }
    return (RequestKey.Member(content: digest(of: query.content), user: user), query)
  }

  /// Returns the digest of the content of a query, and its size; nil for another request, and for a query that goes past
  /// the cache.
  func contentOfQuery(_ request: CachingClientRequest) -> (digest: String, byteCount: Int)? {
    request.query.map { digest(of: $0.content) } ?? request.place?.member.content
  }

  private func digest(of content: QueryContent) -> (digest: String, byteCount: Int) {
    var digest = ""
    content.withKeyedBytes { digest = storage.contentDigest($0) }
    return (digest, content.byteCount)
  }

  /// Returns the requests under all keys at which a response to a request may be stored, in the order of lookups.
  package func lookups(of request: CachingClientRequest) -> [CachingClientRequest] {
    var lookups: [CachingClientRequest] = []
    _ = forEachPlace(of: request) { place in
      lookups.append(place.map { request.placed(at: $0) } ?? request)
      return true
    }
    return lookups
  }

  // MARK: Stores

  /// Returns the request under whose key a response is stored: that of equivalent URLs if the response has
  /// No-Vary-Search, that in the space of its URL if it is for one user or for a query, and otherwise that of its URL.
  ///
  /// Makes the record of the space if there is none. Returns nil if this process has removed something since the lookup
  /// that found no equivalent URLs: the removal may have been one of them.
  func destination(of proposal: ProposedResponse, _ plan: Plan) -> CachingClientRequest? {
    let request = plan.request
    guard storage.usesRequestKeys, let urlKey = request.urlKey else { return request }
    let user = proposal.vary.userDigest
    let query = request.place?.query
    if query == nil, options.usesNoVarySearch, plan.owner == nil, !proposal.freshness.flags.contains(.incomplete),
      let variation = URLVariation(proposal.fields)
    {
      if let place = request.place, place.variation == variation, place.member.user == user { return request }
      guard inFlightFetches.invalidationCount == plan.start.invalidationCount else { return nil }
      let section = section(
        of: variation, inSpaceAt: urlKey.searchSpace, for: request, by: proposal, askedAt: plan.start.removalToken)
      if let place = section.flatMap({ KeyPlace(equivalent: urlKey, user: user, in: $0) }) {
        return request.placed(at: place)
      }
    }
    let member = RequestKey.Member(content: request.place?.member.content, user: user)
    guard query != nil || user != nil else { return request.atURL }
    if let place = request.place, place.variation == nil, place.member == member, place.key != nil { return request }
    let section = section(
      of: nil, inSpaceAt: urlKey.urlSpace, for: request, by: proposal,
      askedAt: proposal.removalToken ?? storage.removalToken)
    return request.placed(at: KeyPlace(member, query: query, of: urlKey, in: section))
  }

  /// Returns the place at which a program stores a response to a request; nil for the key of the URL, and for a query that
  /// goes past the cache. Makes the record of the space if there is none.
  ///
  /// - Parameter isMemoryOnly: Whether nothing of the request may reach the disk.
  package func placeForStoring(_ request: CachingClientRequest, isMemoryOnly: Bool) -> KeyPlace? {
    guard storage.usesRequestKeys, request.isQuery || isForOneUser(request), let urlKey = request.urlKey,
      let (member, query) = member(of: request)
    else { return nil }
    let section = section(
      of: nil, inSpaceAt: urlKey.urlSpace, for: request, askedAt: storage.removalToken, isMemoryOnly: isMemoryOnly)
    return KeyPlace(member, query: query, of: urlKey, in: section)
  }

  /// Returns the stored response that a newer one replaces under another key. It would still answer its own URL, or URLs
  /// that are no longer equivalent.
  func replacedEntry(
    by proposal: ProposedResponse, _ plan: Plan, _ outcome: StoreOutcome
  ) -> Storage.Entry? {
    guard let entry = plan.entry, plan.request.place?.query == nil else { return nil }
    if case .stored(let key?) = outcome { return key == plan.request.key ? nil : entry }
    guard let variation = plan.request.place?.variation else { return nil }
    return URLVariation(proposal.fields) == variation ? nil : entry
  }

  // MARK: Records

  /// Returns the section of a variation in a space, which is made if there is none; nil if the space has too many.
  ///
  /// Only one thread at a time makes a section, so that all responses of a burst are stored in the same one. Other
  /// processes make the same section, unless something is removed meanwhile.
  ///
  /// The token is read before the record, and stored with the changed one. So no removal that covers the sections of the
  /// record is missed.
  ///
  /// - Parameters:
  ///   - variation: Nil for the space of a URL.
  ///   - proposal: The response that makes the section. A removal since its permit prevents it. Nil for a response of the
  ///     program.
  ///   - token: A removal token from before this call.
  private func section(
    of variation: URLVariation?, inSpaceAt key: RequestKey, for request: CachingClientRequest,
    by proposal: ProposedResponse? = nil, askedAt token: RemovalToken, isMemoryOnly: Bool = false
  ) -> KeySpace.Section? {
    func stored() -> KeySpace? { storage.keySpaceRecord(at: key).flatMap { KeySpace($0) } }
    if let section = stored()?.section(of: variation) { return section }
    return state.spaceChanges.withLock { _ in
      let known = stored()
      if let section = known?.section(of: variation) { return section }
      let section = KeySpace.Section(variation, number: storage.keySpaceNumber(at: token))
      var space = known ?? KeySpace(section)
      if known != nil, !space.add(section) { return nil }
      var record = space.record(at: clock(), isShared: options.mode == .shared)
      record.permit = proposal?.permit
      record.removalToken = token
      record.isMemoryOnly = proposal?.isMemoryOnly ?? isMemoryOnly
      storage.store(record, for: request.forSpace(key))
      return section
    }
  }
}

/// The places of a request. Functions of the request, because an initializer of a place would copy it.
extension CachingClientRequest {
  /// Returns the place in the space of the URL with a record; nil for a URL without a key.
  @usableFromInline
  func place(_ member: RequestKey.Member, _ query: KeyPlace.Query?, _ record: HeaderFields?) -> KeyPlace? {
    guard let urlKey else { return nil }
    var position = 0
    let section = record.flatMap { KeySpace.nextSection(in: $0, &position) }
    return KeyPlace(member, query: query, of: urlKey, in: section)
  }

  /// Returns the place of the URL among the equivalent URLs of its path; nil if the section is none of a path.
  @usableFromInline
  func equivalentPlace(in section: KeySpace.Section, _ user: String?) -> KeyPlace? {
    urlKey.flatMap { KeyPlace(equivalent: $0, user: user, in: section) }
  }

  /// Whether the request has credentials, in a field or in its URL.
  @usableFromInline var hasCredentials: Bool { namesUser || head.fields.contains("authorization") }
}
