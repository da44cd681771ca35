import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// The result of a request.
struct ConformanceOutcome: Sendable {
  var status = 0
  var fields: [String: String] = [:]
  var body = Data()
  var error: String?

  func value(_ name: String) -> String? {
    fields.first { $0.key.lowercased() == name.lowercased() }?.value
  }
}

/// The fields of a request that reached the origin.
struct ConformanceSight: Sendable {
  var fields: FieldLines

  func value(_ name: String) -> String? {
    let values = fields.filter { $0.0.lowercased() == name.lowercased() }.map(\.1)
    return values.isEmpty ? nil : values.joined(separator: ", ")
  }
}

/// Runs a case with a real origin, through Foundation.
struct ConformanceRunner {
  let test: ConformanceCase
  let path: ConformancePath
  let clock: ConformanceClock

  private static let sharedClock = ConformanceClock()
  private static let sharedCaches = ConformanceLock<[String: LMDBURLCache]>([:])

  /// - Parameter clock: The clock of another runner of the case; nil to begin the case.
  init(test: ConformanceCase, path: ConformancePath, clock: ConformanceClock? = nil) {
    (self.test, self.path) = (test, path)
    self.clock = clock ?? (Self.needsOwnCache(test) ? ConformanceClock() : Self.sharedClock)
    if clock == nil { self.clock.beginSecond() }
  }

  /// Whether a case has a cache of its own, because it has partitions, or would get the cookies of other cases.
  static func needsOwnCache(_ test: ConformanceCase) -> Bool {
    let fields = test.steps.flatMap { $0.request + $0.reply }
    return test.settings.partition != nil || fields.contains { $0.0.lowercased().contains("cookie") }
  }

  /// The parent of all caches' directories, in memory if it has space for many.
  ///
  /// Removed at exit, because a store may outlive its cache and would detect a deleted directory.
  static let root: URL = {
    let root = URL(fileURLWithPath: memoryDirectory(for: 8 << 30))
    Self.rootPath.withLock { $0 = root.path }
    atexit {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(atPath: ConformanceRunner.rootPath.withLock { $0 })
    }
    return root
  }()
  /// A global, because a C function pointer cannot capture a value.
  private static let rootPath = Mutex("")

  func run() async throws -> [String] {
    let cache = try cache(in: path.rawValue).cache
    let current = ConformanceLock(0)
    let clock = clock
    let steps = test.steps
    let origin = try LoopbackOrigin { _ in
      let index = current.withLock { $0 }
      clock.advance(by: steps[index].delay)
      return Self.reply(to: steps[index], index, clock)
    }
    defer { origin.stop() }
    let session = URLSession(configuration: .ephemeral.caching(with: cache))
    defer { session.finishTasksAndInvalidate() }

    var failures: [String] = []
    for (index, step) in steps.enumerated() {
      clock.advance(by: step.after)
      current.withLock { $0 = index }
      let before = origin.requestCount
      let url = origin.url("/" + test.id + step.suffix)
      let outcome = await outcome(of: request(step, url), cache, session)
      if step.expected == .background {
        await origin.waitForRequests(count: before + 1)
        await cache.client.finishBackgroundWork()
      }
      let seen = origin.requests.dropFirst(before).map {
        ConformanceSight(fields: $0.fields.map { ($0.name, $0.value) })
      }
      failures += ConformanceJudge(test: test, index: index).problems(outcome, seen: Array(seen), clock)
    }
    return failures
  }

  /// Returns a cache with the settings of the case, and its directory. Cases share caches if they can, because opening
  /// one takes longer than a case.
  func cache(in name: String) throws -> (cache: LMDBURLCache, directory: URL) {
    if Self.needsOwnCache(test) {
      let directory = Self.root.appendingPathComponent("\(name)-\(test.id)")
      return (try makeCache(directory), directory)
    }
    let directory = Self.root.appendingPathComponent(name)
    let settings = test.settings
    let key = "\(name) \(settings.caching) \(settings.cacheStatusName ?? "") \(settings.targetedFieldNames)"
    if let cache = Self.sharedCaches.withLock({ $0[key] }) { return (cache, directory) }
    let cache = try makeCache(directory)
    Self.sharedCaches.withLock { $0[key] = cache }
    return (cache, directory)
  }

  func makeCache(_ directory: URL) throws -> LMDBURLCache {
    var options = LMDBURLCache.Options()
    let clock = clock
    options.clock = { clock.now }
    options.caching.mode = test.settings.caching == .shared ? .shared : .private
    // Each request shows what HTTP says, also after a failure. SlowOriginTests has the hold-off.
    options.caching.holdOff = nil
    options.caching.cacheStatusName = test.settings.cacheStatusName
    options.caching.targetedFieldNames = test.settings.targetedFieldNames
    if let partition = test.settings.partition { options.partition = partition }
    let cache = try LMDBURLCache(
      directory: directory, memoryCapacity: path == .session ? 4 << 20 : 0, diskCapacity: 64 << 20, options: options)
    cache.minCacheInterval = 0
    return cache
  }

  static func reply(to step: Step, _ index: Int, _ clock: ConformanceClock) -> Reply {
    let lines = clock.resolve(step.dated)
    let reply = Reply(step.status, lines, step.body(index))
    return step.shape?(reply) ?? reply
  }

  func request(_ step: Step, _ url: URL) -> URLRequest {
    var request = URLRequest(url: url, cachePolicy: step.policy, timeoutInterval: 20)
    request.httpMethod = step.method
    for (name, value) in clock.resolve(step.request) { request.addValue(value, forHTTPHeaderField: name) }
    request.httpBody = step.content.map { Data($0.utf8) }
    return request
  }

  private func load(
    _ request: URLRequest, _ cache: LMDBURLCache, _ session: URLSession
  ) async throws -> (Data, URLResponse) {
    switch path {
    case .session, .decision: return try await session.data(for: request)
    case .data: return try await cache.data(for: request)
    }
  }

  private func outcome(
    of request: URLRequest, _ cache: LMDBURLCache, _ session: URLSession
  ) async -> ConformanceOutcome {
    do {
      let (data, response) = try await load(request, cache, session)
      guard let response = response as? HTTPURLResponse else { return ConformanceOutcome(error: "no HTTP response") }
      var fields: [String: String] = [:]
      for (name, value) in response.allHeaderFields { fields["\(name)"] = "\(value)" }
      return ConformanceOutcome(status: response.statusCode, fields: fields, body: data)
    } catch {
      return ConformanceOutcome(error: "\(error)")
    }
  }
}

extension Step {
  /// The reply's lines, with a `Date` unless they contain one.
  var dated: FieldLines {
    let hasDate = reply.contains { $0.0.lowercased() == "date" }
    return hasDate || !sendsDate ? reply : [("Date", "@0")] + reply
  }

  func body(_ index: Int) -> String {
    replyBody ?? (status == 204 || status == 304 ? "" : "body \(index)")
  }
}

/// Compares the result of a step with its expectation.
struct ConformanceJudge {
  let test: ConformanceCase
  let index: Int

  private var step: Step { test.steps[index] }

  func problems(_ outcome: ConformanceOutcome, seen: [ConformanceSight], _ clock: ConformanceClock) -> [String] {
    var found: [String] = []
    func check(_ holds: Bool, _ problem: @autoclosure () -> String) {
      if !holds { found.append("\(test.id), request \(index): \(problem())") }
    }
    if step.expected == .failure {
      check(outcome.error != nil, "answered with \(outcome.status), not an error")
      return found
    }
    if let error = outcome.error { return ["\(test.id), request \(index): failed with \(error)"] }

    let isConditional = seen.first.map(isConditional) ?? false
    switch step.expected {
    case .origin:
      check(!seen.isEmpty, "the origin was not asked")
      check(!isConditional, "the origin was asked with a condition")
    case .stored: check(seen.isEmpty, "the origin was asked")
    case .validated:
      check(!seen.isEmpty, "the origin was not asked")
      check(isConditional || seen.isEmpty, "the origin was asked without a condition")
    case .background: check(!seen.isEmpty, "the origin was not asked in the background")
    case .failure: break
    }
    check(outcome.status == expectedStatus, "status \(outcome.status), not \(expectedStatus)")
    let body = String(decoding: outcome.body, as: UTF8.self)
    check(body == expectedBody, "body \"\(body)\", not \"\(expectedBody)\"")
    for (name, value) in step.shows {
      let wanted = value.map { clock.resolve($0) }
      check(
        outcome.value(name) == wanted, "\(name) is \(outcome.value(name) ?? "absent"), not \(wanted ?? "absent")")
    }
    for (name, value) in step.sees {
      let wanted = value.map { clock.resolve($0) }
      let sight = seen.first?.value(name)
      check(sight == wanted, "the origin saw \(name) \(sight ?? "absent"), not \(wanted ?? "absent")")
    }
    return found
  }

  /// Whether the cache added a condition that the case's request does not contain.
  private func isConditional(_ sight: ConformanceSight) -> Bool {
    ["If-None-Match", "If-Modified-Since"].contains { name in
      let own = step.request.first { $0.0.lowercased() == name.lowercased() }
      return sight.value(name) != nil && sight.value(name) != own?.1
    }
  }

  /// The step whose response is expected.
  private var source: Int {
    if let bodyOf = step.bodyOf { return bodyOf }
    switch step.expected {
    case .origin, .failure: return index
    case .stored, .background: return 0
    case .validated: return step.status == 304 ? 0 : index
    }
  }

  private var expectedStatus: Int { step.expectedStatus ?? test.steps[source].status }

  private var expectedBody: String {
    if let body = step.expectedBody { return body }
    return step.method == "HEAD" || expectedStatus == 304 ? "" : test.steps[source].body(source)
  }
}
