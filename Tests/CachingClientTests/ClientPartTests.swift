import CacheModel
import HTTPCaching
import Synchronization
import Testing

// Steps of a fetch that no public surface can order, and bounds that take hours to reach.
@testable import CachingClient

@Suite("Parts of the caching client", .timeLimit(.minutes(1)))
struct ClientPartTests {
  private let url = RequestKey(urlString: "http://example.com/")!
  private let permit = StorePermit(token: 0) { _ in .none }

  @Test("The time doubles with each failure of a probe, counts failures at the same time once, and is bounded")
  func durations() {
    let origins = FailingOrigins()
    let key = FailingOrigins.Key.url(url)
    let range: ClosedRange<Duration> = .seconds(1)...(.seconds(30))
    var now = MonotonicTime(nanoseconds: 1_000_000_000_000)
    #expect(origins.failure(of: key, at: now) == nil)
    for expected in [1, 2, 4, 8, 16, 30, 30] {
      for _ in 0..<5 { origins.recordFailure(.status(503), of: key, at: url, permit, range: range, at: now) }
      #expect(origins.failure(of: key, at: now + .milliseconds(expected * 1000 - 1)) == .status(503))
      now = now + .seconds(expected)
      // One request asks, and the others are held off.
      #expect(origins.failure(of: key, at: now) == nil)
      #expect(origins.failure(of: key, at: now) == .status(503))
    }
    // A probe that ends without a result is repeated.
    now = now + .seconds(30)
    #expect(origins.failure(of: key, at: now) == nil)
    origins.recordSuccess(of: [key])
    #expect(origins.failure(of: key, at: now) == nil)
    origins.recordFailure(.unreachable, of: key, at: url, permit, range: range, at: now)
    #expect(origins.failure(of: key, at: now + .seconds(1)) == nil)
  }

  @Test("The number of URLs that are held off is bounded")
  func bound() {
    let origins = FailingOrigins()
    let now = MonotonicTime(nanoseconds: 1)
    func key(_ number: Int) -> FailingOrigins.Key { .url(RequestKey(urlString: "http://example.com/\(number)")!) }
    for number in 0..<5_000 {
      origins.recordFailure(
        .unreachable, of: key(number), at: url, permit, range: .seconds(60)...(.seconds(60)), at: now)
    }
    #expect((0..<5_000).count { origins.failure(of: key($0), at: now) != nil } == 1_024)
    // Those whose time is over are forgotten first.
    let later = now + .seconds(600)
    origins.recordFailure(
      .unreachable, of: key(9_999), at: url, permit, range: .seconds(60)...(.seconds(60)), at: later)
    #expect((0..<5_000).count { origins.failure(of: key($0), at: now) != nil } == 0)
  }

  @Test("A request looks again after its lookup only if a fetch for its key has ended", arguments: [1, 64, 65])
  func lookingAgain(_ count: Int) async throws {
    let lookups = Atomic(0)
    let client = Mutex<CachingClient<MemoryStorage>?>(nil)
    let ending = Mutex(try #require(RequestKey(urlString: "http://example.com/other")))
    let storage = MemoryStorage(whenLooked: {
      guard lookups.add(1, ordering: .relaxed).oldValue == 0, let fetches = client.withLock({ $0 })?.inFlightFetches
      else { return }
      // Fetches end between the lookup and the start of the fetch.
      for _ in 0..<count { fetches.finish(fetches.startUnshared(ending.withLock { $0 }, since: 0)) }
    })
    // With No-Vary-Search, each miss looks for equivalent URLs, too.
    var options = CachingOptions()
    options.usesNoVarySearch = false
    let fixture = Fixture(options: options, storage: storage)
    client.withLock { $0 = fixture.client }
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh) }
    _ = try await fixture.client.respond(to: get(), over: transport)
    // The keys of the last 64 fetches are known.
    #expect(lookups.load(ordering: .relaxed) == (count <= 64 ? 1 : 2))

    lookups.store(0, ordering: .relaxed)
    ending.withLock { $0 = RequestKey(urlString: "http://example.com/b")! }
    _ = try await fixture.client.respond(to: get("http://example.com/b"), over: transport)
    #expect(lookups.load(ordering: .relaxed) == 2)
    #expect(transport.count == 2)
    client.withLock { $0 = nil }
  }
}
