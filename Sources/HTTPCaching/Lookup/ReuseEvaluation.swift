#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// The full evaluation of a request and a stored response, as a sequence of checks.
struct ReuseEvaluation {
  /// Whether the stored response may be used without contacting the origin.
  private enum Permission {
    case fresh(Rule)
    case stale(revalidatesInBackground: Bool, Rule)
    case askOrigin(Rule)
  }

  private let request: RequestHead
  private let freshness: FreshnessInfo
  private let status: Int
  private let policy: RequestPolicy
  private let now: Date
  private let options: CachingOptions
  private let directives: RequestDirectives
  private let age: Double
  /// Records the checks; nil unless the decision is explained.
  private let trace: DecisionTrace?

  init(
    request: RequestHead, freshness: FreshnessInfo, status: Int, policy: RequestPolicy, now: Date,
    options: CachingOptions, trace: DecisionTrace? = nil
  ) {
    self.request = request
    self.freshness = freshness
    self.status = status
    self.policy = policy
    self.now = now
    self.options = options
    directives = RequestDirectives(request.fields)
    age = freshness.currentAge(at: now)
    self.trace = trace
  }

  func decide(_ stored: some StoredResponseMetadata) -> ReuseDecision {
    // 9111 4: unsafe and unknown methods are written through.
    let isForwarded = request.method != "GET" && request.method != "HEAD"
    if trace.check(.writeThrough, isForwarded, [.text("method", request.method)]) {
      let isForbidden = policy == .returnCacheDataDontLoad
      return trace.check(.doNotLoad, isForbidden) ? .gatewayTimeout(.doNotLoad) : forward(.writeThrough)
    }
    if trace.check(.reload, policy.ignoresStoredResponses) { return ifNetworkPermitted(forward(.reload)) }
    // 9111 5.2.1.5: a request that forbids storing is not served from storage either.
    if trace.check(.requestNoStore, directives.noStore) { return ifNetworkPermitted(forward(.requestNoStore)) }
    // 9111 4.3.2: only the origin can evaluate these two conditions.
    let isConditional = request.fields.contains("if-match") || request.fields.contains("if-unmodified-since")
    if trace.check(.precondition, isConditional) { return ifNetworkPermitted(forward(.precondition)) }

    switch permission() {
    case .fresh(let rule): return decideResponse(stored, rule, isStale: false, inBackground: false)
    case .stale(let inBackground, let rule):
      return decideResponse(stored, rule, isStale: true, inBackground: inBackground)
    case .askOrigin(let rule): return ifNetworkPermitted(validate(stored, rule))
    }
  }

  // MARK: Permission to use the stored response

  private func permission() -> Permission {
    // Responses stored in private mode must not be used in a shared cache; in the other case the lifetimes differ.
    let isOtherMode = freshness.flags.contains(.sharedMode) != (options.mode == .shared)
    if trace.check(.modeChanged, isOtherMode) { return .askOrigin(.modeChanged) }
    // Not even a caller that accepts any age gets a response that may have been removed.
    if freshness.flags.contains(.suspect) {
      trace.conclude(.suspect)
      return .askOrigin(.suspect)
    }
    // The caller accepts any age (9111 4.2.4), so no condition of the origin applies.
    if policy == .returnCacheDataElseLoad || policy == .returnCacheDataDontLoad { return anyAge() }
    // 9111 5.2.2.4
    if trace.check(.noCache, freshness.flags.contains(.noCache)) { return .askOrigin(.noCache) }
    // 9111 5.2.1.4 and 5.4
    if trace.check(.requestNoCache, directives.noCache) { return .askOrigin(.requestNoCache) }
    if trace.check(.pragma, directives.pragmaNoCache) { return .askOrigin(.pragma) }

    let isFresh = freshness.isFresh(at: now)
    if policy == .reloadRevalidatingCacheData {
      // 8246 2: a reload does not validate a fresh immutable response.
      let isCurrent = isFresh && freshness.flags.contains(.immutable)
      if trace.check(.immutable, isCurrent, lifetimeFigures) { return .fresh(.immutable) }
      trace.conclude(.revalidate)
      return .askOrigin(.revalidate)
    }
    guard isFresh else { return stalePermission(staleness: age - freshness.lifetime) }
    let endsSoon = directives.minFresh.map { freshness.lifetime - age < $0 } ?? false
    // 9111 5.2.1.1. Reloads send max-age=0: 8246 2 and 2.1.
    let maximum = directives.maxAge
    let isTooOld = maximum.map { $0 == 0 || age > $0 } ?? false
    if trace.check(.requestMaxAge, isTooOld, .given(("age", age), ("max-age of the request", maximum))),
      let maximum
    {
      if maximum == 0, trace.check(.immutable, freshness.flags.contains(.immutable)) { return .fresh(.immutable) }
      let isPermitted = directives.maxStale.map { age - maximum <= $0 && !endsSoon } ?? false
      guard trace.check(.maxStale, isPermitted, .given(("max-stale of the request", directives.maxStale))) else {
        return .askOrigin(.requestMaxAge)
      }
      return .fresh(.maxStale)
    }
    // 9111 5.2.1.3
    if trace.check(.minFresh, endsSoon, .given(("left", freshness.lifetime - age), ("min-fresh", directives.minFresh)))
    {
      return .askOrigin(.minFresh)
    }
    trace.conclude(.fresh, lifetimeFigures)
    return .fresh(.fresh)
  }

  private var lifetimeFigures: [DecisionCheck.Figure] {
    let ahead = freshness.isFromFuture(at: now) ? freshness.responseTime.timeIntervalSince(now) : nil
    return .given(("age", age), ("lifetime", freshness.lifetime), ("received after now by", ahead))
  }

  /// Permits the stored response for a policy that accepts any age.
  private func anyAge() -> Permission {
    let isFresh = freshness.isFresh(at: now) && !freshness.flags.contains(.noCache)
    if trace.check(.fresh, isFresh, lifetimeFigures) { return .fresh(.fresh) }
    trace.conclude(.anyAge)
    return .stale(revalidatesInBackground: false, .anyAge)
  }

  /// Decides whether a stale response may be used without the origin.
  /// - Parameter staleness: The seconds since the end of the lifetime.
  private func stalePermission(staleness: Double) -> Permission {
    _ = trace.check(.fresh, false, lifetimeFigures)
    // 9111 5.2.2.2, 5.2.2.8 and 5.2.2.10
    if let forbidding = Self.staleForbidden(freshness, options) {
      trace.conclude(forbidding)
      return .askOrigin(forbidding)
    }
    // A response marked as stale is known to be outdated, not only old.
    guard !freshness.flags.contains(.stale) else {
      trace.conclude(.stale, [.text("known", "outdated")])
      return .askOrigin(.stale)
    }
    // 9111 5.2.1.2, within the limit of the request's max-age.
    let limit = directives.maxAge.map { min($0, freshness.lifetime) } ?? freshness.lifetime
    let isFromFuture = freshness.isFromFuture(at: now)
    // An unknown age is within no limit. A malformed max-stale is negative, as is the staleness if the clock was set
    // back since a soft purge.
    let isAccepted =
      directives.maxStale.map {
        $0 >= (isFromFuture ? FreshnessInfo.maximumSeconds : 0) && age - limit <= $0 && directives.minFresh == nil
      } ?? false
    if trace.check(
      .maxStale, isAccepted, .given(("stale for", staleness), ("max-stale of the request", directives.maxStale)))
    {
      return .stale(revalidatesInBackground: false, .maxStale)
    }
    // 5861 3, unless the request requires a fresher response.
    let window = freshness.hasUnknownStaleness(at: now) ? -1 : freshness.staleWhileRevalidate
    // A max-stale that would permit this response has been accepted above.
    let isPermitted =
      directives.maxStale == nil && directives.minFresh == nil && directives.maxAge.map { age <= $0 } ?? true
    let isInWindow = window >= 0 && staleness <= window && isPermitted
    if trace.check(
      .staleWhileRevalidate, isInWindow, .given(("stale for", staleness), ("window", window >= 0 ? window : nil)))
    {
      return .stale(revalidatesInBackground: !directives.onlyIfCached, .staleWhileRevalidate)
    }
    let rule: Rule = freshness.flags.contains(.softPurged) ? .softPurged : isFromFuture ? .clockSetBack : .stale
    trace.conclude(rule, lifetimeFigures)
    return .askOrigin(rule)
  }

  /// Returns the rule that forbids stale responses even if the origin fails.
  static func staleForbidden(_ freshness: FreshnessInfo, _ options: CachingOptions) -> Rule? {
    if freshness.flags.contains(.suspect) { return .suspect }
    if freshness.flags.contains(.noCache) { return .noCache }
    if freshness.flags.contains(.mustRevalidate) { return .mustRevalidate }
    if options.mode == .shared, freshness.flags.contains(.proxyRevalidate) { return .proxyRevalidate }
    return nil
  }

  // MARK: Requests to the origin

  /// Returns `decision`, which contacts the origin, if the client permits the network; otherwise 504.
  private func ifNetworkPermitted(_ decision: ReuseDecision) -> ReuseDecision {
    if trace.check(.doNotLoad, policy == .returnCacheDataDontLoad) { return .gatewayTimeout(.doNotLoad) }
    // 9111 5.2.1.7
    return trace.check(.onlyIfCached, directives.onlyIfCached) ? .gatewayTimeout(.onlyIfCached) : decision
  }

  private func forward(_ rule: Rule) -> ReuseDecision {
    .fetch(staleOnError: .forbidden, rule)
  }

  /// Returns the request to the origin that validates `stored`, or that fetches its missing range.
  private func validate(_ stored: some StoredResponseMetadata, _ rule: Rule) -> ReuseDecision {
    // An incomplete response satisfies only ranges within it. Otherwise request the missing bytes; If-Range validates
    // the stored part.
    if freshness.flags.contains(.incomplete) {
      switch PreconditionEvaluation(
        request: request, now: now, rule: rule, isStale: true, revalidatesInBackground: false
      )
      .decide(stored)
      {
      case .partial, .notModified, .unsatisfiableRange: break
      default:
        return PartialContent.completion(of: stored, for: request).map { .fetchMissingRange(fields: $0, rule) }
          ?? forward(rule)
      }
    }
    let conditional = Reuse.validation(of: stored)
    let staleOnError = StaleOnError(
      freshness: freshness, now: now, directives: directives, policy: policy, options: options)
    return conditional.isEmpty
      ? .fetch(staleOnError: staleOnError, rule)
      : .revalidate(conditional: conditional, staleOnError: staleOnError, rule)
  }

  // MARK: Responding

  private func decideResponse(
    _ stored: some StoredResponseMetadata, _ rule: Rule, isStale: Bool, inBackground: Bool
  ) -> ReuseDecision {
    let decision = PreconditionEvaluation(
      request: request, now: now, rule: rule, isStale: isStale, revalidatesInBackground: inBackground, trace: trace
    ).decide(stored)
    guard case .fetch(_, let reason) = decision else { return decision }
    if reason == .completePart, let fields = PartialContent.completion(of: stored, for: request) {
      return ifNetworkPermitted(.fetchMissingRange(fields: fields, .completePart))
    }
    return ifNetworkPermitted(decision)
  }
}
