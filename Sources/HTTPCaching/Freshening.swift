#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The effect of a 304, or of a response to HEAD, on a stored response (RFC 9111, sections 3.2, 4.3.4 and 4.3.5).
public enum Freshening: Sendable, Hashable {
  /// Replace the fields and the freshness of the stored response with these, then use it.
  case update(fields: HTTPFields, freshness: FreshnessInfo, Rule)
  /// The stored response may be used for this request, but nothing of it is updated.
  case reuseUnchanged(Rule)
  /// Like `update`, but only for this request: remove the stored response afterwards.
  ///
  /// The 304 has `no-store`, or its `Vary` names fields that are not in the Vary key of the stored response.
  case updateAndRemove(fields: HTTPFields, freshness: FreshnessInfo, Rule)
  /// Leave the unrelated stored response unchanged. After a 304, send the request without conditions.
  case unrelated(Rule)
  /// Replace the freshness of the outdated stored response with this, so that its next use validates it.
  case markStale(freshness: FreshnessInfo, Rule)

  /// Decides the effect of a 304 on `stored`, whose validators were in the conditional request.
  /// - Parameters:
  ///   - request: The request; its conditions are ignored.
  ///   - isOnlyEntry: Whether `stored` is the only stored response of the URI.
  public static func decide(
    notModified response: ResponseHead, request: RequestHead, stored: some StoredResponseMetadata, isOnlyEntry: Bool,
    requestTime: Date, responseTime: Date, options: CachingOptions
  ) -> Freshening {
    // 9111 5.2.1.5: store no part of this response.
    if RequestDirectives(request.fields).noStore { return .reuseUnchanged(.requestNoStore) }
    guard response.fields.isStorable else { return .unrelated(.tooManyFields) }
    switch identify(response.fields, stored.fields, isOnlyEntry: isOnlyEntry) {
    case .updates(let rule):
      return update(
        from: response, request: request, stored: stored, rule: rule, requestTime: requestTime,
        responseTime: responseTime, options: options)
    case .confirms(let rule): return .reuseUnchanged(rule)
    case .another(let rule): return .unrelated(rule)
    }
  }

  private enum Identity {
    case updates(Rule)
    case confirms(Rule)
    case another(Rule)
  }

  /// Compares validators as in RFC 9111, section 4.3.4: strong, then weak, then the only stored response without any.
  private static func identify(_ new: HTTPFields, _ old: HTTPFields, isOnlyEntry: Bool) -> Identity {
    let oldTag = EntityTag(stored: old)
    if let newTag = EntityTag(stored: new) {
      if let oldTag {
        if newTag.isWeak ? newTag.matchesWeakly(oldTag) : newTag.matchesStrongly(oldTag) {
          return .updates(.validatorMatches)
        }
        // The origin compared weakly and found no difference. The response can be used, but must not be updated.
        return newTag.matchesWeakly(oldTag) ? .confirms(.noValidator) : .another(.validatorDiffers)
      }
      return new.single("last-modified") == old.single("last-modified")
        ? .confirms(.noValidator) : .another(.validatorDiffers)
    }
    if let modified = new.single("last-modified") {
      return modified == old.single("last-modified") ? .updates(.validatorMatches) : .another(.validatorDiffers)
    }
    let hasValidator = oldTag != nil || old.contains("last-modified")
    return !hasValidator && isOnlyEntry ? .updates(.onlyEntry) : .confirms(.noValidator)
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

  /// Whether the received validators and the received length equal the stored ones.
  private static func headAgrees(_ new: HTTPFields, _ stored: some StoredResponseMetadata) -> Bool {
    let old = stored.fields
    for name in ["etag", "last-modified"] where new.contains(name) {
      guard let value = new.single(name), value == old.single(name) else { return false }
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
  private static func isSelected(_ stored: HTTPFields, byAllThatSelect updated: HTTPFields) -> Bool {
    guard let names = VaryKey.names(in: stored), let needed = VaryKey.names(in: updated) else {
      return false
    }
    return needed.isSubset(of: names)
  }

  /// Fields that the processing of the stored body depends on; an update keeps them (9111 3.2).
  private static let kept: Set<String> = ["content-encoding", "content-length", "content-range"]

  private static func update(
    from response: ResponseHead, request: RequestHead, stored: some StoredResponseMetadata, rule: Rule,
    requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> Freshening {
    var old = stored.fields
    // Both describe the older response. They would affect the new one if it lacks its own.
    old.remove("Age")
    old.remove("Date")
    let merged = ResponseHead(
      status: stored.status, fields: old.updated(from: response.fields.sanitized().withoutHopByHop(), except: kept))
    let directives = ResponseDirectives(merged.fields, targetedFieldNames: options.targetedFieldNames)
    var effective = request
    // A validation has the credentials of its request, and the response was stored under the same ones.
    if stored.freshness.flags.contains(.authorized), !effective.hasCredentials {
      effective.fields.set("Authorization", "")
    }
    guard
      case .store(let fields, var freshness) = Storability.kept(
        request: effective, response: merged, directives: directives, requestTime: requestTime,
        responseTime: responseTime, options: options)
    else { return .unrelated(rule) }
    // Properties of the body do not change.
    freshness.flags.formUnion(stored.freshness.flags.intersection([.incomplete, .decoded]))
    if let refusal = Storability.refusal(ofUpdated: merged, request: effective, options: options) {
      return .updateAndRemove(fields: fields, freshness: freshness, refusal)
    }
    // 9111 4.1: its Vary key has only the fields named before, so it would match requests that differ in the others.
    guard isSelected(stored.fields, byAllThatSelect: merged.fields) else {
      return .updateAndRemove(fields: fields, freshness: freshness, .varyExtended)
    }
    return .update(fields: fields, freshness: freshness, rule)
  }
}
