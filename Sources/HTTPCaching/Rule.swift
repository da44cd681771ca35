/// The reason for a decision: a stable ID for logs and tests, the RFC section, and a short text.
public struct Rule: Sendable, CustomStringConvertible {
  /// A stable ID, such as `fresh`.
  public let id: String
  /// The RFC and the section, such as `9111 4.2`.
  public let section: String
  /// A short text.
  public let summary: String

  /// Creates a custom rule. This module's own rules are the static members below.
  @inlinable
  public init(_ id: String, _ section: String, _ summary: String) {
    self.id = id
    self.section = section
    self.summary = summary
  }

  /// The ID, the section and the text.
  public var description: String { "\(id) (RFC \(section)): \(summary)" }
}

extension Rule: Hashable {
  /// Whether both have the same ID.
  public static func == (left: Rule, right: Rule) -> Bool { left.id == right.id }

  /// Hashes the ID.
  public func hash(into hasher: inout Hasher) { hasher.combine(id) }
}

/// The rules of this module, in the order of the checks. IDs are stable.
extension Rule {
  // MARK: Refusals to store

  /// The cache does not store responses to this method.
  public static let methodNotCached = Rule("method-not-cached", "9111 3", "responses to this method are not cached")
  /// A response to HEAD only updates the stored response to GET.
  public static let headOnlyUpdates = Rule("head-only-updates", "9111 4.3.5", "HEAD only updates stored responses")
  /// A response to POST has no explicit lifetime, or no Content-Location that equals the URL.
  public static let postNotCached = Rule(
    "post-not-cached", "9110 9.3.3", "a response to POST without lifetime or Content-Location")
  /// The URL is not an absolute http or https URL with a host.
  public static let notHTTP = Rule("not-http", "9110 4.2", "not an http or https URL with a host")
  /// The response is not final.
  public static let interim = Rule("interim", "9111 3", "not a final response")
  /// The status forbids storing, or depends on parts of the request that a cache does not compare.
  public static let statusNotCached = Rule("status-not-cached", "9111 3", "the status must not be stored")
  /// A 304 updates a stored response and is not stored itself.
  public static let notModifiedNotStored = Rule("304-not-stored", "9111 4.3.4", "a 304 is not stored by itself")
  /// A 206 cannot be used: it is disabled by an option, has several parts, or no valid byte range.
  public static let partNotUsable = Rule("part-not-usable", "9111 3.3", "partial content without a usable range")
  /// A field name or value contains invalid bytes.
  public static let malformedField = Rule("malformed-field", "9110 5.5", "a field with CR, LF, NUL or an invalid name")
  /// The response has too many fields, or fields that are too long.
  public static let tooManyFields = Rule("too-many-fields", "9110 5.4", "more or longer fields than the cache keeps")
  /// The response has too many tags, or tags that are too long (``CachingOptions/tagFieldNames``).
  public static let tooManyTags = Rule("too-many-tags", "9875 2", "more or longer tags than the cache keeps")
  /// The request has `no-store`.
  public static let requestNoStore = Rule("request-no-store", "9111 5.2.1.5", "the request says no-store")
  /// The response has `no-store`.
  public static let noStore = Rule("no-store", "9111 5.2.2.5", "the response says no-store")
  /// The response has `must-understand`, and the status is unknown.
  public static let mustUnderstand = Rule("must-understand", "9111 5.2.2.3", "must-understand with an unknown status")
  /// The response is `private`, and the cache is shared.
  public static let privateResponse = Rule("private", "9111 5.2.2.7", "private, and the cache is shared")
  /// The request had credentials, and no directive permits a shared cache to store the response.
  public static let authorization = Rule("authorization", "9111 3.5", "credentials without permission to share")
  /// The response has `Vary: *` or a malformed `Vary`.
  public static let varyStar = Rule("vary-star", "9111 4.1", "Vary matches no request")
  /// The `Vary` of a 304 or a response to HEAD names fields that are not in the Vary key of the stored response.
  public static let varyExtended = Rule(
    "vary-extended", "9111 4.1", "the updated Vary names more fields than the stored one")
  /// The URL has the maximum number of variants, and a new one replaced the oldest.
  public static let tooManyVariants = Rule(
    "too-many-variants", "9111 4.1", "a newer variant replaced the oldest of too many")
  /// Nothing in the response permits storing it.
  public static let noGround = Rule("no-ground", "9111 3", "no lifetime, no permission, status not cacheable")

  /// The rules above, with which a response is not stored.
  package static let refusals: [Rule] = [
    .methodNotCached, .headOnlyUpdates, .postNotCached, .notHTTP, .interim, .statusNotCached, .notModifiedNotStored,
    .partNotUsable, .malformedField, .tooManyFields, .tooManyTags, .requestNoStore, .noStore, .mustUnderstand,
    .privateResponse,
    .authorization, .varyStar, .varyExtended, .tooManyVariants, .noGround,
  ]

  // MARK: Responses from storage

  /// The stored response is fresh.
  public static let fresh = Rule("fresh", "9111 4.2", "the stored response is fresh")
  /// The caller's policy accepts any age.
  public static let anyAge = Rule("any-age", "9111 4.2.4", "the request's policy accepts any age")
  /// The request's `max-stale` permits the stale response.
  public static let maxStale = Rule("max-stale", "9111 5.2.1.2", "the request's max-stale permits it")
  /// The response is within its `stale-while-revalidate` window.
  public static let staleWhileRevalidate = Rule(
    "stale-while-revalidate", "5861 3", "within the stale-while-revalidate window")
  /// The response is fresh and `immutable`, so a reload does not validate it.
  public static let immutable = Rule("immutable", "8246 2", "fresh and immutable, not validated on reload")
  /// The origin validated the stored response.
  public static let validated = Rule("validated", "9111 4.3.3", "the origin validated the stored response")

  // MARK: Reasons to contact the origin

  /// No suitable response is stored.
  public static let miss = Rule("miss", "9111 4", "nothing suitable is stored")
  /// The policy ignores stored responses.
  public static let reload = Rule("reload", "9111 4", "the request's policy ignores stored responses")
  /// The policy requires validation.
  public static let revalidate = Rule("revalidate", "9111 4.3", "the request's policy requires validation")
  /// The machine has no valid lease in its fleet, so the response may have been removed on another machine.
  public static let suspect = Rule("suspect", "9111 4.2.4", "removals on other machines may be unknown")
  /// The response has `no-cache`.
  public static let noCache = Rule("no-cache", "9111 5.2.2.4", "the response says no-cache")
  /// The request has `no-cache`.
  public static let requestNoCache = Rule("request-no-cache", "9111 5.2.1.4", "the request says no-cache")
  /// The request has `Pragma: no-cache` and no `Cache-Control`.
  public static let pragma = Rule("pragma", "9111 5.4", "the request says Pragma: no-cache")
  /// The response is older than the request's `max-age`.
  public static let requestMaxAge = Rule("request-max-age", "9111 5.2.1.1", "older than the request's max-age")
  /// The response will not stay fresh for the request's `min-fresh`.
  public static let minFresh = Rule("min-fresh", "9111 5.2.1.3", "not fresh for as long as the request's min-fresh")
  /// The response is stale, and has `must-revalidate`.
  public static let mustRevalidate = Rule("must-revalidate", "9111 5.2.2.2", "stale, with must-revalidate")
  /// The response is stale, and has `proxy-revalidate` or `s-maxage` in a shared cache.
  public static let proxyRevalidate = Rule(
    "proxy-revalidate", "9111 5.2.2.8", "stale, with proxy-revalidate or s-maxage")
  /// The response is stale.
  public static let stale = Rule("stale", "9111 4.2.4", "the stored response is stale")
  /// The response was received after the present time, because the clock was set back since, so its age is unknown.
  public static let clockSetBack = Rule(
    "clock-set-back", "9111 4.2.3", "received after the present time, because the clock was set back")
  /// A soft purge made the response stale.
  public static let softPurged = Rule("soft-purged", "9111 4.2.4", "a soft purge made the stored response stale")
  /// The response was stored under the rules of another cache mode.
  public static let modeChanged = Rule("mode-changed", "9111 3", "stored under the rules of another cache mode")
  /// The request has a precondition that only the origin can evaluate.
  public static let precondition = Rule("precondition", "9111 4.3.2", "a precondition that only the origin evaluates")
  /// The request has several ranges.
  public static let multipleRanges = Rule("multiple-ranges", "9110 14.2", "several ranges are forwarded")
  /// The incomplete response lacks the requested range.
  public static let partLacksRange = Rule("part-lacks-range", "9111 3.3", "the incomplete response lacks the range")
  /// The missing bytes of an incomplete response are needed.
  public static let completePart = Rule("complete-part", "9111 3.3", "the incomplete response is completed")
  /// Unsafe and unknown methods are always forwarded.
  public static let writeThrough = Rule("write-through", "9111 4", "unsafe and unknown methods are forwarded")
  /// The request forbids using the network.
  public static let onlyIfCached = Rule(
    "only-if-cached", "9111 5.2.1.7", "only-if-cached, and nothing usable is stored")
  /// The policy forbids using the network.
  public static let doNotLoad = Rule("do-not-load", "9111 4", "the request's policy forbids the network")

  // MARK: Errors

  /// `stale-if-error` of the request, the response or the options permits the stale response.
  public static let staleIfError = Rule("stale-if-error", "5861 4", "stale-if-error permits it")
  /// The origin has not responded within a time, and `stale-if-error` permits the stored response.
  public static let staleAfter = Rule(
    "stale-after", "5861 4", "the origin has not responded in time, and stale-if-error permits it")
  /// The origin failed a moment ago and is not asked again yet, and `stale-if-error` permits the stored response.
  public static let heldOff = Rule(
    "held-off", "5861 4", "the origin failed a moment ago, and stale-if-error permits the stored response")
  /// The options permit the stale response while the origin is unreachable.
  public static let disconnected = Rule("disconnected", "9111 4.2.4", "the origin cannot be reached")
  /// Nothing permits a stale response.
  public static let staleForbidden = Rule("stale-forbidden", "9111 4.2.4", "nothing permits a stale response")

  // MARK: Updates and incomplete responses

  /// A 304 or a response to HEAD is about the stored response.
  public static let validatorMatches = Rule("validator-matches", "9111 4.3.4", "the stored response is current")
  /// The validator differs from the stored one.
  public static let validatorDiffers = Rule(
    "validator-differs", "9111 4.3.4", "the validator differs from the stored one")
  /// A response to HEAD shows that the stored response is outdated.
  public static let headDiffers = Rule(
    "head-differs", "9111 4.3.5", "the response to HEAD differs from the stored response")
  /// The response to HEAD is not a 200.
  public static let headNotUsable = Rule("head-not-usable", "9111 4.3.5", "the response to HEAD is not a 200")
  /// The parts do not have the same strong validator.
  public static let noStrongValidator = Rule("no-strong-validator", "9111 3.4", "parts share no strong validator")
  /// The parts have a gap between them, or belong to different representations.
  public static let partsApart = Rule("parts-apart", "9111 3.4", "parts are not adjacent, or contradict each other")

  // MARK: Conditions and ranges of the client

  /// The client has the stored response.
  public static let clientIsCurrent = Rule("client-is-current", "9111 4.3.2", "the client has the stored response")
  /// The range is taken from the stored body.
  public static let range = Rule("range", "9110 14.2", "the range is taken from the stored body")
  /// The range is outside the stored body.
  public static let rangeOutside = Rule("range-outside", "9110 15.5.17", "the range is outside the representation")
}
