/// How a cache handled a request: one member of a `Cache-Status` field. RFC 9211.
public struct CacheStatus: Sendable, Hashable {
  /// Why a request went forward (RFC 9211, 2.2).
  public enum Forward: String, Sendable, Hashable, CaseIterable {
    /// The cache was told not to handle the request.
    case bypass
    /// The method's semantics ask for it.
    case method
    /// Nothing was stored for the URI.
    case uriMiss = "uri-miss"
    /// Something was stored for the URI, but for other selecting fields.
    case varyMiss = "vary-miss"
    /// Nothing suitable was stored, cause not known.
    case miss
    /// The request's directives ask for it.
    case request
    /// What was stored is stale.
    case stale
    /// What was stored is only a part of what is needed.
    case partial

    /// What the reason of a decision means in these terms. A miss stays `miss`: whether the URI or the selecting fields
    /// missed is known to whoever looked.
    public init(reason: Rule) {
      switch reason {
      case .requestNoStore, .notHTTP: self = .bypass
      case .writeThrough, .methodNotCached, .headOnlyUpdates, .postNotCached: self = .method
      case .miss, .modeChanged: self = .miss
      case .reload, .revalidate, .requestNoCache, .pragma, .requestMaxAge, .minFresh, .precondition, .multipleRanges:
        self = .request
      case .partLacksRange, .completePart: self = .partial
      default: self = .stale
      }
    }
  }

  /// The cache's name.
  public var name: String
  /// Why the request went forward; `nil`: it was a hit.
  public var forward: Forward?
  /// The status of the answer to the forwarded request, if it differs from the answer given.
  public var forwardStatus: Int?
  /// The seconds of freshness left; negative: stale.
  public var timeToLive: Int?
  /// Whether the answer to the forwarded request was stored.
  public var isStored = false
  /// Whether the request was joined with another one that went forward.
  public var isCollapsed = false
  /// Free words, off by default as they can help an attacker (RFC 9211, 6).
  public var detail: String?

  /// A status.
  public init(name: String, forward: Forward? = nil, timeToLive: Int? = nil) {
    self.name = name
    self.forward = forward
    self.timeToLive = timeToLive
  }

  /// The member as the field holds it: the name as a token or string, then `hit` or `fwd` and never both; `fwd-status`,
  /// `stored` and `collapsed` only with `fwd` (RFC 9211, 2).
  public var rendered: String {
    var text = StructuredFields.tokenOrString(name)
    if let forward {
      text += "; fwd=\(forward.rawValue)"
      if let forwardStatus { text += "; fwd-status=\(Self.clamped(forwardStatus))" }
      if isStored { text += "; stored" }
      if isCollapsed { text += "; collapsed" }
    } else {
      text += "; hit"
    }
    if let timeToLive { text += "; ttl=\(Self.clamped(timeToLive))" }
    if let detail { text += "; detail=\(StructuredFields.tokenOrString(detail))" }
    return text
  }

  /// Appends the member to the `Cache-Status` of `fields`, after those of caches nearer to the origin, whose lines stay as
  /// they are.
  public func append(to fields: inout HTTPFields) {
    fields.append(name: "Cache-Status", value: rendered)
  }

  /// An integer of a structured field has at most 15 digits.
  private static func clamped(_ value: Int) -> Int {
    max(-999_999_999_999_999, min(999_999_999_999_999, value))
  }
}
