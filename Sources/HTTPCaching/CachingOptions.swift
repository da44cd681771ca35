/// The choices RFC 9111 leaves to a cache. The defaults make a private cache that does nothing the origin did not allow.
///
/// Lifetimes are computed when a response is stored, so another choice holds for what is stored from then on. A response that
/// was stored in the other mode is validated before it is used.
public struct CachingOptions: Sendable, Hashable {
  /// Whom the cache serves.
  public enum Mode: Sendable, Hashable {
    /// One user: `private` may be stored, `s-maxage` and `proxy-revalidate` do not bind.
    case `private`
    /// Many users: RFC 9111's rules for shared caches hold.
    case shared
  }

  /// Whom the cache serves. Default: one user.
  public var mode = Mode.private
  /// The share of the time between `Last-Modified` and `Date` that counts as lifetime when the origin gave none.
  /// Default: 0.1; 0 turns heuristics off. RFC 9111, 4.2.2.
  public var heuristicFraction = 0.1
  /// The longest heuristic lifetime in seconds. Default: seven days.
  public var heuristicMaximum: Double = 7 * 86_400
  /// The lifetime in seconds of a heuristically cacheable response that carries neither a lifetime nor `Last-Modified`.
  /// Default: none, such a response is validated before each use.
  public var defaultLifetime: Double?
  /// The targeted fields that concern this cache, most specific first, for example `["CDN-Cache-Control"]`.
  /// Default: none. RFC 9213.
  public var targetedFieldNames: [String] = []
  /// For how many seconds past its lifetime a response may be served when the origin fails, where nothing forbids it
  /// and the origin gave no `stale-if-error`. Default: none. RFC 5861, 4.
  public var staleIfErrorByDefault: Double?
  /// Whether a stale response may be served when the origin cannot be reached at all, where nothing forbids it.
  /// RFC 9111, 4.2.4 allows it; default: no, an error is an error.
  public var servesStaleWhenUnreachable = false
  /// Whether 206 responses are stored and combined. Default: yes. RFC 9111, 3.3 and 3.4.
  public var storesPartialContent = true
  /// The name under which answers carry a `Cache-Status` member. Default: none, the field is not added. RFC 9211.
  public var cacheStatusName: String?

  /// The defaults.
  public init() {}
}
