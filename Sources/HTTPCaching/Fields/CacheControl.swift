/// The cache directives of a response, from `Cache-Control` or a targeted field (RFC 9111, section 5.2.2).
///
/// If a directive is repeated, the strictest one counts. A malformed directive restricts, but permits nothing: with an
/// argument, for example, `no-store` counts and `public` does not. A malformed lifetime counts as zero, so that the
/// response is stale (section 4.2.1). A malformed list of field names counts as no list, which is stricter. Unknown
/// directives are ignored.
public struct ResponseDirectives: Sendable, Hashable {
  /// `no-store`.
  public var noStore = false
  /// `no-cache` without field names.
  public var noCache = false
  /// The names in `no-cache="…"`, in lowercase.
  public var noCacheFields: [String] = []
  /// `private` without field names.
  public var isPrivate = false
  /// The names in `private="…"`, in lowercase.
  public var privateFields: [String] = []
  /// `public`.
  public var isPublic = false
  /// `must-revalidate`.
  public var mustRevalidate = false
  /// `proxy-revalidate`.
  public var proxyRevalidate = false
  /// `must-understand`.
  public var mustUnderstand = false
  /// Whether a well-formed `must-understand` overrides `no-store` if the status is understood (section 5.2.2.3).
  public var overridesNoStore = false
  /// Whether a shared cache can store the response to a request with `Authorization` (section 3.5).
  ///
  /// A well-formed `public`, `must-revalidate` or `s-maxage` permits it.
  public var permitsStoringAuthorized = false
  /// `no-transform`.
  public var noTransform = false
  /// `immutable`. RFC 8246.
  public var immutable = false
  /// `max-age` in seconds.
  public var maxAge: Double?
  /// `s-maxage` in seconds.
  public var sharedMaxAge: Double?
  /// `stale-while-revalidate` in seconds. RFC 5861.
  public var staleWhileRevalidate: Double?
  /// `stale-if-error` in seconds. RFC 5861.
  public var staleIfError: Double?
  /// Whether the directives come from a targeted field. `Cache-Control` and `Expires` are then ignored (RFC 9213, 2.2).
  public var isTargeted = false

  init() {}

  /// Parses the directives for a cache that obeys the targeted fields `targetedFieldNames`.
  ///
  /// Uses the first of these fields that is present, not empty and well-formed, otherwise `Cache-Control`. No targeted
  /// fields by default.
  public init(_ fields: HeaderFields, targetedFieldNames: [String] = []) {
    for name in targetedFieldNames where fields.contains(name) {
      // RFC 9213, section 2.1: an empty or malformed field is ignored as a whole.
      guard let members = StructuredFields.dictionary(fields.values(of: name)), !members.isEmpty else { continue }
      isTargeted = true
      for (name, value) in members { if let directive = Directive(name, value) { take(directive) } }
      return
    }
    for directive in DirectiveScanner.directives(in: fields.values(of: "cache-control")) { take(directive) }
  }

  private mutating func take(_ directive: Directive) {
    switch directive.name {
    case "no-store": noStore = true
    case "no-cache":
      let names = directive.fieldNames
      if names.isEmpty { noCache = true } else { noCacheFields += names }
    case "private":
      let names = directive.fieldNames
      if names.isEmpty { isPrivate = true } else { privateFields += names }
    case "max-age": maxAge = min(maxAge ?? .infinity, directive.seconds ?? 0)
    case "s-maxage":
      sharedMaxAge = min(sharedMaxAge ?? .infinity, directive.seconds ?? 0)
      if directive.seconds != nil { permitsStoringAuthorized = true }
    // A malformed window becomes -1, which permits no stale response.
    case "stale-while-revalidate":
      staleWhileRevalidate = min(staleWhileRevalidate ?? .infinity, directive.seconds ?? -1)
    case "stale-if-error": staleIfError = min(staleIfError ?? .infinity, directive.seconds ?? -1)
    case "public" where directive.argument == .none:
      isPublic = true
      permitsStoringAuthorized = true
    case "must-revalidate":
      mustRevalidate = true
      if directive.argument == .none { permitsStoringAuthorized = true }
    case "proxy-revalidate": proxyRevalidate = true
    case "must-understand":
      mustUnderstand = true
      if directive.argument == .none { overridesNoStore = true }
    case "no-transform": noTransform = true
    // 8246 2: an argument is ignored.
    case "immutable" where directive.argument != .malformed: immutable = true
    default: break
    }
  }
}

/// The cache directives of a request (RFC 9111, sections 5.2.1 and 5.4).
///
/// If a directive is repeated, the strictest one counts. A malformed `max-age` or `min-fresh` counts as zero. A
/// malformed `max-stale` or `stale-if-error` permits no stale response.
public struct RequestDirectives: Sendable, Hashable {
  /// `no-store`.
  public var noStore = false
  /// `no-cache`.
  public var noCache = false
  /// `Pragma: no-cache` in a request without `Cache-Control`.
  public var pragmaNoCache = false
  /// `only-if-cached`.
  public var onlyIfCached = false
  /// `max-age` in seconds.
  public var maxAge: Double?
  /// `min-fresh` in seconds.
  public var minFresh: Double?
  /// `max-stale` in seconds; ``FreshnessInfo/maximumSeconds`` if the directive has no value.
  public var maxStale: Double?
  /// `stale-if-error` in seconds. RFC 5861.
  public var staleIfError: Double?

  /// Parses the directives in the fields of a request.
  public init(_ fields: HeaderFields) {
    let lines = fields.values(of: "cache-control")
    for directive in DirectiveScanner.directives(in: lines) {
      switch directive.name {
      case "no-store": noStore = true
      case "no-cache": noCache = true
      case "only-if-cached": onlyIfCached = true
      case "max-age": maxAge = min(maxAge ?? .infinity, directive.seconds ?? 0)
      case "min-fresh": minFresh = max(minFresh ?? 0, directive.seconds ?? 0)
      case "max-stale":
        let seconds = directive.argument == .none ? FreshnessInfo.maximumSeconds : directive.seconds ?? -1
        maxStale = min(maxStale ?? .infinity, seconds)
      case "stale-if-error": staleIfError = min(staleIfError ?? .infinity, directive.seconds ?? -1)
      default: break
      }
    }
    if lines.isEmpty {
      pragmaNoCache = DirectiveScanner.directives(in: fields.values(of: "pragma")).contains { $0.name == "no-cache" }
    }
  }
}
