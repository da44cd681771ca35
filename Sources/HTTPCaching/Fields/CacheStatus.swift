/// The handling of a request by a cache: one member of a `Cache-Status` field (RFC 9211).
///
/// It has no `detail`, which can help an attacker (RFC 9211, section 6).
public struct CacheStatus: Sendable, Hashable {
  /// The reason why a request was forwarded (RFC 9211, section 2.2).
  public enum Forward: String, Sendable, Hashable, CaseIterable {
    /// The cache was configured not to handle the request.
    case bypass
    /// The semantics of the method require it.
    case method
    /// No response was stored for the URI.
    case uriMiss = "uri-miss"
    /// Responses were stored for the URI, but none with a matching Vary key.
    case varyMiss = "vary-miss"
    /// The directives of the request require it.
    case request
    /// The stored response was stale.
    case stale
    /// The stored response is incomplete.
    case partial
  }

  /// The name of the cache.
  public var name: String
  /// The reason for forwarding the request; `nil` for a hit.
  public var forward: Forward?
  /// The status of the response to the forwarded request, if it differs from the response to the client.
  public var forwardStatus: Int?
  /// The remaining freshness lifetime (TTL) in seconds; negative when stale.
  public var timeToLive: Int?
  /// Whether the response to the forwarded request was stored.
  public var isStored = false
  /// Whether the request was coalesced with another forwarded request.
  public var isCollapsed = false

  /// Creates a status.
  public init(name: String, forward: Forward? = nil, timeToLive: Int? = nil) {
    self.name = name
    self.forward = forward
    self.timeToLive = timeToLive
  }

  /// The member as in the field: the name as a token or string, then either `hit` or `fwd`.
  ///
  /// `fwd-status`, `stored` and `collapsed` occur only with `fwd` (RFC 9211, section 2).
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
    return text
  }

  /// Appends the member to the `Cache-Status` of `fields`, after those of caches closer to the origin.
  public func append(to fields: inout HeaderFields) {
    fields.append(name: "Cache-Status", value: rendered)
  }

  /// Limits an integer to the 15 digits of structured fields.
  private static func clamped(_ value: Int) -> Int {
    max(-999_999_999_999_999, min(999_999_999_999_999, value))
  }
}
