import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// The provenance of a response, on each way to load.
@Suite("Provenance of responses", .timeLimit(.minutes(1)))
struct ProvenanceTests {
  private static let kept = [("Cache-Control", "max-age=600")]

  /// Ways to load a response completely.
  enum Way: CaseIterable {
    case data, dataFromSession, load, bytes, sessionAsync, completionHandler, delegate

    func load(_ request: URLRequest, _ fixture: CacheFixture) async throws -> URLResponse {
      let cache = fixture.cache
      switch self {
      case .data: return try await cache.data(for: request).1
      case .dataFromSession: return try await cache.data(for: request, from: fixture.session()).1
      case .load: return try await cache.load(request).response
      case .bytes:
        let (chunks, response) = try await cache.bytes(for: request)
        for try await _ in chunks {}
        return response
      case .sessionAsync: return try await fixture.session().data(for: request).1
      case .completionHandler:
        return try await withCheckedThrowingContinuation { continuation in
          let task = fixture.session().dataTask(with: request) { _, response, error in
            continuation.resume(with: response.map { .success($0) } ?? .failure(error ?? URLError(.unknown)))
          }
          task.resume()
        }
      case .delegate:
        let delegate = RecordingDelegate()
        let task = fixture.session(delegate: delegate).dataTask(with: request)
        await delegate.run(task)
        let response = try #require(task.response)
        await response.waitUntilStoringIsDecided()
        return response
      }
    }
  }

  @Test("A response says its source, tier, age, rule and whether it is stored", arguments: Way.allCases)
  func eachWay(way: Way) async throws {
    try await withCache(
      origin: { request in
        switch request.path {
        case "/refused": Reply(200, [("Cache-Control", "no-store")], "body")
        case "/short": Reply(200, [("Cache-Control", "max-age=10")], "body")
        case "/checked" where request["If-None-Match"] != nil: Reply(304, [("ETag", "\"1\"")])
        case "/checked": Reply(200, [("ETag", "\"1\""), ("Cache-Control", "no-cache")], "body")
        default: Reply(200, Self.kept, "body")
        }
      }
    ) { fixture, origin in
      func load(_ path: String) async throws -> CacheProvenance {
        try #require(try await way.load(URLRequest(origin.url(path)), fixture).cacheProvenance)
      }
      let fetched = try await load("/a")
      #expect(fetched.source == .miss && fetched.tier == nil && fetched.reason == .miss)
      #expect(fetched.storage == .stored)
      fixture.clock.advance(by: 7)
      let inMemory = try await load("/a")
      #expect(inMemory.source == .hit && inMemory.tier == .memory && inMemory.reason == .fresh)
      #expect(inMemory.age == 7 && inMemory.storage == .stored)
      #expect(inMemory.description.hasPrefix("hit (memory), age 7 s, fresh (RFC 9111 4.2)"))
      try fixture.reopen()
      let onDisk = try await load("/a")
      #expect(onDisk.source == .hit && onDisk.tier == .disk && onDisk.age == 7)
      #expect(try await load("/a").tier == .memory && onDisk.tier == .disk)

      #expect(try await load("/refused").storage == .notStored(.noStore))
      #expect(try await load("/short").storage == .storedInMemory)
      #expect(try await load("/checked").storage == .stored)
      let validated = try await load("/checked")
      #expect(validated.source == .revalidated && validated.tier == .memory && validated.storage == .stored)
    }
  }

  @Test("Whether a response is stored is undecided until its body is complete, and decided afterwards")
  func undecided() async throws {
    let gates = [Gate(), Gate()]
    try await withCache(
      origin: { Reply(200, Self.kept, "firstsecond").held(at: gates[$0.path == "/a" ? 0 : 1], afterBodyBytes: 5) }
    ) { fixture, origin in
      let (chunks, response) = try await fixture.cache.bytes(for: URLRequest(origin.url("/a")))
      #expect(response.cacheProvenance?.storage == .undecided)
      gates[0].open()
      for try await _ in chunks {}
      #expect(response.cacheProvenance?.storage == .stored)

      let delegate = RecordingDelegate()
      let task = fixture.session(delegate: delegate).dataTask(with: origin.url("/b"))
      task.resume()
      await delegate.wait { !$0.chunks.isEmpty }
      #expect(task.response?.cacheProvenance?.storage == .undecided)
      gates[1].open()
      await delegate.wait { !$0.completions.isEmpty }
      await task.response?.waitUntilStoringIsDecided()
      #expect(task.response?.cacheProvenance?.storage == .stored)
    }
  }

  @Test("A response whose body is too large says so, also if the size was known only at its end")
  func tooLarge() async throws {
    try await withCache {
      $0.maximumStoredBodyByteCount = 10
    } origin: {
      let reply = Reply(200, Self.kept, String(repeating: "x", count: 100))
      return $0.path == "/chunked" ? reply.chunked(byteCount: 20) : reply
    } _: { fixture, origin in
      for path in ["/known", "/chunked"] {
        for way in Way.allCases {
          let response = try await way.load(URLRequest(origin.url(path)), fixture)
          #expect(response.cacheProvenance?.storage == .notStored(.bodyTooLarge), "\(way) \(path)")
        }
        #expect(try await fixture.cache.load(URLRequest(origin.url(path))).storageRefusal == .bodyTooLarge)
      }
    }
  }

  @Test("A delegate that refuses to store a response is the reason in the response")
  func refusedByDelegate() async throws {
    try await withCache(origin: { _ in Reply(200, Self.kept, "body") }) { fixture, origin in
      let delegate = RecordingDelegate(willCache: { _ in nil })
      let task = fixture.session(delegate: delegate).dataTask(with: origin.url("/"))
      await delegate.run(task)
      await task.response?.waitUntilStoringIsDecided()
      #expect(task.response?.cacheProvenance?.storage == .notStored(.refusedByCaller))
    }
  }

  @Test("A request that shares a fetch says so, and whether that fetch stored the response", arguments: [true, false])
  func coalesced(isStored: Bool) async throws {
    let gate = Gate()
    try await withCache {
      // The followers of a response that is not stored fetch on their own, one that stays in memory is shared.
      if !isStored { $0.overrides = { _ in RequestOverrides(lifetime: 10) } }
    } origin: { _ in
      Reply(200, Self.kept, "body").held(at: gate)
    } _: { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(origin.url("/"))
      async let first = cache.data(for: request).1
      async let second = cache.data(for: request).1
      await gate.waitForArrivals()
      while cache.statistics.requests.waiting < 1 { await Task.yield() }
      gate.open()
      let found = try await [first, second].compactMap(\.cacheProvenance)
      #expect(Set(found.map(\.source)) == [.miss, .coalesced])
      #expect(found.map(\.storage) == Array(repeating: isStored ? .stored : .storedInMemory, count: 2))
      #expect(origin.requestCount == 1)
    }
  }

  @Test("A stale response in place of an error, and a refusal to use the network, say so")
  func staleAndUnavailable() async throws {
    try await withCache(
      origin: {
        $0.number == 0 ? Reply(200, [("Cache-Control", "max-age=600, stale-if-error=600")], "body") : Reply(500)
      }
    ) { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(origin.url("/"))
      _ = try await cache.data(for: request)
      fixture.clock.advance(by: 700)
      let stale = try #require(try await cache.data(for: request).1.cacheProvenance)
      #expect(stale.source == .staleOnError && stale.reason == .staleIfError && stale.storage == .stored)
      let (_, refused) = try await cache.data(for: URLRequest(origin.url("/b"), ["Cache-Control": "only-if-cached"]))
      #expect(refused.status == 504 && refused.cacheProvenance?.source == .unavailable)
      #expect(refused.cacheProvenance?.storage == .notStored(.onlyIfCached))
    }
  }

  @Test("A 401 that ends a task says where it came from")
  func unauthorized() async throws {
    try await withCache(
      origin: { _ in Reply(401, [("WWW-Authenticate", "Basic realm=\"a\""), ("Cache-Control", "no-store")], "body") }
    ) { fixture, origin in
      for way in Way.allCases {
        let response = try await way.load(URLRequest(origin.url("/")), fixture)
        #expect(response.status == 401 && response.cacheProvenance?.storage == .notStored(.noStore), "\(way)")
      }
    }
  }

  @Test("A response that did not come through the cache has no provenance, and neither has an archive")
  func none() async throws {
    try await withCache(origin: { _ in Reply(200, Self.kept, "body") }) { fixture, origin in
      #expect(try await URLSession(configuration: .ephemeral).data(from: origin.url("/")).1.cacheProvenance == nil)
      let text = try #require(URL(string: "data:text/plain,hello"))
      #expect(try await fixture.cache.data(from: text).1.cacheProvenance == nil)
      let response = try #require(try await fixture.cache.data(from: origin.url("/")).1 as? HTTPURLResponse)
      #expect((response.copy() as? URLResponse)?.cacheProvenance?.source == .miss)
      #expect(fixture.cache.cachedResponse(for: URLRequest(origin.url("/")))?.response.cacheProvenance == nil)

      let archive = try NSKeyedArchiver.archivedData(withRootObject: response, requiringSecureCoding: true)
      #expect(!String(decoding: archive, as: UTF8.self).contains("DeliveredResponse"))
      let restored = try #require(try NSKeyedUnarchiver.unarchivedObject(ofClass: HTTPURLResponse.self, from: archive))
      #expect(restored.statusCode == 200 && restored.url == response.url && restored.cacheProvenance == nil)
    }
  }
}

extension URLResponse {
  /// Waits for the outcome of storing. A task with a delegate may complete before it on a busy machine.
  fileprivate func waitUntilStoringIsDecided() async {
    while cacheProvenance?.storage == .undecided { await Task.yield() }
  }
}
