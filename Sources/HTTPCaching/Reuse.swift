#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// Decides how a request is answered (RFC 9111, 4).
public enum Reuse {
  /// How to answer `request` when `stored` was selected for it by key and `VarySelection`.
  ///
  /// `stored` is a response to GET; it answers GET and, without its body, HEAD. A plain fresh hit (a request without
  /// caching-relevant fields) reads only `stored.facts` and allocates nothing. RFC 9111, 4 and 5.2.1.
  /// - Parameters:
  ///   - request: the client's request, its own conditions and ranges included.
  ///   - stored: the selected response. Its `fields` are read only where the decision needs them.
  ///   - policy: what the client's API asks for beyond the request's fields.
  ///   - now: the current time, by the clock that gave the stored facts theirs.
  ///   - options: those that the response was stored under; one judged for the other mode is validated.
  public static func decide(
    request: RequestHead, stored: some StoredResponseView, policy: RequestPolicy, now: Date, options: CachingOptions
  ) -> ReuseDecision {
    let facts = stored.facts
    // The plain fresh hit: nothing in the request or the facts asks for a closer look.
    if policy == .useProtocolCachePolicy, request.method == "GET", facts.flags.isDisjoint(with: .needsCloserLook),
      facts.flags.contains(.sharedMode) == (options.mode == .shared), facts.isFresh(at: now),
      !request.fields.hasCachingFields
    {
      return .serve(age: facts.wholeAge(at: now), .fresh)
    }
    var evaluation = ReuseEvaluation(
      request: request, facts: facts, status: stored.status, policy: policy, now: now, options: options)
    return evaluation.decide(stored)
  }

  /// How to go on when nothing usable is stored: fetch, or 504 where the policy or `only-if-cached` forbids the network
  /// (RFC 9111, 5.2.1.7), or fetch past the cache for methods and requests that it does not answer.
  public static func decideMiss(request: RequestHead, policy: RequestPolicy, options: CachingOptions) -> MissDecision {
    if policy == .returnCacheDataDontLoad { return .gatewayTimeout(.doNotLoad) }
    // 9111 4: unsafe and unknown methods are written through.
    guard request.method == "GET" || request.method == "HEAD" else { return .bypass(.writeThrough) }
    let directives = RequestDirectives(request.fields)
    // 9111 5.2.1.7
    if directives.onlyIfCached { return .gatewayTimeout(.onlyIfCached) }
    // 9111 5.2.1.5
    if directives.noStore { return .bypass(.requestNoStore) }
    if request.method == "HEAD" { return .bypass(.headOnlyUpdates) }
    return .fetch(.miss)
  }

  /// How to answer `request` from `stored` once its use is permitted: after a 304, or in place of an error. The client's
  /// conditions and range are evaluated. One of `serve`, `notModified`, `partial`, `unsatisfiableRange`; `fetch` (with the
  /// request as it is) if the stored part does not hold what is asked for.
  /// - Parameter rule: the reason that the answer gives when it is the whole response.
  public static func answer(
    request: RequestHead, stored: some StoredResponseView, now: Date, rule: Rule
  ) -> ReuseDecision {
    StoredAnswer(request: request, now: now, rule: rule, isStale: false, revalidatesInBackground: false).decide(stored)
  }

  /// The fields that make a validation of `stored`: `If-None-Match`, `If-Modified-Since` (9111 4.3.1). Empty: it has no
  /// validator. For a validation in the background, set them on a copy of the request that was stored or served.
  public static func validation(of stored: some StoredResponseView) -> HTTPFields {
    var conditional = HTTPFields()
    let fields = stored.fields
    if let tag = EntityTag(stored: fields) { conditional.set("If-None-Match", tag.rendered) }
    if stored.facts.flags.contains(.lastModified), let value = fields.single("last-modified") {
      conditional.set("If-Modified-Since", value)
    }
    return conditional
  }
}

extension RequestHead {
  /// The request with the cache's own conditions in place of the client's (`If-None-Match` and `If-Modified-Since`), which
  /// are evaluated afterwards: mixed, a 304 would not tell whose condition it answers.
  public func conditional(on fields: HTTPFields) -> RequestHead {
    var request = self
    request.fields.remove("If-None-Match")
    request.fields.remove("If-Modified-Since")
    for (name, value) in fields { request.fields.set(name, value) }
    return request
  }

  /// The GET that validates `stored` in the background, made of a request that it served: the same target and selecting
  /// fields, no range, no conditions or cache directives of the client. RFC 9111, 4.3.1.
  public func validating(_ stored: some StoredResponseView) -> RequestHead {
    var request = self
    request.method = "GET"
    for name in [
      "Range", "If-Range", "If-Match", "If-Unmodified-Since", "Cache-Control", "Pragma",
    ] {
      request.fields.remove(name)
    }
    return request.conditional(on: Reuse.validation(of: stored))
  }
}

extension FreshnessFacts.Flags {
  /// Facts with which even a plain request needs more than the comparison of age and lifetime.
  static let needsCloserLook: FreshnessFacts.Flags = [.noCache, .incomplete, .stale]
}

extension HTTPFields {
  /// Whether a field is present that a decision depends on: `Cache-Control`, `Pragma`, `Range`, or a condition.
  var hasCachingFields: Bool {
    for line in lines {
      let name = line.name
      // The length sorts out nearly every other field.
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
  /// The fields to add to a request that goes to the origin under this policy, unless it has its own `Cache-Control`, so
  /// that caches on the way obey too: `no-cache` and `Pragma` for `reloadIgnoringLocalAndRemoteCacheData`, `max-age=0`
  /// for `reloadRevalidatingCacheData`.
  public var requestFields: HTTPFields {
    switch self {
    case .reloadIgnoringLocalAndRemoteCacheData: ["Cache-Control": "no-cache", "Pragma": "no-cache"]
    case .reloadRevalidatingCacheData: ["Cache-Control": "max-age=0"]
    case .useProtocolCachePolicy, .reloadIgnoringLocalCacheData, .returnCacheDataElseLoad, .returnCacheDataDontLoad:
      HTTPFields()
    }
  }
}
