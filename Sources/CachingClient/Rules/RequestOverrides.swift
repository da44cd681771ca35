import FoundationEssentials
import HTTPCaching

/// Overrides of HTTP's caching rules for one request. They are applied before any decision.
public struct RequestOverrides: Sendable, Hashable {
  /// The freshness lifetime in seconds, regardless of the response's fields.
  ///
  /// With `nil`, the default, or a negative number, the response's fields decide. A forced lifetime replaces the stored
  /// response's Cache-Control, Expires, Pragma and Age by `Cache-Control: max-age`. It makes successful responses,
  /// redirects, 404 and 410 storable. It does not change the rules for other errors or for a request with `no-store`.
  public var lifetime: Double?

  /// The names of response fields to ignore, for example `Vary` or `Set-Cookie`, in any case.
  ///
  /// The response from the network keeps these fields. The stored response does not have them.
  public var ignoredResponseFields: [String]

  /// The names of query parameters to leave out of the cache key, for example a token or a tracking ID.
  ///
  /// They are sent to the origin. Names are compared as they are in the URL, without percent-decoding. The redirect of
  /// a URL with such a parameter is not stored, because its `Location` usually repeats the parameter.
  public var ignoredQueryParameters: Set<String>

  /// Whether the request may share a fetch with identical requests, as leader or follower. The default is true.
  ///
  /// If false, the request fetches its own response when no stored response is usable. Use false for a resource whose
  /// origin delays its responses on purpose, such as long polling.
  public var allowsCoalescing: Bool

  /// Whether the response can be stored. The default is true.
  ///
  /// If false, no response is stored, and a new response from the origin removes the stored one. Until then the stored
  /// response is used as HTTP permits.
  public var allowsStoring: Bool

  /// Whether a POST is a query: safe, and answered from the cache if its URL, content and the fields that change the
  /// content's meaning are the same. The default is false.
  ///
  /// Use true for an API that only searches, for example GraphQL without mutations. A POST that changes anything would
  /// not reach the origin. No effect on other methods; QUERY (RFC 10008) always is a query.
  public var treatsAsQuery: Bool

  /// Makes contents of queries equal in the cache key that mean the same to the origin. The default is none: each byte
  /// counts.
  ///
  /// It does not change what is sent. No effect on requests with `Cache-Control: no-transform` or `Content-Encoding`
  /// (RFC 10008, section 2.7).
  public var queryNormalForm: QueryNormalForm? {
    get { extras?.normalForm }
    set { extras = OverrideExtras(newValue, responseRules, staleAfter) }
  }

  /// The seconds after which a stale response is served while the origin does not respond; infinity for never. With
  /// nil, the default, ``/HTTPCaching/CachingOptions/staleAfter`` decides.
  public var staleAfter: Double? {
    get { extras?.staleAfter }
    set { extras = OverrideExtras(queryNormalForm, responseRules, newValue) }
  }

  /// The rules that match the request, in their order, if one of them depends on the media type of the response.
  var responseRules: [RuleMatcher] {
    get { extras?.responseRules ?? [] }
    set { extras = OverrideExtras(queryNormalForm, newValue, staleAfter) }
  }

  /// The members that few overrides have; nil for the others, so that they stay small.
  private var extras: OverrideExtras?

  /// Creates overrides; by default none.
  public init(
    lifetime: Double? = nil, ignoredResponseFields: [String] = [], ignoredQueryParameters: Set<String> = [],
    allowsCoalescing: Bool = true, allowsStoring: Bool = true, treatsAsQuery: Bool = false,
    queryNormalForm: QueryNormalForm? = nil, staleAfter: Double? = nil
  ) {
    self.lifetime = lifetime
    self.ignoredResponseFields = ignoredResponseFields
    self.ignoredQueryParameters = ignoredQueryParameters
    self.allowsCoalescing = allowsCoalescing
    self.allowsStoring = allowsStoring
    self.treatsAsQuery = treatsAsQuery
    // The initializer allocates an object even if it returns nil.
    if queryNormalForm != nil || staleAfter != nil { extras = OverrideExtras(queryNormalForm, [], staleAfter) }
  }

  /// Returns the URL for the cache key: without the ignored query parameters, and without a query if none is left.
  public func keyURL(for url: URL) -> URL {
    guard !ignoredQueryParameters.isEmpty else { return url }
    let text = url.absoluteString
    let beforeFragment = text[..<(text.firstIndex(of: "#") ?? text.endIndex)]
    guard let mark = beforeFragment.firstIndex(of: "?") else { return url }
    let query = beforeFragment[beforeFragment.index(after: mark)...]
    let kept = query.split(separator: "&", omittingEmptySubsequences: false).filter { parameter in
      !ignoredQueryParameters.contains(String(parameter.prefix { $0 != "=" }))
    }
    let stripped = beforeFragment[..<mark] + (kept.isEmpty ? "" : "?" + kept.joined(separator: "&"))
    // A valid URL stays valid without some of its parameters. If parsing fails nevertheless, the full URL is safe.
    return URL(string: String(stripped)) ?? url
  }

  /// Returns the rule because of which a response must not be stored; nil if none of the overrides forbids it.
  func refusal(ofStatus status: Int, to url: URL) -> Rule? {
    guard allowsStoring else { return .storingDisallowed }
    let hasIgnored = !ignoredQueryParameters.isEmpty && keyURL(for: url).query != url.query
    return hasIgnored && Redirection.isRedirect(status) ? .redirectOfIgnoredParameter : nil
  }

  /// Returns the overrides for a response, with those of the rules for its media type.
  ///
  /// - Parameter contentType: The `Content-Type` of the response from the origin, or of the stored one.
  package func resolved(forContentType contentType: String?) -> RequestOverrides {
    guard !responseRules.isEmpty else { return self }
    var resolved = self
    resolved.responseRules = []
    (resolved.lifetime, resolved.ignoredResponseFields, resolved.allowsStoring) = (nil, [], true)
    let type = MediaType.name(inContentType: contentType)
    for matcher in responseRules where matcher.matches(mediaType: type) { matcher.rule.apply(to: &resolved) }
    return resolved
  }

  /// Whether a response to the request may be stored, as far as that is known without it.
  var mayStore: Bool { allowsStoring && !responseRules.contains { $0.rule.allowsStoring == false } }

  /// Returns the response head with these overrides, as input for decisions.
  public func applied(to head: ResponseHead) -> ResponseHead {
    guard responseRules.isEmpty else {
      return resolved(forContentType: head.fields["Content-Type"]).applied(to: head)
    }
    guard lifetime != nil || !ignoredResponseFields.isEmpty else { return head }
    var head = head
    for name in ignoredResponseFields { head.fields.remove(name) }
    if let lifetime = forcedLifetime(for: head.status) {
      for name in ["Expires", "Pragma", "Age"] { head.fields.remove(name) }
      head.fields.set("Cache-Control", "max-age=\(Int(lifetime))")
    }
    return head
  }

  /// Returns the freshness with the forced lifetime.
  ///
  /// The lifetime counts from receipt, so a wrong clock of the server has no effect.
  public func applied(to freshness: FreshnessInfo, status: Int) -> FreshnessInfo {
    guard let lifetime = forcedLifetime(for: status) else { return freshness }
    var freshness = freshness
    freshness.initialAge = 0
    freshness.lifetime = lifetime
    freshness.flags.remove(.stale)
    return freshness
  }

  private func forcedLifetime(for status: Int) -> Double? {
    guard let lifetime, lifetime >= 0 else { return nil }
    switch status {
    case 200..<400, 404, 410: return min(lifetime, FreshnessInfo.maximumSeconds)
    default: return nil
    }
  }
}

/// The members of overrides that few have.
private final class OverrideExtras: Sendable, Hashable {
  let normalForm: QueryNormalForm?
  let responseRules: [RuleMatcher]
  let staleAfter: Double?

  /// Creates the members; nil if none is set.
  init?(_ normalForm: QueryNormalForm?, _ responseRules: [RuleMatcher], _ staleAfter: Double?) {
    guard normalForm != nil || !responseRules.isEmpty || staleAfter != nil else { return nil }
    self.normalForm = normalForm
    self.responseRules = responseRules
    self.staleAfter = staleAfter
  }

  static func == (left: OverrideExtras, right: OverrideExtras) -> Bool {
    left.normalForm == right.normalForm && left.responseRules == right.responseRules
      && left.staleAfter == right.staleAfter
  }

  func hash(into hasher: inout Hasher) {
    hasher.combine(staleAfter)
    hasher.combine(normalForm)
    hasher.combine(responseRules)
  }
}
