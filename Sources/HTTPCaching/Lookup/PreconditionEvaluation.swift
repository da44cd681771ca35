#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Evaluates preconditions and ranges of a request for which a stored response may be used.
struct PreconditionEvaluation {
  let request: RequestHead
  let now: Date
  /// The reason to report if the complete response is served.
  let rule: Rule
  let isStale: Bool
  let revalidatesInBackground: Bool
  /// Records the checks; nil unless the decision is explained.
  var trace: DecisionTrace?

  /// Returns `serve`, `serveStale`, `notModified`, `partial` or `unsatisfiableRange`, or `fetch` with the reason.
  func decide(_ stored: some StoredResponseMetadata) -> ReuseDecision {
    let freshness = stored.freshness
    let age = freshness.wholeAge(at: now)
    // 9110 13.2.1 and 14.2: conditions and ranges apply only to successful responses.
    guard stored.status == 200 || stored.status == 206 else { return whole(age) }
    let range = request.method == "GET" ? RangeRequest(request.fields) : .none

    if freshness.flags.contains(.incomplete) { return part(stored, range, age) }
    if trace.check(.clientIsCurrent, clientIsCurrent(stored)) {
      return .notModified(age: age, revalidateInBackground: revalidatesInBackground, .clientIsCurrent)
    }
    let isHonored = range != .none && !hasDecodedContent(stored) && ifRangeHolds(stored)
    switch isHonored ? range.resolved(length: stored.bodyByteCount) : .unknown {
    case .span(let span):
      trace.conclude(.range, rangeFigures)
      return .partial(span, age: age, revalidateInBackground: revalidatesInBackground, .range)
    case .outside:
      trace.conclude(.rangeOutside, rangeFigures)
      return .unsatisfiableRange(completeLength: stored.bodyByteCount, age: age, .rangeOutside)
    // Several ranges may be ignored, too, which is cheaper than a request to the origin.
    case .unknown:
      _ = trace.check(.range, false, rangeFigures)
      return whole(age)
    }
  }

  private func whole(_ age: Int) -> ReuseDecision {
    isStale
      ? .serveStale(age: age, revalidateInBackground: revalidatesInBackground, rule) : .serve(age: age, rule)
  }

  /// Decides for an incomplete response, which satisfies only ranges within it (9111 3.3).
  private func part(_ stored: some StoredResponseMetadata, _ range: RangeRequest, _ age: Int) -> ReuseDecision {
    // HEAD needs the head of the complete response, which an incomplete response lacks.
    guard request.method == "GET" else { return forward(.partLacksRange) }
    if range == .none || hasDecodedContent(stored) || !ifRangeHolds(stored) { return forward(.completePart) }
    if range == .multiple { return forward(.multipleRanges) }
    guard case .span(let span) = range.resolved(length: PartialContent.completeLength(of: stored)),
      PartialContent.bodyRange(of: span, in: stored) != nil
    else { return forward(.partLacksRange) }
    // 9111 4.3.2: evaluate the condition only if the range is stored.
    if trace.check(.clientIsCurrent, clientIsCurrent(stored)) {
      return .notModified(age: age, revalidateInBackground: revalidatesInBackground, .clientIsCurrent)
    }
    trace.conclude(.range, rangeFigures)
    return .partial(span, age: age, revalidateInBackground: revalidatesInBackground, .range)
  }

  private func forward(_ rule: Rule) -> ReuseDecision {
    trace.conclude(rule, rangeFigures)
    return .fetch(staleOnError: .forbidden, rule)
  }

  private var rangeFigures: [DecisionCheck.Figure] { request.fields["range"].map { [.text("range", $0)] } ?? [] }

  /// Whether the client's condition shows that it has the stored response (9111 4.3.2).
  private func clientIsCurrent(_ stored: some StoredResponseMetadata) -> Bool {
    // 9110 13.1.3: If-Modified-Since is ignored if there is If-None-Match.
    if let condition = request.fields["if-none-match"] {
      if condition.trimmingFieldSpace() == "*" { return true }
      guard let tag = EntityTag(stored: stored.fields) else { return false }
      // 9110 13.1.2: weak comparison. A malformed list matches nothing, so the complete response is served.
      return EntityTag.list(condition)?.contains { $0.matchesWeakly(tag) } ?? false
    }
    guard let since = request.fields.single("if-modified-since").flatMap({ HTTPDate.parse($0, now: now) })
    else { return false }
    // 9111 4.3.2: without Last-Modified, use Date or the time of receipt, which `freshness.date` contains.
    let modified = stored.fields.single("last-modified").flatMap { HTTPDate.parse($0, now: now) }
    return (modified ?? stored.freshness.date) <= since
  }

  /// Whether the transport decoded the stored content. A range counts other bytes than its, and may be ignored (9110
  /// 14.2).
  private func hasDecodedContent(_ stored: some StoredResponseMetadata) -> Bool {
    stored.freshness.flags.contains(.decoded) && stored.fields.contains("content-encoding")
  }

  /// Whether `If-Range` holds, by strong comparison and exact dates (9110 13.1.5). Otherwise the range is ignored.
  private func ifRangeHolds(_ stored: some StoredResponseMetadata) -> Bool {
    guard let condition = request.fields["if-range"] else { return true }
    if let tag = EntityTag(condition) {
      return EntityTag(stored: stored.fields)?.matchesStrongly(tag) ?? false
    }
    guard let date = HTTPDate.parse(condition, now: now),
      let modified = stored.fields.single("last-modified").flatMap({ HTTPDate.parse($0, now: now) })
    else { return false }
    // 9110 8.8.2.2: a modification date is strong only if the response was created well after it. A weak tag declares
    // that the bytes can differ without a modification.
    return date == modified && stored.freshness.date.timeIntervalSince(modified) >= 60
      && !stored.freshness.flags.contains(.weakETag)
  }
}
