/// The choices that RFC 9111 leaves to a cache. By default the cache is private and does only what the origin allows.
///
/// Lifetimes are computed when a response is stored, so a changed option affects only responses stored afterwards. A
/// response that was stored in the other mode is validated before use.
public struct CachingOptions: Sendable, Hashable {
  /// The users of the cache.
  public enum Mode: Sendable, Hashable {
    /// One user: `private` responses can be stored; `s-maxage` and `proxy-revalidate` are ignored.
    case `private`
    /// Many users: the rules of RFC 9111 for shared caches apply.
    case shared
  }

  /// The users of the cache; one user by default.
  public var mode = Mode.private
  /// Whether a shared cache reuses responses to requests with `Authorization` for other credentials; true by default.
  ///
  /// The origin must permit it with `public`, `s-maxage` or `must-revalidate` (RFC 9111, section 3.5). Requests without
  /// credentials then also match.
  ///
  /// Set this to false if origins send `public` for responses meant for one user. `Vary: Authorization` always
  /// separates users. No effect in a private cache, which never returns such a response to another user.
  public var reusesAuthorizedResponses = true
  /// The fraction of the time from `Last-Modified` to `Date` used as heuristic lifetime; 0.1 by default, 0 disables it.
  ///
  /// It applies if the origin declares no lifetime (RFC 9111, section 4.2.2).
  public var heuristicFraction = 0.1
  /// The maximum heuristic lifetime in seconds; seven days by default.
  public var heuristicMaximum: Double = 7 * 86_400
  /// The lifetime in seconds of a heuristically cacheable response without lifetime and `Last-Modified`.
  ///
  /// None by default: such a response is validated before each use.
  public var defaultLifetime: Double?
  /// The targeted fields for this cache, most specific first; none by default (RFC 9213).
  ///
  /// For example `["CDN-Cache-Control"]`.
  public var targetedFieldNames: [String] = []
  /// The seconds for which a stale response can be served if the origin fails; none by default.
  ///
  /// Used for responses without `stale-if-error`, if no directive forbids it (RFC 5861, section 4).
  public var staleIfErrorByDefault: Double?
  /// Whether a stale response can be served while the origin is unreachable; false by default.
  ///
  /// Only if no directive forbids it (RFC 9111, section 4.2.4).
  public var servesStaleWhenUnreachable = false
  /// The time after which a stale response is served while the origin does not respond; five seconds by default, `nil`
  /// for never.
  ///
  /// It applies where `stale-if-error` permits the stored response (RFC 5861, section 4). The request to the origin
  /// goes on, and its response is stored. Zero or less serves the stale response at once.
  public var staleAfter: Duration? = .seconds(5)
  /// How long requests that a stored response can satisfy do not ask an origin that has failed; 1 to 30 seconds by
  /// default, `nil` to ask with each request.
  ///
  /// A failure is one after which the stored response may be served (``StaleOnError``), or one of a validation in the
  /// background. The time begins with the lower bound, and doubles with each further failure up to the upper bound.
  /// After it, one request per URL asks again; after a 500, one for each user and content. Requests that need the
  /// origin are never held off: those with `no-cache`, and all after a purge. Negative times count as zero, with which
  /// no request is held off.
  public var holdOff: ClosedRange<Duration>? = .seconds(1)...(.seconds(30))
  /// The time without progress after which a request no longer waits for the fetch of an equal request, and asks the
  /// origin itself; ten seconds by default, `nil` for its own time limit alone.
  ///
  /// A request with a shorter time limit waits for half of that limit. Later requests do not join such a fetch.
  /// Requests that read along a body which no longer arrives share one request for the rest, if they have no bytes yet
  /// or the body has a strong entity tag. With zero or less, requests do not wait for each other; to switch sharing off
  /// for some of them, use `RequestOverrides.allowsCoalescing`.
  public var coalescingTimeout: Duration? = .seconds(10)
  /// How long a transfer may wait for the storage in all, and for an eighth of its own time; one second by default.
  /// Then its body is not stored.
  package var storageWaitLimit: Duration = .seconds(1)
  /// Whether 206 responses are stored and combined; true by default (RFC 9111, sections 3.3 and 3.4).
  public var storesPartialContent = true
  /// Whether a stored response with No-Vary-Search is used for URLs that differ only in parts of the query that it
  /// names; true by default (draft-ietf-httpbis-no-vary-search).
  public var usesNoVarySearch = true
  /// The fields that have the tags of a response, by which it can be purged; `Cache-Groups` by default (RFC 9875).
  ///
  /// For example `["Surrogate-Key", "Cache-Groups"]`; ``ResponseTags`` has the syntax of each field. A purge finds the
  /// tags in the stored fields, so another list applies to responses that are stored already, too. A response with more
  /// than 1,000 tags, or more than 16 KiB of them, is not stored.
  public var tagFieldNames = ["Cache-Groups"]
  /// The cache name in a `Cache-Status` field added to responses; no field by default (RFC 9211).
  public var cacheStatusName: String?

  /// Creates the default options.
  public init() {}
}
