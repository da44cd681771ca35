#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// Decides how to respond to a request (RFC 9111, section 4).
public enum Reuse {
  /// Decides how to respond to `request` if `stored` matches its cache key and `VaryKey` (RFC 9111, 4 and 5.2.1).
  ///
  /// `stored` is a response to GET, for GET requests and, without its body, for HEAD requests. A plain fresh hit (for a
  /// request without caching-related fields) reads only `stored.freshness` and allocates nothing.
  /// - Parameters:
  ///   - request: The client's request, including its conditions and ranges.
  ///   - stored: The matching response. Its `fields` are read only if the decision needs them.
  ///   - policy: The policy from the client's API, in addition to the request's fields.
  ///   - now: The current time, from the same clock as the stored freshness.
  ///   - options: The options of the cache. A response that was stored in the other mode is validated.
  public static func decide(
    request: RequestHead, stored: some StoredResponseMetadata, policy: RequestPolicy, now: Date, options: CachingOptions
  ) -> ReuseDecision {
    let freshness = stored.freshness
    // The plain fresh hit: neither the request nor the freshness flags require a full evaluation.
    if policy == .useProtocolCachePolicy, request.method == "GET", freshness.flags.isDisjoint(with: .needsCloserLook),
      freshness.flags.contains(.sharedMode) == (options.mode == .shared), freshness.isFresh(at: now),
      !request.fields.hasCachingFields
    {
      return .serve(age: freshness.wholeAge(at: now), .fresh)
    }
    let evaluation = ReuseEvaluation(
      request: request, freshness: freshness, status: stored.status, policy: policy, now: now, options: options)
    return evaluation.decide(stored)
  }

  /// Decides what to do if no usable response is stored.
  ///
  /// Returns `gatewayTimeout` if the policy or `only-if-cached` forbids the network (RFC 9111, section 5.2.1.7),
  /// `bypass` for requests that a cache does not handle, and otherwise `fetch`.
  public static func decideMiss(request: RequestHead, policy: RequestPolicy, options: CachingOptions) -> MissDecision {
    decideMiss(request: request, policy: policy, options: options, trace: nil)
  }

  /// Decides like ``decideMiss(request:policy:options:)``, and records each check if the decision is explained.
  package static func decideMiss(
    request: RequestHead, policy: RequestPolicy, options: CachingOptions, trace: DecisionTrace?
  ) -> MissDecision {
    if trace.check(.doNotLoad, policy == .returnCacheDataDontLoad) { return .gatewayTimeout(.doNotLoad) }
    // 9111 4: unsafe and unknown methods are written through.
    let isForwarded = request.method != "GET" && request.method != "HEAD"
    if trace.check(.writeThrough, isForwarded, [.text("method", request.method)]) { return .bypass(.writeThrough) }
    let directives = RequestDirectives(request.fields)
    // 9111 5.2.1.7
    if trace.check(.onlyIfCached, directives.onlyIfCached) { return .gatewayTimeout(.onlyIfCached) }
    // 9111 5.2.1.5
    if trace.check(.requestNoStore, directives.noStore) { return .bypass(.requestNoStore) }
    if trace.check(.headOnlyUpdates, request.method == "HEAD") { return .bypass(.headOnlyUpdates) }
    trace.conclude(.miss)
    return .fetch(.miss)
  }

  /// Decides how to respond with `stored` if its use is already permitted: after a 304, or in place of an error.
  ///
  /// Evaluates the client's conditions and range. Returns `serve`, `notModified`, `partial` or `unsatisfiableRange`; or
  /// `fetch`, with the unchanged request, if the incomplete response lacks the range.
  /// - Parameters:
  ///   - request: The client's request, including its conditions and ranges.
  ///   - stored: The response that may be used.
  ///   - now: The current time, from the same clock as the stored freshness.
  ///   - rule: The reason to report if the response is complete.
  public static func decideResponse(
    request: RequestHead, stored: some StoredResponseMetadata, now: Date, rule: Rule
  ) -> ReuseDecision {
    PreconditionEvaluation(request: request, now: now, rule: rule, isStale: false, revalidatesInBackground: false)
      .decide(stored)
  }

  /// Returns the fields that validate `stored`: `If-None-Match` and `If-Modified-Since` (9111 4.3.1).
  ///
  /// Empty if it has no validator.
  public static func validation(of stored: some StoredResponseMetadata) -> HeaderFields {
    var conditional = HeaderFields()
    let fields = stored.fields
    if let tag = EntityTag(stored: fields) { conditional.set("If-None-Match", tag.rendered) }
    if stored.freshness.flags.contains(.lastModified), let value = fields.single("last-modified") {
      conditional.set("If-Modified-Since", value)
    }
    return conditional
  }
}

extension RequestHead {
  /// Returns the request with the cache's conditions in place of the client's `If-None-Match` and `If-Modified-Since`.
  ///
  /// The client's conditions are evaluated afterwards. If both were sent, a 304 would not show which condition failed.
  public func conditional(on fields: HeaderFields) -> RequestHead {
    var request = self
    request.fields.remove("If-None-Match")
    request.fields.remove("If-Modified-Since")
    for (name, value) in fields { request.fields.set(name, value) }
    return request
  }
}

extension FreshnessInfo.Flags {
  /// The flags with which even a plain request needs a full evaluation.
  static let needsCloserLook: FreshnessInfo.Flags = [.noCache, .incomplete, .stale, .suspect]
}

extension HeaderFields {
  /// Whether there is a field that a decision depends on: `Cache-Control`, `Pragma`, `Range`, or a condition.
  var hasCachingFields: Bool {
    for line in lines {
      let name = line.name
      // Comparing the length first excludes nearly all other fields.
      let found =
        switch name.utf8.count {
        case 5: name.equalsIgnoringCase("range")
        case 6: name.equalsIgnoringCase("pragma")
        case 8: name.equalsIgnoringCase("if-match") || name.equalsIgnoringCase("if-range")
        case 13: name.equalsIgnoringCase("cache-control") || name.equalsIgnoringCase("if-none-match")
        case 17: name.equalsIgnoringCase("if-modified-since")
        case 19: name.equalsIgnoringCase("if-unmodified-since")
        default: false
        }
      if found { return true }
    }
    return false
  }
}

extension RequestPolicy {
  /// Whether the policy requires a response from the origin, regardless of stored responses.
  var ignoresStoredResponses: Bool {
    switch self {
    case .reloadIgnoringLocalCacheData, .reloadIgnoringLocalAndRemoteCacheData: true
    case .useProtocolCachePolicy, .returnCacheDataElseLoad, .returnCacheDataDontLoad, .reloadRevalidatingCacheData:
      false
    }
  }

  /// The fields that make other caches follow this policy. Add them to a forwarded request without `Cache-Control`.
  ///
  /// `no-cache` and `Pragma` for `reloadIgnoringLocalAndRemoteCacheData`, `max-age=0` for
  /// `reloadRevalidatingCacheData`.
  public var requestFields: HeaderFields {
    switch self {
    case .reloadIgnoringLocalAndRemoteCacheData: ["Cache-Control": "no-cache", "Pragma": "no-cache"]
    case .reloadRevalidatingCacheData: ["Cache-Control": "max-age=0"]
    case .useProtocolCachePolicy, .reloadIgnoringLocalCacheData, .returnCacheDataElseLoad, .returnCacheDataDontLoad:
      HeaderFields()
    }
  }
}
