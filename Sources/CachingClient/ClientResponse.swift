public import HTTPCaching

/// Where an answer came from.
public enum ResponseSource: String, Sendable, Hashable, CaseIterable {
  /// From the store, fresh; nobody was asked.
  case store
  /// From the store, stale and permitted to be so.
  case staleStore
  /// From the store, after the origin confirmed it.
  case revalidated
  /// From the store, stale, because the origin failed.
  case staleOnError
  /// From the origin.
  case network
  /// From the origin, by way of an identical request that was already under way.
  case coalesced
  /// Made here: the network must not be asked and nothing suitable is stored. The status is 504 (RFC 9111 section 5.2.1.7).
  case unavailable
}

/// An answer of a ``CachingClient``.
public struct ClientResponse<Entry: StoredResponseView & Sendable>: Sendable {
  /// What the head is made of. Building fields costs allocations, so a hit leaves that to whoever reads ``head``.
  @usableFromInline
  enum Content: Sendable {
    case given(HTTPFields)
    /// Given, and not to be stored. Apart in memory, so that hits stay small.
    indirect case refused(HTTPFields, Rule)
    case entry(AnswerKind)
  }

  /// The status code.
  public let status: Int
  /// The body; at hand (``ResponseBody/bytes``) for every answer from the store.
  public let body: ResponseBody
  /// Where it came from.
  public let source: ResponseSource
  /// Its age in whole seconds; 0 for an answer from the origin that says nothing of its age.
  public let age: Int
  /// Why it was answered this way.
  public let reason: Rule
  /// The stored response it was made from; `nil` if it came from the network.
  public let entry: Entry?

  @usableFromInline let content: Content
  @usableFromInline let cacheStatus: CacheStatus?

  @inlinable
  init(
    status: Int, body: ResponseBody, source: ResponseSource, age: Int, reason: Rule, entry: Entry?, content: Content,
    cacheStatus: CacheStatus?
  ) {
    self.status = status
    self.body = body
    self.source = source
    self.age = age
    self.reason = reason
    self.entry = entry
    self.content = content
    self.cacheStatus = cacheStatus
  }

  /// Why a response from the origin is not stored, where that was clear when its head had come; `nil` for one that is stored
  /// or may be when its body is complete, and for answers from the store.
  public var refusal: Rule? {
    if case .refused(_, let rule) = content { rule } else { nil }
  }

  /// Whether status and fields are those of ``entry`` with nothing changed but the Age, and the body, for a GET, is the whole
  /// stored one. A head prepared in advance may then be used in place of ``head``.
  public var isWholeEntry: Bool {
    // Cache-Status tells the seconds left, so it is never prepared.
    guard cacheStatus == nil else { return false }
    return if case .entry(.whole) = content { true } else { false }
  }

  /// Status and fields, with Age for an answer from the store, and Cache-Status if that is switched on.
  ///
  /// - Complexity: built anew at each access for an answer from the store.
  public var head: ResponseHead {
    var fields: HTTPFields
    switch (content, entry) {
    case (.given(let given), _), (.refused(let given, _), _): fields = given
    case (.entry(let kind), let entry?): fields = kind.fields(of: entry, age: age)
    case (.entry, nil): preconditionFailure("an answer from the store has its entry")
    }
    cacheStatus?.append(to: &fields)
    return ResponseHead(status: status, fields: fields)
  }
}
