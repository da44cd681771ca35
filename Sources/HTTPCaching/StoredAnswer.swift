#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// The form of an answer from store, once its use is permitted: the whole, a part, or 'you have it'.
struct StoredAnswer {
  let request: RequestHead
  let now: Date
  let rule: Rule
  let isStale: Bool
  let revalidatesInBackground: Bool

  /// One of `serve`, `serveStale`, `notModified`, `partial`, `unsatisfiableRange`, or `fetch` with the reason.
  func decide(_ stored: some StoredResponseView) -> ReuseDecision {
    let facts = stored.facts
    let age = facts.wholeAge(at: now)
    // 9110 13.2.1 and 14.2: conditions and ranges concern only what would be a success.
    guard stored.status == 200 || stored.status == 206 else { return whole(age) }
    let range = request.method == "GET" ? RangeRequest(request.fields) : .none

    if facts.flags.contains(.incomplete) { return part(stored, range, age) }
    if clientIsCurrent(stored) {
      return .notModified(age: age, revalidateInBackground: revalidatesInBackground, .clientIsCurrent)
    }
    guard range != .none, ifRangeHolds(stored) else { return whole(age) }
    switch range.resolved(length: stored.bodyByteCount) {
    case .span(let span):
      return .partial(span, age: age, revalidateInBackground: revalidatesInBackground, .range)
    case .outside:
      return .unsatisfiableRange(completeLength: stored.bodyByteCount, age: age, .rangeOutside)
    // Several ranges: the field may be ignored (9110 14.2), which is cheaper than asking the origin.
    case .unknown: return whole(age)
    }
  }

  private func whole(_ age: Int) -> ReuseDecision {
    isStale
      ? .serveStale(age: age, revalidateInBackground: revalidatesInBackground, rule) : .serve(age: age, rule)
  }

  /// 9111 3.3: a stored part answers a range wholly inside it, and nothing else.
  private func part(_ stored: some StoredResponseView, _ range: RangeRequest, _ age: Int) -> ReuseDecision {
    // HEAD asks for no byte, but for the head of the whole, which a part does not have.
    guard request.method == "GET" else { return .fetch(staleOnError: .forbidden, .partLacksRange) }
    if range == .none || !ifRangeHolds(stored) { return .fetch(staleOnError: .forbidden, .completePart) }
    if range == .multiple { return .fetch(staleOnError: .forbidden, .multipleRanges) }
    guard case .span(let span) = range.resolved(length: PartialContent.completeLength(of: stored)),
      PartialContent.bodyRange(of: span, in: stored) != nil
    else { return .fetch(staleOnError: .forbidden, .partLacksRange) }
    // 9111 4.3.2: the condition is evaluated only where the range is held.
    if clientIsCurrent(stored) {
      return .notModified(age: age, revalidateInBackground: revalidatesInBackground, .clientIsCurrent)
    }
    return .partial(span, age: age, revalidateInBackground: revalidatesInBackground, .range)
  }

  /// The client's own condition (9111 4.3.2): whether it has what is stored.
  private func clientIsCurrent(_ stored: some StoredResponseView) -> Bool {
    // 9110 13.1.3: If-Modified-Since is ignored beside If-None-Match.
    if let condition = request.fields["if-none-match"] {
      if condition.trimmingFieldSpace() == "*" { return true }
      guard let tag = EntityTag(stored: stored.fields) else { return false }
      // 9110 13.1.2: weak comparison. A malformed list matches nothing, so the whole is served.
      return EntityTag.list(condition)?.contains { $0.matchesWeakly(tag) } ?? false
    }
    guard let since = request.fields.single("if-modified-since").flatMap({ HTTPDate.parse($0, now: now) })
    else { return false }
    // 9111 4.3.2: without Last-Modified its Date counts, else the time of receipt, which `facts.date` holds.
    let modified = stored.fields.single("last-modified").flatMap { HTTPDate.parse($0, now: now) }
    return (modified ?? stored.facts.date) <= since
  }

  /// 9110 13.1.5: strong comparison, dates exactly; if it fails the range is ignored.
  private func ifRangeHolds(_ stored: some StoredResponseView) -> Bool {
    guard let condition = request.fields["if-range"] else { return true }
    if let tag = EntityTag(condition) {
      return EntityTag(stored: stored.fields)?.matchesStrongly(tag) ?? false
    }
    guard let date = HTTPDate.parse(condition, now: now),
      let modified = stored.fields.single("last-modified").flatMap({ HTTPDate.parse($0, now: now) })
    else { return false }
    // 9110 8.8.2.2: a modification date is strong only if the answer was made clearly after it.
    return date == modified && stored.facts.date.timeIntervalSince(modified) >= 60
  }
}
