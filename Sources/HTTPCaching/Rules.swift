// The reasons that the decisions of this module give, in the order of the checks. Ids are stable.

extension Rule {
  // MARK: refusals to store

  /// The method is not one whose answers this cache understands.
  public static let methodNotCached = Rule("method-not-cached", "9111 3", "the method's answers are not cached")
  /// An answer to HEAD only updates what is stored for GET.
  public static let headOnlyUpdates = Rule("head-only-updates", "9111 4.3.5", "answers to HEAD only update stored ones")
  /// An answer to POST without an explicit lifetime, or not of the URL itself.
  public static let postNotCached = Rule(
    "post-not-cached", "9110 9.3.3", "an answer to POST without lifetime or Content-Location")
  /// The URL is not an absolute one of HTTP.
  public static let notHTTP = Rule("not-http", "9110 4.2", "not an http or https URL with a host")
  /// The response is not final.
  public static let interim = Rule("interim", "9111 3", "not a final response")
  /// The status is one whose storing is forbidden, or depends on more of the request than a cache compares.
  public static let statusNotCached = Rule("status-not-cached", "9111 3", "the status must not be stored")
  /// A 304 updates a stored response and is none itself.
  public static let notModifiedNotStored = Rule("304-not-stored", "9111 4.3.4", "a 304 is not stored by itself")
  /// A 206 that cannot be used: switched off, several parts, or no valid range of bytes.
  public static let partNotUsable = Rule("part-not-usable", "9111 3.3", "partial content without a usable range")
  /// A field name or value holds bytes that do not belong there.
  public static let malformedField = Rule("malformed-field", "9110 5.5", "a field holds CR, LF, NUL or a bad name")
  /// The response has more fields than are stored, or longer ones.
  public static let tooManyFields = Rule("too-many-fields", "9110 5.4", "more or longer fields than the cache keeps")
  /// The request says `no-store`.
  public static let requestNoStore = Rule("request-no-store", "9111 5.2.1.5", "the request says no-store")
  /// The response says `no-store`.
  public static let noStore = Rule("no-store", "9111 5.2.2.5", "the response says no-store")
  /// The response says `must-understand` and the status is unknown.
  public static let mustUnderstand = Rule("must-understand", "9111 5.2.2.3", "must-understand with an unknown status")
  /// The response says `private`, and the cache is shared.
  public static let privateResponse = Rule("private", "9111 5.2.2.7", "private, and the cache is shared")
  /// The request had credentials, and nothing permits a shared cache to keep the answer.
  public static let authorization = Rule("authorization", "9111 3.5", "credentials without permission to share")
  /// `Vary: *` or a malformed `Vary`.
  public static let varyStar = Rule("vary-star", "9111 4.1", "Vary says that nothing ever matches")
  /// A 304 or an answer to HEAD whose `Vary` names fields that the stored response was not selected by.
  public static let varyExtended = Rule(
    "vary-extended", "9111 4.1", "the updated Vary names more fields than the stored")
  /// Nothing in the response permits storing.
  public static let noGround = Rule("no-ground", "9111 3", "no lifetime, no permission, status not cacheable")

  // MARK: answers from store

  /// Fresh.
  public static let fresh = Rule("fresh", "9111 4.2", "the stored response is fresh")
  /// The caller's policy takes any stored answer.
  public static let anyAge = Rule("any-age", "9111 4.2.4", "the request's policy takes any age")
  /// The request's `max-stale` permits it.
  public static let maxStale = Rule("max-stale", "9111 5.2.1.2", "the request's max-stale permits it")
  /// Inside the `stale-while-revalidate` window.
  public static let staleWhileRevalidate = Rule(
    "stale-while-revalidate", "5861 3", "inside the stale-while-revalidate window")
  /// Fresh and `immutable`: a reload does not validate it.
  public static let immutable = Rule("immutable", "8246 2", "fresh and immutable, not validated on reload")
  /// The origin confirmed what is stored.
  public static let validated = Rule("validated", "9111 4.3.3", "the origin confirmed what is stored")

  // MARK: reasons to ask the origin

  /// Nothing suitable is stored.
  public static let miss = Rule("miss", "9111 4", "nothing suitable is stored")
  /// The policy ignores what is stored.
  public static let reload = Rule("reload", "9111 4", "the request's policy ignores what is stored")
  /// The policy wants validation.
  public static let revalidate = Rule("revalidate", "9111 4.3", "the request's policy wants validation")
  /// The response says `no-cache`.
  public static let noCache = Rule("no-cache", "9111 5.2.2.4", "the response says no-cache")
  /// The request says `no-cache`.
  public static let requestNoCache = Rule("request-no-cache", "9111 5.2.1.4", "the request says no-cache")
  /// The request says `Pragma: no-cache` and has no `Cache-Control`.
  public static let pragma = Rule("pragma", "9111 5.4", "the request says Pragma: no-cache")
  /// Older than the request's `max-age`.
  public static let requestMaxAge = Rule("request-max-age", "9111 5.2.1.1", "older than the request's max-age")
  /// Not fresh for as long as the request's `min-fresh` asks.
  public static let minFresh = Rule("min-fresh", "9111 5.2.1.3", "not fresh for the request's min-fresh")
  /// Stale, and the response says `must-revalidate`.
  public static let mustRevalidate = Rule("must-revalidate", "9111 5.2.2.2", "stale, and must-revalidate")
  /// Stale, and the response says `proxy-revalidate` or `s-maxage` to a shared cache.
  public static let proxyRevalidate = Rule(
    "proxy-revalidate", "9111 5.2.2.8", "stale, and proxy-revalidate or s-maxage")
  /// Stale.
  public static let stale = Rule("stale", "9111 4.2.4", "the stored response is stale")
  /// Stored under the rules of another cache mode.
  public static let modeChanged = Rule("mode-changed", "9111 3", "stored under the rules of another cache mode")
  /// A precondition that only the origin can evaluate.
  public static let precondition = Rule("precondition", "9111 4.3.2", "only the origin evaluates this precondition")
  /// Several ranges asked for.
  public static let multipleRanges = Rule("multiple-ranges", "9110 14.2", "several ranges, forwarded")
  /// The stored part does not hold what is asked for.
  public static let partLacksRange = Rule("part-lacks-range", "9111 3.3", "the stored part lacks the range")
  /// The rest of a stored part is missing.
  public static let completePart = Rule("complete-part", "9111 3.3", "the rest of the stored part is missing")
  /// An unsafe or unknown method is always written through.
  public static let writeThrough = Rule("write-through", "9111 4", "unsafe and unknown methods are forwarded")
  /// The request wants no network.
  public static let onlyIfCached = Rule("only-if-cached", "9111 5.2.1.7", "not answerable from store alone")
  /// The policy forbids the network.
  public static let doNotLoad = Rule("do-not-load", "9111 4", "the request's policy forbids the network")

  // MARK: errors

  /// `stale-if-error` of request, response or options permits it.
  public static let staleIfError = Rule("stale-if-error", "5861 4", "stale-if-error permits it")
  /// The options permit it while the origin cannot be reached.
  public static let disconnected = Rule("disconnected", "9111 4.2.4", "the origin cannot be reached")
  /// Nothing permits a stale answer.
  public static let staleForbidden = Rule("stale-forbidden", "9111 4.2.4", "nothing permits a stale answer")

  // MARK: updates and parts

  /// A 304 or a HEAD answer matches by validator.
  public static let validatorMatches = Rule("validator-matches", "9111 4.3.4", "the validator is the stored one")
  /// Neither has a validator, and there is only one.
  public static let onlyEntry = Rule("only-entry", "9111 4.3.4", "no validators, one stored response")
  /// A 304 without the validator that would identify a response for updating.
  public static let noValidator = Rule("no-validator", "9111 4.3.4", "confirmed, but not identified for updating")
  /// The validator is another one.
  public static let validatorDiffers = Rule("validator-differs", "9111 4.3.4", "the validator is another one")
  /// A HEAD answer says that the stored response is out of date.
  public static let headDiffers = Rule("head-differs", "9111 4.3.5", "the answer to HEAD differs from what is stored")
  /// Not a 200.
  public static let headNotUsable = Rule("head-not-usable", "9111 4.3.5", "the answer to HEAD is not a 200")
  /// Parts without one strong validator.
  public static let noStrongValidator = Rule("no-strong-validator", "9111 3.4", "parts share no strong validator")
  /// Parts with a gap between, or of different wholes.
  public static let partsApart = Rule("parts-apart", "9111 3.4", "parts do not meet, or contradict each other")

  // MARK: conditions and ranges of the client

  /// The client has what is stored.
  public static let clientIsCurrent = Rule("client-is-current", "9111 4.3.2", "the client has what is stored")
  /// The range is cut from the stored body.
  public static let range = Rule("range", "9110 14.2", "the range is cut from the stored body")
  /// The range lies outside the stored body.
  public static let rangeOutside = Rule("range-outside", "9110 15.5.17", "the range lies outside the whole")
}
