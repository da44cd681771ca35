import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LoopbackOrigin
import Testing

// The cookies that a load adds, which an explanation gets with the request.
@testable import LMDBURLCache

/// Explains each request of each conformance case, then sends it, and compares.
@Suite("Explanations of requests", .serialized)
struct ExplanationTests {
  private static let cases = ConformanceTables.all.filter { $0.paths.contains(.data) }

  /// Every eighth case.
  private static let inBothModes = Set(cases.enumerated().filter { $0.offset % 8 == 0 }.map(\.element.id))

  /// The effect that a request had.
  private struct Effect {
    var result: LoadResult?
    var error: String?
    var seen: [ConformanceSight]

    /// The response's source; nil if the request failed.
    var source: ResponseSource? { result?.source }
    /// The reason, unless a redirect led to the response of another request.
    func reason(of url: URL) -> Rule? { result?.response.url == url ? result?.reason : nil }
  }

  @Test("Each conformance case that runs over data(for:) is explained")
  func coverage() {
    let missing = ConformanceTables.all.filter { test in !Self.cases.contains { $0.id == test.id } }
    #expect(missing.allSatisfy { $0.settings.excluded.contains(.data) })
    #expect(Self.cases.count > 200 && missing.count * 20 < Self.cases.count)
  }

  @Test("An explanation names the rule that then decides, also for a cache of the other mode", arguments: cases)
  func rule(_ test: ConformanceCase) async throws {
    // The second cache finds the responses that the first one has stored.
    let other = test.settings.caching == .shared ? ConformanceCase.Settings.CachingSettings.private : .shared
    try await explainAndSend(
      test, Self.inBothModes.contains(test.id) ? [test.settings.caching, other] : [test.settings.caching])
  }

  /// Every sixth case, with QUERY in place of GET.
  private static let queries = QueryConformanceTests.cases.enumerated().filter { $0.offset % 6 == 0 }.map(\.element)

  @Test("An explanation of a query names the rule that then decides", arguments: queries)
  func ruleOfQuery(_ test: ConformanceCase) async throws {
    try await explainAndSend(test, [test.settings.caching])
  }

  /// Sends the requests of a case with a cache of each mode in turn, which use one directory.
  private func explainAndSend(
    _ test: ConformanceCase, _ modes: [ConformanceCase.Settings.CachingSettings]
  ) async throws {
    let clock = ConformanceClock()
    // Not shared among cases, because each request reopens it for an inspection.
    let directory = ConformanceRunner.root.appendingPathComponent("explained-\(test.id)")
    let current = ConformanceLock(0)
    let origin = try LoopbackOrigin { _ in
      let index = current.withLock { $0 }
      clock.advance(by: test.steps[index].delay)
      return ConformanceRunner.reply(to: test.steps[index], index, clock)
    }
    defer { origin.stop() }
    for mode in modes {
      var test = test
      test.settings.caching = mode
      let runner = ConformanceRunner(test: test, path: .data, clock: clock)
      let cache = try runner.makeCache(directory)
      try await explainAndSend(runner, cache, directory, origin, current)
    }
  }

  private func explainAndSend(
    _ runner: ConformanceRunner, _ cache: LMDBURLCache, _ directory: URL, _ origin: LoopbackOrigin,
    _ current: ConformanceLock<Int>
  ) async throws {
    let (test, clock) = (runner.test, runner.clock)
    for (index, step) in test.steps.enumerated() {
      clock.advance(by: step.after)
      current.withLock { $0 = index }
      let url = origin.url("/" + test.id + step.suffix)
      let request = runner.request(step, url)
      // Cookies come from the cache's own context.
      let hasCookies = request.value(forHTTPHeaderField: "Cookie") != nil
      let completed = hasCookies ? request : cache.ownContext.addingCookies(to: request)
      #expect(cache.flush())
      let before = origin.requestCount
      let explanation = try #require(
        try CacheDirectory(existingAt: directory).explain(
          completed, partition: test.settings.partition?(completed) ?? "", options: cache.core.options.caching,
          now: clock.now))
      #expect(origin.requestCount == before)
      var isInBackground = false
      if case .stored(_, _, let revalidates) = explanation.decision.outcome { isInBackground = revalidates }
      let effect = await effect(of: request, cache, origin, before: before, isInBackground: isInBackground)
      let problem = Self.problem(explanation.decision, effect, url)
      #expect(problem == nil, "\(test.id), request \(index), \(explanation.decision.rule)")
      // The checks end with the rule, and each rule that decides is among them.
      #expect(
        explanation.decision.checks.contains { $0.applies && $0.rule == explanation.decision.rule },
        "\(test.id), request \(index): no check applies for \(explanation.decision.rule)")
      // A request that forbids storing by itself is not refused afterwards.
      guard let refusal = effect.result?.storageRefusal, step.method == "GET", effect.reason(of: url) != nil,
        refusal != explanation.decision.rule
      else { continue }
      let later = try #require(
        try CacheDirectory(existingAt: directory).explain(
          completed, partition: test.settings.partition?(completed) ?? "", options: cache.core.options.caching))
      #expect(later.lastRefusal?.rule == refusal.id, "\(test.id), request \(index)")
      #expect(Rule.storageRefusals.contains(refusal))
    }
  }

  private func effect(
    of request: URLRequest, _ cache: LMDBURLCache, _ origin: LoopbackOrigin, before: Int, isInBackground: Bool
  ) async -> Effect {
    var effect = Effect(seen: [])
    do {
      effect.result = try await cache.load(request)
    } catch {
      effect.error = "\(error)"
    }
    if isInBackground { await origin.waitForRequests(count: before + 1) }
    await cache.client.finishBackgroundWork()
    effect.seen = origin.requests.dropFirst(before).map {
      ConformanceSight(fields: $0.fields.map { ($0.name, $0.value) })
    }
    return effect
  }

  /// Returns a contradiction between a decision and the effect that followed; nil if there is none.
  private static func problem(_ decision: RequestExplanation, _ effect: Effect, _ url: URL) -> String? {
    func sent(_ fields: HeaderFields) -> Bool {
      fields.allSatisfy { effect.seen.first?.value($0.name) == $0.value }
    }
    let reason = effect.reason(of: url)
    switch decision.outcome {
    case .stored(let status, let isStale, let revalidates):
      guard let result = effect.result else { return "failed with \(effect.error ?? "nothing")" }
      if let reason, reason != decision.rule { return "decided by \(reason)" }
      guard result.response.url == url else { return effect.seen.isEmpty ? nil : "the origin was asked" }
      if (result.response as? HTTPURLResponse)?.statusCode != status { return "another status" }
      if result.source != (isStale ? .stale : .hit) { return "from \(result.source)" }
      return effect.seen.isEmpty == !revalidates ? nil : "\(effect.seen.count) requests to the origin"
    case .unavailable:
      if !effect.seen.isEmpty { return "the origin was asked" }
      if decision.rule == .doNotLoad { return effect.error == nil ? "no error" : nil }
      return reason == decision.rule ? nil : "decided by \(reason?.id ?? "nothing")"
    case .validate(let fields, let staleOnError):
      if !sent(fields) { return "sent without \(fields.map(\.name))" }
      return afterOrigin(decision, effect, reason, staleOnError, canValidate: true)
    case .complete(let fields):
      if !sent(fields) { return "sent without \(fields.map(\.name))" }
      return effect.seen.isEmpty ? "the origin was not asked" : nil
    case .fetch(let staleOnError): return afterOrigin(decision, effect, reason, staleOnError, canValidate: false)
    case .bypass: return afterOrigin(decision, effect, reason, nil, canValidate: false)
    }
  }

  private static func afterOrigin(
    _ decision: RequestExplanation, _ effect: Effect, _ reason: Rule?, _ staleOnError: StaleOnError?, canValidate: Bool
  ) -> String? {
    if effect.seen.isEmpty { return "the origin was not asked" }
    guard let reason else { return nil }
    switch effect.source {
    case .miss?: return reason == decision.rule ? nil : "decided by \(reason)"
    case .staleOnError?: return reason == staleOnError?.rule ? nil : "stale by \(reason)"
    case .revalidated?: return canValidate ? nil : "validated"
    default: return "from \(effect.source?.rawValue ?? "nothing")"
    }
  }
}
