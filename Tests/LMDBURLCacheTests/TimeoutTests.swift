import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Time limits of requests and sessions.
@Suite("Time limits")
struct TimeoutTests {
  enum Way: CaseIterable { case task, plainSession, cachingSession }

  func load(
    _ request: URLRequest, _ way: Way, _ cache: LMDBURLCache, sessionLimit: TimeInterval
  ) async throws -> String {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.timeoutIntervalForRequest = sessionLimit
    let plain = URLSession(configuration: configuration)
    let caching = URLSession(configuration: configuration.caching(with: cache))
    return switch way {
    case .task: try await caching.data(for: request).0.text
    case .plainSession: try await cache.data(for: request, from: plain).0.text
    case .cachingSession: try await cache.data(for: request, from: caching).0.text
    }
  }

  func errorCode(
    _ request: URLRequest, _ way: Way, _ cache: LMDBURLCache, sessionLimit: TimeInterval
  ) async -> URLError.Code? {
    do {
      _ = try await load(request, way, cache, sessionLimit: sessionLimit)
      return nil
    } catch { return (error as? URLError)?.code }
  }

  @Test("A request's time limit overrides its session's, whether it is shorter or longer", arguments: Way.allCases)
  func ownLimit(_ way: Way) async throws {
    let (short, long, session) = (Gate(), Gate(), Gate())
    let gates = ["/short": short, "/long": long, "/session": session]
    try await withCache { request in
      gates[request.path].map { Reply(200, [], request.path).held(at: $0) } ?? Reply(404)
    } _: { (fixture, origin) async throws in
      @Sendable func request(_ path: String, limit: TimeInterval?) -> URLRequest {
        var request = URLRequest(url: origin.url(path))
        if let limit { request.timeoutInterval = limit }
        return request
      }
      let cache = fixture.cache
      let clock = ContinuousClock()
      let start = clock.now
      async let longer = load(request("/long", limit: 300), way, cache, sessionLimit: 1)
      await long.waitForArrivals()
      async let sessionEnd = errorCode(request("/session", limit: nil), way, cache, sessionLimit: 1)
      #expect(await errorCode(request("/short", limit: 1), way, cache, sessionLimit: 100) == .timedOut)
      // Less than the session's 100 seconds.
      #expect(clock.now - start < .seconds(60))
      #expect(await sessionEnd == .timedOut)
      // The session's limit has passed for the other request, and this one still waits.
      long.open()
      #expect(try await longer == "/long")
      short.open()
      session.open()
    }
  }

  @Test(
    "Invalid time limits are ignored, and limits below one second count as one second",
    arguments: [0, -1, 0.001, 1e12, .infinity, .nan] as [TimeInterval])
  func oddLimits(_ limit: TimeInterval) async throws {
    try await withCache { request in
      Reply(200, [], request.path)
    } _: { (fixture, origin) async throws in
      for way in Way.allCases {
        var request = URLRequest(url: origin.url("/own"))
        #expect(try await load(request, way, fixture.cache, sessionLimit: limit) == "/own")
        request.timeoutInterval = limit
        #expect(try await load(request, way, fixture.cache, sessionLimit: 100) == "/own")
      }
    }
  }

  @Test("A follower asks itself before its own time limit ends, and the leader's fetch continues after it times out")
  func followerLimit() async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "late").held(at: gate)
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      async let leader = cache.data(from: url)
      await gate.waitForArrivals()
      var short = URLRequest(url: url)
      short.timeoutInterval = 1
      for way in [Way.plainSession, .task] {
        #expect(await errorCode(short, way, cache, sessionLimit: 100) == .timedOut)
      }
      #expect(origin.requestCount == 3)
      gate.open()
      #expect(try await leader.0.text == "late")
      #expect(cache.isCached(url))
    }
  }

  @Test("After the leader has timed out, a follower fetches within the rest of its time limit")
  func leaderTimesOut() async throws {
    let gate = Gate()
    let count = Atomic(0)
    try await withCache { _ in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "late")
      // The first connection blocks, all others get a response at once.
      return count.add(1, ordering: .relaxed).oldValue == 0 ? reply.held(at: gate) : reply
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      var short = URLRequest(url: url)
      short.timeoutInterval = 1
      async let leader = errorCode(short, .plainSession, cache, sessionLimit: 100)
      await gate.waitForArrivals()
      #expect(try await cache.data(from: url).0.text == "late")
      #expect(await leader == .timedOut)
      #expect(origin.requestCount == 2)
      gate.open()
    }
  }
}
