import Foundation
import HTTPCaching
import LMDBURLCache

/// Runs a case with the decisions alone: a dictionary is the store, and the steps are the origin.
final class DecisionRunner {
  private struct Entry: StoredResponseMetadata {
    var status: Int
    var freshness: FreshnessInfo
    var fields: HeaderFields
    var body: [UInt8]
    var vary: VaryKey
    var bodyByteCount: Int { body.count }
  }

  private let test: ConformanceCase
  private let clock = ConformanceClock()
  private var options = CachingOptions()
  private var entries: [URL: [Entry]] = [:]
  /// The requests of the present step that reached the origin.
  private var seen: [ConformanceSight] = []
  private var index = 0

  private var step: Step { test.steps[index] }

  init(test: ConformanceCase) {
    self.test = test
    options.mode = test.settings.caching == .shared ? .shared : .private
    options.targetedFieldNames = test.settings.targetedFieldNames
  }

  func run() -> [String] {
    var failures: [String] = []
    for index in test.steps.indices {
      self.index = index
      clock.advance(by: step.after)
      seen = []
      let outcome = respond()
      failures += ConformanceJudge(test: test, index: index).problems(outcome, seen: seen, clock)
    }
    return failures
  }

  // MARK: One request

  private func respond() -> ConformanceOutcome {
    let text = "http://127.0.0.1:80/" + test.id + step.suffix.prefix { $0 != "#" }
    guard let url = URL(string: text) else { return ConformanceOutcome(error: "no URL: \(text)") }
    let request = RequestHead(method: step.method, url: url, fields: joined(clock.resolve(step.request)))
    let policy = RequestPolicy(step.policy)
    let found = entries[url, default: []].indices
      .filter { entries[url]![$0].vary.matches(request, credentialDigest: { $0 }) }
      .max { isBehind(entries[url]![$0], entries[url]![$1]) }
    guard let found, let stored = entries[url]?[found] else { return miss(request, policy) }
    let decision = Reuse.decide(request: request, stored: stored, policy: policy, now: clock.now, options: options)
    switch decision {
    case .revalidate(let conditional, let staleOnError, _):
      let (head, body, times) = ask(request.conditional(on: conditional), policy)
      if head.status == 304 { return confirm(request, found, head, times) }
      if staleOnError.mayServe(after: .status(head.status), now: clock.now) { return give(request, stored) }
      return take(request, head, body, times)
    case .fetch(let staleOnError, _):
      let (head, body, times) = ask(request, policy)
      if staleOnError.mayServe(after: .status(head.status), now: clock.now) { return give(request, stored) }
      return take(request, head, body, times)
    case .fetchMissingRange(let fields, _):
      let (head, body, times) = ask(request.conditional(on: fields), policy)
      let taken = take(request.conditional(on: fields), head, body, times)
      guard head.status == 206, let complete = entries[url]?.last else { return taken }
      return give(request, complete)
    case .gatewayTimeout(let rule):
      return rule == .doNotLoad ? ConformanceOutcome(error: "not stored") : ConformanceOutcome(status: 504)
    default: return outcome(of: decision, stored, request)
    }
  }

  private func miss(_ request: RequestHead, _ policy: RequestPolicy) -> ConformanceOutcome {
    switch Reuse.decideMiss(request: request, policy: policy, options: options) {
    case .gatewayTimeout(let rule):
      return rule == .doNotLoad ? ConformanceOutcome(error: "not stored") : ConformanceOutcome(status: 504)
    case .fetch, .bypass:
      let (head, body, times) = ask(request, policy)
      return take(request, head, body, times)
    }
  }

  /// RFC 9111, 4 and 4.1: a variant with Vary fields is preferred, then the newer one.
  private func isBehind(_ one: Entry, _ other: Entry) -> Bool {
    one.vary.hasVaryFields == other.vary.hasVaryFields
      ? one.freshness.date < other.freshness.date : other.vary.hasVaryFields
  }

  // MARK: The origin

  private typealias Times = (request: Date, response: Date)

  private func ask(_ request: RequestHead, _ policy: RequestPolicy) -> (ResponseHead, [UInt8], Times) {
    var fields = request.fields
    if !fields.contains("Cache-Control") { for (name, value) in policy.requestFields { fields.set(name, value) } }
    seen.append(ConformanceSight(fields: fields.map { ($0.name, $0.value) }))
    let requestTime = clock.now
    clock.advance(by: step.delay)
    let head = ResponseHead(status: step.status, fields: joined(clock.resolve(step.dated)))
    let isEmpty = step.method == "HEAD" || step.status == 304 || step.status == 204
    return (head, isEmpty ? [] : Array(step.body(index).utf8), (requestTime, clock.now))
  }

  /// Joins lines with equal names, as Foundation does.
  private func joined(_ lines: FieldLines) -> HeaderFields {
    var fields = HeaderFields()
    for (name, value) in lines { fields.set(name, fields[name].map { $0 + ", " + value } ?? value) }
    return fields
  }

  // MARK: Handling of the reply

  private func take(
    _ request: RequestHead, _ head: ResponseHead, _ body: [UInt8], _ times: Times
  ) -> ConformanceOutcome {
    invalidate(request, head)
    let storability = Storability.decide(
      request: request, response: head, requestTime: times.request, responseTime: times.response, options: options)
    if case .store(let fields, let freshness) = storability {
      let vary = VaryKey(
        request: request, response: head.fields, options: options, credentialDigest: { $0 })
      let kept = keptFields(fields)
      keep(Entry(status: head.status, freshness: freshness, fields: kept, body: body, vary: vary), request.url)
    } else if storability != .refuse(.requestNoStore), request.method == "GET", (200..<400).contains(head.status) {
      entries[request.url]?.removeAll { $0.vary.matches(request, credentialDigest: { $0 }) }
    }
    return outcome(head, body)
  }

  private func keptFields(_ fields: HeaderFields) -> HeaderFields {
    var fields = fields
    if options.mode == .shared { fields.remove("Set-Cookie") }
    return fields
  }

  private func keep(_ entry: Entry, _ url: URL) {
    var entry = entry
    if let old = entries[url]?.first(where: { $0.vary == entry.vary }) {
      entry = joined(entry, with: old)
    }
    entries[url, default: []].removeAll { $0.vary == entry.vary }
    entries[url, default: []].append(entry)
  }

  private func joined(_ part: Entry, with old: Entry) -> Entry {
    guard part.freshness.flags.contains(.incomplete),
      case .combine(let status, let fields, let freshness, let pieces) = PartialContent.combine(
        fields: part.fields, freshness: part.freshness, byteCount: part.body.count, stored: old)
    else { return part }
    let body = pieces.flatMap { piece -> ArraySlice<UInt8> in
      switch piece {
      case .stored(let range): old.body[range]
      case .new(let range): part.body[range]
      }
    }
    return Entry(status: status, freshness: freshness, fields: fields, body: body, vary: part.vary)
  }

  private func confirm(
    _ request: RequestHead, _ found: Int, _ head: ResponseHead, _ times: Times
  ) -> ConformanceOutcome {
    var stored = entries[request.url]![found]
    let freshening = Freshening.decide(
      notModified: head, request: request, stored: stored, requestTime: times.request, responseTime: times.response,
      options: options)
    switch freshening {
    case .update(let fields, let freshness, _):
      stored.fields = fields
      stored.freshness = freshness
      entries[request.url]![found] = stored
      return give(request, stored)
    case .updateAndRemove(let fields, let freshness, _):
      stored.fields = fields
      stored.freshness = freshness
      entries[request.url]!.remove(at: found)
      return give(request, stored)
    case .unrelated, .markStale: return outcome(head, [])
    }
  }

  private func invalidate(_ request: RequestHead, _ head: ResponseHead) {
    let targets = Invalidation.targets(request: request, response: head)
    for url in targets.urls { entries = entries.filter { $0.key.absoluteString != url.absoluteString } }
    for group in targets.groups {
      for (url, list) in entries where Invalidation.origin(of: url) == targets.origin {
        entries[url] = list.filter { !CacheGroups.groups(of: $0.fields).contains(group) }
      }
    }
  }

  // MARK: Responses

  private func give(_ request: RequestHead, _ stored: Entry) -> ConformanceOutcome {
    outcome(
      of: Reuse.decideResponse(request: request, stored: stored, now: clock.now, rule: .validated), stored, request)
  }

  private func outcome(_ head: ResponseHead, _ body: [UInt8]) -> ConformanceOutcome {
    ConformanceOutcome(
      status: head.status, fields: Dictionary(head.fields.map { ($0.name, $0.value) }) { $0 + ", " + $1 },
      body: Data(body))
  }

  private func outcome(of decision: ReuseDecision, _ stored: Entry, _ request: RequestHead) -> ConformanceOutcome {
    switch decision {
    case .serve(let age, _), .serveStale(let age, _, _):
      let head = ResponseHead(status: stored.status, fields: Reuse.responseFields(for: stored, age: age))
      return outcome(head, request.method == "HEAD" ? [] : stored.body)
    case .notModified(let age, _, _): return outcome(Reuse.notModifiedHead(for: stored, age: age), [])
    case .partial(let range, let age, _, _):
      guard let positions = PartialContent.bodyRange(of: range, in: stored) else {
        return ConformanceOutcome(error: "range not held")
      }
      return outcome(PartialContent.head(for: stored, range: range, age: age), Array(stored.body[positions]))
    case .unsatisfiableRange(let length, _, _):
      return outcome(PartialContent.unsatisfiableHead(completeLength: length), [])
    default: return ConformanceOutcome(error: "no response: \(decision)")
    }
  }
}
