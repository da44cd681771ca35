#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// What a 304, or the answer to a HEAD, does to a stored response (RFC 9111, 4.3.4, 4.3.5 and 3.2).
public enum Freshening: Sendable, Hashable {
  /// It is about the stored response: put these in place of its fields and facts, then use it.
  case update(fields: HTTPFields, facts: FreshnessFacts, Rule)
  /// The stored response may be used for this request, but nothing of it is updated.
  case reuseUnchanged(Rule)
  /// As `update`, but for this request only: remove the stored response afterwards (the 304 says `no-store`, or its `Vary`
  /// names fields that the stored response was not selected by).
  case updateAndRemove(fields: HTTPFields, facts: FreshnessFacts, Rule)
  /// It is not about the stored response, which stays as it is. After a 304: ask again without conditions.
  case unrelated(Rule)
  /// The stored response is out of date: put these facts in place, so that its next use validates it.
  case markStale(facts: FreshnessFacts, Rule)

  /// What a 304 does to `stored`, whose validators were sent in the conditional request.
  /// - Parameters:
  ///   - request: the request that was answered; its conditions play no part.
  ///   - isOnlyEntry: whether `stored` is the only response stored for the URI.
  public static func decide(
    notModified response: ResponseHead, request: RequestHead, stored: some StoredResponseView, isOnlyEntry: Bool,
    requestTime: Date, responseTime: Date, options: CachingOptions
  ) -> Freshening {
    // 9111 5.2.1.5: no part of this answer is kept.
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

  /// 9111 4.3.4: by a strong validator those that share it; else by weak ones; else the only one, if it has none.
  private static func identify(_ new: HTTPFields, _ old: HTTPFields, isOnlyEntry: Bool) -> Identity {
    let oldTag = EntityTag(stored: old)
    if let newTag = EntityTag(stored: new) {
      if let oldTag {
        if newTag.isWeak ? newTag.matchesWeakly(oldTag) : newTag.matchesStrongly(oldTag) {
          return .updates(.validatorMatches)
        }
        // The origin compared weakly and found no difference: the response may be used, but is not the one to update.
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

  /// What the answer to a HEAD does to `stored`, a response to GET that suits the same request.
  public static func decide(
    head response: ResponseHead, request: RequestHead, stored: some StoredResponseView, requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> Freshening {
    if RequestDirectives(request.fields).noStore { return .unrelated(.requestNoStore) }
    guard response.fields.isStorable else { return .unrelated(.tooManyFields) }
    // 9111 4.3.5 speaks of a 200, and of what is one or a part of one.
    guard response.status == 200, stored.status == 200 || stored.status == 206 else {
      return .unrelated(.headNotUsable)
    }
    guard headAgrees(response.fields, stored) else {
      var facts = stored.facts
      facts.flags.insert(.stale)
      return .markStale(facts: facts, .headDiffers)
    }
    var getRequest = request
    getRequest.method = "GET"
    return update(
      from: response, request: getRequest, stored: stored, rule: .validatorMatches, requestTime: requestTime,
      responseTime: responseTime, options: options)
  }

  /// Validators received equal those stored, and so does the length.
  private static func headAgrees(_ new: HTTPFields, _ stored: some StoredResponseView) -> Bool {
    let old = stored.fields
    for name in ["etag", "last-modified"] where new.contains(name) {
      guard let value = new.single(name), value == old.single(name) else { return false }
    }
    guard new.contains("content-length") else { return true }
    guard let length = new.single("content-length")?.trimmingFieldSpace() else { return false }
    // The stored field first: a body kept decoded has another length than its coded form.
    if !stored.facts.flags.contains(.incomplete), let storedLength = old.single("content-length") {
      return storedLength.trimmingFieldSpace() == length
    }
    return PartialContent.completeLength(of: stored).map { String($0) == length } ?? true
  }

  /// Whether the `Vary` of `stored` names every field that the one of `updated` names.
  private static func isSelected(_ stored: HTTPFields, byAllThatSelect updated: HTTPFields) -> Bool {
    guard let names = VarySelection.names(in: stored), let needed = VarySelection.names(in: updated) else {
      return false
    }
    return needed.isSubset(of: names)
  }

  /// 9111 3.2: fields that the stored body's processing depends on stay.
  private static let kept: Set<String> = ["content-encoding", "content-length", "content-range"]

  private static func update(
    from response: ResponseHead, request: RequestHead, stored: some StoredResponseView, rule: Rule, requestTime: Date,
    responseTime: Date, options: CachingOptions
  ) -> Freshening {
    var old = stored.fields
    // Both describe the older answer: without their own successors they would count against the new one.
    old.remove("Age")
    old.remove("Date")
    let merged = ResponseHead(
      status: stored.status, fields: old.updated(from: response.fields.sanitized().withoutHopByHop(), except: kept))
    let directives = ResponseDirectives(merged.fields, targetedFieldNames: options.targetedFieldNames)
    var effective = request
    // A validation carries the credentials of the request it serves; the answer was stored under the same ones.
    if stored.facts.flags.contains(.authorized), !effective.hasCredentials {
      effective.fields.set("Authorization", "")
    }
    guard
      case .store(let fields, var facts) = Storability.kept(
        request: effective, response: merged, directives: directives, requestTime: requestTime,
        responseTime: responseTime, options: options)
    else { return .unrelated(rule) }
    // What is true of the body stays true.
    facts.flags.formUnion(stored.facts.flags.intersection([.incomplete, .decoded]))
    if let refusal = Storability.refusal(ofUpdated: merged, request: effective, options: options) {
      return .updateAndRemove(fields: fields, facts: facts, refusal)
    }
    // 9111 4.1: it is stored under the fields that its Vary named before, and would answer requests that differ in others.
    guard isSelected(stored.fields, byAllThatSelect: merged.fields) else {
      return .updateAndRemove(fields: fields, facts: facts, .varyExtended)
    }
    return .update(fields: fields, facts: facts, rule)
  }
}
