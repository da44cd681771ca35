#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// Whether a response may be stored, and which parts (RFC 9111, section 3).
public enum Storability: Sendable, Hashable {
  /// Store the response with these fields and this freshness. `freshness.flags.incomplete` marks a part.
  case store(fields: HeaderFields, freshness: FreshnessInfo)
  /// Do not store the response, for this reason.
  case refuse(Rule)

  /// Decides whether to store the response to `request`, sent at `requestTime` and received at `responseTime`.
  ///
  /// `request` is the request as sent. The decision does not cover the body: the receiver must not store a body that
  /// ended early.
  public static func decide(
    request: RequestHead, response: ResponseHead, requestTime: Date, responseTime: Date, options: CachingOptions
  ) -> Storability {
    if let rule = sizeRefusal(of: response.fields, options: options) { return .refuse(rule) }
    let directives = ResponseDirectives(response.fields, targetedFieldNames: options.targetedFieldNames)
    if let rule = refusal(ofRequest: request) ?? refusal(of: response, for: request, options: options)
      ?? refusal(ofPost: request, answeredBy: response, directives, options)
      ?? refusal(by: directives, request: request, response: response, options: options)
    {
      return .refuse(rule)
    }
    let (fields, freshness) = storedParts(
      request: request, response: response, directives: directives, requestTime: requestTime,
      responseTime: responseTime, options: options)
    return .store(fields: fields, freshness: freshness)
  }

  /// Returns the refusal of fields, or of tags, that are too many or too long.
  package static func sizeRefusal(of fields: HeaderFields, options: CachingOptions) -> Rule? {
    guard fields.isStorable else { return .tooManyFields }
    return ResponseTags.exceedLimits(fields, in: options.tagFieldNames) ? .tooManyTags : nil
  }

  private static func refusal(ofRequest request: RequestHead) -> Rule? {
    // 9111 3: only methods whose caching rules this module implements. 4.3.5: HEAD only updates.
    switch request.method {
    case "GET", "POST": break
    case "HEAD": return .headOnlyUpdates
    default: return .methodNotCached
    }
    // 9110 4.2: the cache key has scheme, host, port, path and query.
    guard request.url.isHTTPWithHost else { return .notHTTP }
    // 9111 5.2.1.5
    if RequestDirectives(request.fields).noStore { return .requestNoStore }
    return nil
  }

  /// Returns the refusal for a response to POST (9110 9.3.3).
  ///
  /// It can be used for a later GET if it has an explicit lifetime, and if its Content-Location (9110 8.7) equals the
  /// URL.
  private static func refusal(
    ofPost request: RequestHead, answeredBy response: ResponseHead, _ directives: ResponseDirectives,
    _ options: CachingOptions
  ) -> Rule? {
    guard request.method == "POST" else { return nil }
    guard hasLifetime(response, directives, options), (200..<300).contains(response.status), response.status != 206,
      let location = response.fields.single("content-location")?.trimmingFieldSpace(), !location.isEmpty,
      let url = URL(string: FieldText.displayed(location), relativeTo: request.url)?.absoluteString,
      url == request.url.absoluteString.prefix(while: { $0 != "#" })
    else { return .postNotCached }
    return nil
  }

  /// Whether the response declares its lifetime for this cache.
  static func hasLifetime(
    _ response: ResponseHead, _ directives: ResponseDirectives, _ options: CachingOptions
  ) -> Bool {
    directives.maxAge != nil || (options.mode == .shared && directives.sharedMaxAge != nil)
      || (!directives.isTargeted && response.fields.contains("expires"))
  }

  private static func refusal(of response: ResponseHead, for request: RequestHead, options: CachingOptions) -> Rule? {
    // 9111 3: only final responses.
    if response.status < 200 { return .interim }
    switch response.status {
    // 9111 3, 4.3.4: a 304 only updates.
    case 304: return .notModifiedNotStored
    // 9110 15.5.13, 15.5.17 and 15.5.18 depend on conditions, ranges and expectations of the request, which are not in
    // the cache key; 9110 15.5.8 concerns the proxy; RFC 6585 forbids storing 428, 429, 431 and 511.
    case 407, 412, 416, 417, 428, 429, 431, 511: return .statusNotCached
    case 600...: return .statusNotCached
    // 9111 3.3; 9110 15.3.7: a single byte range that was requested.
    case 206:
      guard options.storesPartialContent, request.fields.contains("range"),
        let range = response.fields.single("content-range").flatMap({ ContentRange($0) }), range.range != nil,
        !(response.fields["content-type"]?.asciiLowercased().hasPrefix("multipart/byteranges") ?? false)
      else { return .partNotUsable }
    default: break
    }
    // 9110 5.5
    if !response.fields.isWellFormed { return .malformedField }
    // 9111 4.1: the response would never match.
    if VaryKey.matchesNothing(response.fields) { return .varyStar }
    return nil
  }

  private static func refusal(
    by directives: ResponseDirectives, request: RequestHead, response: ResponseHead, options: CachingOptions
  ) -> Rule? {
    let isShared = options.mode == .shared
    // 9111 5.2.2.3: must-understand overrides no-store if the status is understood.
    if directives.mustUnderstand, !Freshness.understands(response.status) { return .mustUnderstand }
    // 9111 5.2.2.5
    if directives.noStore, !directives.overridesNoStore { return .noStore }
    // 9111 5.2.2.7
    let isPrivate = directives.isPrivate || !HeaderFields.decisive.isDisjoint(with: directives.privateFields)
    if isShared, isPrivate { return .privateResponse }
    // 9111 3.5
    if isShared, request.hasCredentials, !directives.permitsStoringAuthorized { return .authorization }
    // 9111 3: at least one of these is required.
    guard
      directives.isPublic || (!isShared && directives.isPrivate) || hasLifetime(response, directives, options)
        || Freshness.heuristicallyCacheable.contains(response.status)
    else { return .noGround }
    return nil
  }

  /// Returns the fields to store (9111 3.1) and the freshness.
  static func storedParts(
    request: RequestHead, response: ResponseHead, directives: ResponseDirectives, requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> (fields: HeaderFields, freshness: FreshnessInfo) {
    var freshness = Freshness.freshness(
      request: request, response: response, directives: directives, requestTime: requestTime,
      responseTime: responseTime, options: options)
    // 5.2.2.4: if a decisive field requires validation before each use, the whole response requires it.
    if !HeaderFields.decisive.isDisjoint(with: directives.noCacheFields) { freshness.flags.insert(.noCache) }
    // 5.2.2.4 and 5.2.2.7: the named fields are not stored, so that they cannot be reused.
    let dropped = directives.noCacheFields + (options.mode == .shared ? directives.privateFields : [])
    var fields = response.fields.withoutHopByHop(and: dropped)
    // 9110 6.6.1
    if freshness.flags.contains(.dateAssumed) { fields.set("Date", HTTPDate.format(responseTime)) }
    return (fields, freshness)
  }

  /// Returns the freshness of a response to `request` that arrived at a time.
  package static func freshness(
    of response: ResponseHead, to request: RequestHead, receivedAt time: Date, options: CachingOptions
  ) -> FreshnessInfo {
    storedParts(
      request: request, response: response,
      directives: ResponseDirectives(response.fields, targetedFieldNames: options.targetedFieldNames),
      requestTime: time, responseTime: time, options: options
    ).freshness
  }

  /// Returns the refusal that applies to a stored response after an update by a 304 or a response to HEAD.
  static func refusal(
    ofUpdated response: ResponseHead, request: RequestHead, directives: ResponseDirectives, options: CachingOptions
  ) -> Rule? {
    if let rule = sizeRefusal(of: response.fields, options: options) { return rule }
    if !response.fields.isWellFormed { return .malformedField }
    if VaryKey.matchesNothing(response.fields) { return .varyStar }
    return refusal(by: directives, request: request, response: response, options: options)
  }
}
