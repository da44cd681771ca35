import CacheModel
import FoundationEssentials
public import HTTPCaching

/// Lookups and stores in key spaces.
extension CachingClient {
  // MARK: Lookups

  /// Looks a request up under each of its keys, except that of the URL for everybody, which was looked up before.
  ///
  /// - Returns: The response, and the key space's key under which it was found; without a response, that of
  ///   ``forEachKey(of:withoutURL:_:)``.
  @inlinable  // For specialization, like ``evaluate(_:)``.
  func search(_ request: CachingClientRequest) -> (entry: Storage.Entry?, spaceKey: KeySpace.Key?) {
    var entry: Storage.Entry?
    let spaceKey = forEachKey(of: request, withoutURL: true) { key, _ in
      entry = storage.lookup(request, at: key)
      return entry == nil
    }
    return (entry, spaceKey)
  }

  /// Calls a closure for each key under which a response to a request may be stored, until it returns false: first
  /// those of its URL, then those of the equivalent URLs.
  ///
  /// - Parameters:
  ///   - withoutURL: Whether to leave out the key of the URL for everybody, if it is the first one.
  ///   - body: Receives the key, also as the key of a space if it is one.
  /// - Returns: The key for which the closure returned false. Otherwise the one under which a miss looks for the
  ///   response of its fetch. Nil for the key of the URL, and for a query that goes past the cache.
  @inlinable
  package func forEachKey(
    of request: CachingClientRequest, withoutURL: Bool = false, _ body: (RequestKey, KeySpace.Key?) -> Bool
  ) -> KeySpace.Key? {
    guard let urlKey = request.urlKey else { return nil }
    let isShared = options.mode == .shared
    var ofMiss: KeySpace.Key?
    var user: String?
    if request.isQuery || request.hasCredentials {
      guard let (member, query) = member(of: request) else { return nil }
      user = member.user
      let section = spaces[urlKey.urlSpace].flatMap { KeySpace.firstSection(in: $0) }
      if user != nil, isShared {
        // Most responses of a shared cache to requests with credentials are for everybody.
        let everybody = query.map {
          KeySpace.Key(RequestKey.Member(content: member.content), query: $0, of: urlKey, in: section)
        }
        guard body(everybody?.value ?? urlKey, everybody) else { return everybody }
        ofMiss = everybody
      }
      let own = KeySpace.Key(member, query: query, of: urlKey, in: section)
      guard body(own.value, own) else { return own }
      if ofMiss == nil, !isShared || request.isQuery { ofMiss = own }
    } else if !withoutURL {
      guard body(urlKey, nil) else { return nil }
    }
    guard !request.isQuery, options.usesNoVarySearch, spaces.mayHaveEquivalents,
      let record = spaces[urlKey.searchSpace]
    else { return ofMiss }
    var newest: KeySpace.Key?
    var position = 0
    while let section = KeySpace.nextSection(in: record, &position) {
      guard let equivalent = KeySpace.Key(equivalent: urlKey, user: isShared ? nil : user, in: section) else {
        continue
      }
      newest = newest ?? equivalent
      guard body(equivalent.value, equivalent) else { return equivalent }
      guard isShared, user != nil, let own = KeySpace.Key(equivalent: urlKey, user: user, in: section) else { continue }
      guard body(own.value, own) else { return own }
    }
    return newest ?? ofMiss
  }

  /// Returns what distinguishes the response to a request from others of its URL, and the query; nil for a query that
  /// goes past the cache.
  @usableFromInline
  func member(of request: CachingClientRequest) -> (member: RequestKey.Member, query: KeySpace.Key.Query?)? {
    let user = request.hasCredentials ? request.head.credentials.map { storage.credentialDigest($0) } : nil
    guard request.isQuery else { return (RequestKey.Member(user: user), nil) }
    guard let query = request.query else { return nil }
    return (RequestKey.Member(content: digest(of: query.content), user: user), query)
  }

  /// Returns the digest of the content of a query, and its size; nil for another request, and for a query that goes
  /// past the cache.
  func contentOfQuery(_ request: CachingClientRequest) -> (digest: String, byteCount: Int)? {
    request.query.map { digest(of: $0.content) } ?? request.spaceKey?.member.content
  }

  private func digest(of content: QueryContent) -> (digest: String, byteCount: Int) {
    var digest = ""
    content.withKeyedBytes { digest = storage.digest($0) }
    return (digest, content.byteCount)
  }

  /// Returns the requests under all keys at which a response to a request may be stored, in the order of lookups.
  package func lookups(of request: CachingClientRequest) -> [CachingClientRequest] {
    var lookups: [CachingClientRequest] = []
    _ = forEachKey(of: request) { _, spaceKey in
      lookups.append(request.under(spaceKey))
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
    let (request, present) = (plan.request, plan.request.spaceKey)
    let user = proposal.vary.userDigest
    let query = present?.query
    if query == nil, options.usesNoVarySearch, plan.owner == nil, !proposal.freshness.flags.contains(.incomplete),
      let variation = URLVariation(proposal.fields)
    {
      if let present, present.variation == variation, present.member.user == user { return request }
      guard inFlightFetches.invalidationCount == plan.start.invalidationCount else { return nil }
      let section = section(
        of: variation, inSpaceAt: plan.key.searchSpace, by: proposal, askedAt: plan.start.removalToken)
      if let key = section.flatMap({ KeySpace.Key(equivalent: plan.key, user: user, in: $0) }) {
        return request.under(key)
      }
    }
    guard query != nil || user != nil else { return request.under(nil) }
    let member = RequestKey.Member(content: present?.member.content, user: user)
    if let present, present.hasRecord, present.variation == nil, present.member == member { return request }
    let section = section(
      of: nil, inSpaceAt: plan.key.urlSpace, by: proposal, askedAt: proposal.removalToken ?? storage.removalToken)
    return request.under(KeySpace.Key(member, query: query, of: plan.key, in: section))
  }

  /// Returns the stored response that a newer one replaces under another key. It would still answer its own URL, or
  /// URLs that are no longer equivalent.
  ///
  /// - Parameter key: The key under which the newer one is stored; nil if it is not stored.
  func replacedEntry(by proposal: ProposedResponse, _ plan: Plan, storedAt key: RequestKey?) -> Storage.Entry? {
    guard let entry = plan.entry, plan.request.spaceKey?.query == nil else { return nil }
    let isReplaced = key.map { $0 != plan.request.key } ?? !plan.request.keepsKey(with: proposal.fields)
    return isReplaced ? entry : nil
  }

  /// Returns the key under which a program stores a response to a request; nil for a query that goes past the cache.
  /// Makes the record of the space if there is none.
  ///
  /// - Parameter isMemoryOnly: Whether nothing of the request may reach the disk.
  package func keyForStoring(_ request: CachingClientRequest, isMemoryOnly: Bool) -> RequestKey? {
    guard request.isQuery || request.hasCredentials, let urlKey = request.urlKey else { return request.urlKey }
    guard let (member, query) = member(of: request) else { return nil }
    let section = section(
      of: nil, inSpaceAt: urlKey.urlSpace, askedAt: storage.removalToken, isMemoryOnly: isMemoryOnly)
    return KeySpace.Key(member, query: query, of: urlKey, in: section).value
  }

  /// Returns the section of a variation in a space, which is made if there is none; nil if the space has too many.
  ///
  /// - Parameters:
  ///   - variation: Nil for the space of a URL.
  ///   - proposal: The response that makes the section. A removal since its permit prevents it. Nil for a response of
  ///     the program.
  ///   - token: A removal token from before this call.
  private func section(
    of variation: URLVariation?, inSpaceAt key: RequestKey, by proposal: ProposedResponse? = nil,
    askedAt token: RemovalToken, isMemoryOnly: Bool = false
  ) -> KeySpace.Section? {
    spaces.section(of: variation, inSpaceAt: key, askedAt: token) { space in
      guard let request = CachingClientRequest(forRecordAt: key) else { return }
      var record = space.record(at: clock(), isShared: options.mode == .shared)
      record.permit = proposal?.permit
      record.removalToken = token
      record.isMemoryOnly = proposal?.isMemoryOnly ?? isMemoryOnly
      storage.store(record, for: request)
    }
  }
}
