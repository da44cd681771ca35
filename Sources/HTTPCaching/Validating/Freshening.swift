#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The effect of a 304, or of a response to HEAD, on a stored response (RFC 9111, sections 3.2, 4.3.4 and 4.3.5).
public enum Freshening: Sendable, Hashable {
  /// Replace the fields and the freshness of the stored response with these, then use it.
  case update(fields: HeaderFields, freshness: FreshnessInfo, Rule)
  /// Use the stored response with these fields and this freshness for this request, then remove it from the store.
  ///
  /// The 304 has `no-store`, or its `Vary` names fields that are not in the Vary key of the stored response.
  case updateAndRemove(fields: HeaderFields, freshness: FreshnessInfo, Rule)
  /// Leave the unrelated stored response unchanged. After a 304, send the request without conditions.
  case unrelated(Rule)
  /// Replace the freshness of the outdated stored response with this, so that its next use validates it.
  case markStale(freshness: FreshnessInfo, Rule)

  /// Decides the effect of a 304 on `stored`, whose validators were in the conditional request.
  ///
  /// Such a 304 is about `stored`, unless it names the validator of another response. RFC 9111, 4.3.4, selects one of
  /// several stored responses by the validators of a 304, but here only those of `stored` were sent.
  /// - Parameters:
  ///   - response: The 304.
  ///   - request: The request; its conditions are ignored.
  ///   - stored: The stored response.
  ///   - requestTime: When the conditional request was sent.
  ///   - responseTime: When the 304 arrived.
  ///   - options: The options of the cache.
  public static func decide(
    notModified response: ResponseHead, request: RequestHead, stored: some StoredResponseMetadata, requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> Freshening {
    // 9111 5.2.1.5: the request forbids storing any part of the response.
    if RequestDirectives(request.fields).noStore { return .unrelated(.requestNoStore) }
    guard response.fields.isStorable else { return .unrelated(.tooManyFields) }
    if namesAnother(response.fields, stored.fields, now: responseTime) { return .unrelated(.validatorDiffers) }
    return update(
      from: response, request: request, stored: stored, rule: .validatorMatches, requestTime: requestTime,
      responseTime: responseTime, options: options)
  }

  /// Whether a 304 has the validator of another response than the stored one.
  ///
  /// Entity tags are compared weakly, as the origin compares `If-None-Match`: a tag is often strong in a 304, and weak
  /// in the response that the origin compressed. If one of both has no tag, the dates are compared. Many origins reply
  /// with 304 if the resource is not newer than `If-Modified-Since`, so an earlier date shows that an older version
  /// replaced the stored one. What the stored response or the 304 does not have, decides nothing.
  private static func namesAnother(_ new: HeaderFields, _ old: HeaderFields, now: Date) -> Bool {
    if let newTag = EntityTag(stored: new), let oldTag = EntityTag(stored: old) {
      return !newTag.matchesWeakly(oldTag)
    }
    func modified(_ fields: HeaderFields) -> Date? {
      fields.single("last-modified").flatMap { HTTPDate.parse($0, now: now) }
    }
    guard let newDate = modified(new), let oldDate = modified(old) else { return false }
    return newDate != oldDate
  }

  /// Decides the effect of a response to HEAD on `stored`, a response to GET that matches the same request.
  public static func decide(
    head response: ResponseHead, request: RequestHead, stored: some StoredResponseMetadata, requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> Freshening {
    if RequestDirectives(request.fields).noStore { return .unrelated(.requestNoStore) }
    guard response.fields.isStorable else { return .unrelated(.tooManyFields) }
    // 9111 4.3.5 covers 200 responses, and stored 200 responses or parts of one.
    guard response.status == 200, stored.status == 200 || stored.status == 206 else {
      return .unrelated(.headNotUsable)
    }
    guard headAgrees(response.fields, stored) else {
      var freshness = stored.freshness
      freshness.flags.insert(.stale)
      return .markStale(freshness: freshness, .headDiffers)
    }
    var getRequest = request
    getRequest.method = "GET"
    return update(
      from: response, request: getRequest, stored: stored, rule: .validatorMatches, requestTime: requestTime,
      responseTime: responseTime, options: options)
  }

  /// Whether the validators and the length in a response to HEAD equal the stored ones.
  private static func headAgrees(_ new: HeaderFields, _ stored: some StoredResponseMetadata) -> Bool {
    let old = stored.fields
    for name in ["etag", "last-modified"] where new.contains(name) {
      guard let value = new.single(name), let oldValue = old.single(name), value.hasSameBytes(as: oldValue) else {
        return false
      }
    }
    guard new.contains("content-length") else { return true }
    guard let length = new.single("content-length")?.trimmingFieldSpace() else { return false }
    // Prefer the stored field, because a body that was stored decoded has another length than its encoded form.
    if !stored.freshness.flags.contains(.incomplete), let storedLength = old.single("content-length") {
      return storedLength.trimmingFieldSpace() == length
    }
    return PartialContent.completeLength(of: stored).map { String($0) == length } ?? true
  }

  /// Whether the `Vary` of `stored` names every field that the `Vary` of `updated` names.
  private static func vary(of stored: HeaderFields, coversVaryOf updated: HeaderFields) -> Bool {
    guard let names = VaryKey.names(in: stored), let needed = VaryKey.names(in: updated) else {
      return false
    }
    return needed.isSubset(of: names)
  }

  /// The stored fields that an update neither replaces nor adds, because they describe the stored body (9111 3.2).
  ///
  /// The tag of a 304 can be stronger than that of the stored body, or belong to another encoding of it. With such a
  /// tag, the body would be combined with ranges that do not fit.
  private static let keptFields: Set<String> = ["content-encoding", "content-length", "content-range", "etag"]

  /// Returns the update of `stored` with the fields of a 304 or of a response to HEAD.
  private static func update(
    from response: ResponseHead, request: RequestHead, stored: some StoredResponseMetadata, rule: Rule,
    requestTime: Date, responseTime: Date, options: CachingOptions
  ) -> Freshening {
    var old = stored.fields
    // Both describe the old response. They would apply to the update if the newer response lacks its own.
    old.remove("Age")
    old.remove("Date")
    let merged = ResponseHead(
      status: stored.status,
      fields: old.updated(from: response.fields.sanitized().withoutHopByHop(), except: keptFields))
    let directives = ResponseDirectives(merged.fields, targetedFieldNames: options.targetedFieldNames)
    var effective = request
    // The rules for requests with credentials still apply to a response that was stored under them.
    if stored.freshness.flags.contains(.authorized), !effective.hasCredentials {
      effective.fields.set("Authorization", "")
    }
    var (fields, freshness) = Storability.storedParts(
      request: effective, response: merged, directives: directives, requestTime: requestTime,
      responseTime: responseTime, options: options)
    // The body does not change, so neither do its flags.
    freshness.flags.formUnion(stored.freshness.flags.intersection([.incomplete, .decoded]))
    if let refusal = Storability.refusal(
      ofUpdated: merged, request: effective, directives: directives, options: options)
    {
      return .updateAndRemove(fields: fields, freshness: freshness, refusal)
    }
    // 9111 4.1: the stored Vary key lacks the newly named fields, so it would match requests that differ in them.
    guard vary(of: stored.fields, coversVaryOf: merged.fields) else {
      return .updateAndRemove(fields: fields, freshness: freshness, .varyExtended)
    }
    return .update(fields: fields, freshness: freshness, rule)
  }
}
