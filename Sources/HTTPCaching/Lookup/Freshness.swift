#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Computes the freshness of a response (RFC 9111, section 4.2).
enum Freshness {
  /// The statuses that can be stored without explicit permission (RFC 9110, section 15.1).
  static let heuristicallyCacheable: Set<Int> = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501]

  /// Whether this module implements the caching rules of a status (RFC 9111, section 5.2.2.3).
  ///
  /// It does for the statuses of RFC 9110.
  static func understands(_ status: Int) -> Bool {
    switch status {
    case 200...206, 300...305, 307, 308, 400...417, 421, 422, 426, 500...505: true
    default: false
    }
  }

  /// Returns the first member of the first `Age` line; 0 if it is missing or malformed (RFC 9111, section 5.1).
  static func age(of fields: HeaderFields) -> Double {
    guard let line = fields.first("age") else { return 0 }
    return deltaSeconds(line.utf8.prefix { $0 != UInt8(ascii: ",") }.trimmingFieldSpace()) ?? 0
  }

  /// Computes the freshness of the response to `request`, sent at `requestTime` and received at `responseTime`.
  static func freshness(
    request: RequestHead, response: ResponseHead, directives: ResponseDirectives, requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> FreshnessInfo {
    let fields = response.fields
    var flags: FreshnessInfo.Flags = []
    let sentDate = fields.single("date").flatMap { HTTPDate.parse($0, now: responseTime) }
    if sentDate == nil { flags.insert(.dateAssumed) }
    let date = sentDate ?? responseTime

    // 4.2.3: corrected_age_value counts from the start of the request, apparent_age from Date. Date has whole seconds,
    // so round the apparent age down. Otherwise a short-lived response could be stale on arrival.
    let delay = bounded(responseTime.timeIntervalSince(requestTime))
    let apparentAge = bounded(responseTime.timeIntervalSince(date).rounded(.down))
    let initialAge = bounded(max(apparentAge, age(of: fields) + delay))

    let lastModified = fields.single("last-modified").flatMap { HTTPDate.parse($0, now: responseTime) }
    let (lifetime, isHeuristic) = lifetime(
      response: response, directives: directives, date: date, lastModified: lastModified, responseTime: responseTime,
      options: options)
    if isHeuristic { flags.insert(.heuristic) }

    let isShared = options.mode == .shared
    if directives.noCache { flags.insert(.noCache) }
    if directives.mustRevalidate { flags.insert(.mustRevalidate) }
    // 5.2.2.10: for a shared cache, s-maxage implies proxy-revalidate.
    if directives.proxyRevalidate || (isShared && directives.sharedMaxAge != nil) { flags.insert(.proxyRevalidate) }
    if directives.noTransform { flags.insert(.noTransform) }
    if directives.immutable, isTrustworthyImmutable(request: request, fields: fields) { flags.insert(.immutable) }
    if let tag = EntityTag(stored: fields) { flags.insert(tag.isWeak ? .weakETag : .strongETag) }
    if lastModified != nil { flags.insert(.lastModified) }
    if response.status == 206 { flags.insert(.incomplete) }
    if isShared { flags.insert(.sharedMode) }
    if request.hasCredentials { flags.insert(.authorized) }
    if fields.contains("cache-groups") { flags.insert(.hasGroups) }

    return FreshnessInfo(
      responseTime: responseTime, initialAge: initialAge, lifetime: lifetime, date: date,
      staleWhileRevalidate: directives.staleWhileRevalidate ?? -1, staleIfError: directives.staleIfError ?? -1,
      flags: flags)
  }

  /// Returns the lifetime from, in this order: `s-maxage` (shared), `max-age`, `Expires`, heuristics (4.2.1).
  private static func lifetime(
    response: ResponseHead, directives: ResponseDirectives, date: Date, lastModified: Date?, responseTime: Date,
    options: CachingOptions
  ) -> (seconds: Double, isHeuristic: Bool) {
    if options.mode == .shared, let seconds = directives.sharedMaxAge { return (bounded(seconds), false) }
    if let seconds = directives.maxAge { return (bounded(seconds), false) }
    // RFC 9213, 2.2: Expires is ignored if there is a targeted field.
    if !directives.isTargeted, response.fields.contains("expires") {
      // 5.3: a malformed value, such as "0", means already expired. So do contradictory lines (4.2.1).
      guard let expires = response.fields.single("expires").flatMap({ HTTPDate.parse($0, now: responseTime) })
      else { return (0, false) }
      return (bounded(expires.timeIntervalSince(date)), false)
    }
    // 4.2.2: only if the status is heuristically cacheable, or the response is public.
    guard heuristicallyCacheable.contains(response.status) || directives.isPublic else { return (0, false) }
    if let lastModified {
      let share = date.timeIntervalSince(lastModified) * options.heuristicFraction
      return (bounded(min(share, options.heuristicMaximum)), true)
    }
    return options.defaultLifetime.map { (bounded($0), true) } ?? (0, false)
  }

  /// Whether `immutable` can be trusted: over HTTPS, and with a body of known length (RFC 8246, section 3).
  private static func isTrustworthyImmutable(request: RequestHead, fields: HeaderFields) -> Bool {
    guard request.url.scheme?.asciiLowercased() == "https" else { return false }
    return fields.contains("content-length")
      || (fields["transfer-encoding"]?.asciiLowercased() ?? "").hasSuffix("chunked")
  }

  /// Limits seconds to the range from 0 to the maximum; NaN becomes 0.
  static func bounded(_ seconds: Double) -> Double {
    seconds > 0 ? min(seconds, FreshnessInfo.maximumSeconds) : 0
  }
}
