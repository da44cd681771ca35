import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Responses from the storage: hits, HEAD, ranges, the request policies, and `Cache-Status`.
@Suite("Responses from the storage", .timeLimit(.minutes(1)))
struct StoredResponseTests {
  private func stored(options: CachingOptions = CachingOptions()) async throws -> Fixture {
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { _, _ in
      fixture.ok("0123456789", fresh, ("ETag", "\"1\""), ("Content-Length", "10"))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(response.source == .miss)
    fixture.clock.advance(by: 5)
    return fixture
  }

  private let refusing = ScriptedTransport { _, _ in throw Unreachable() }

  @Test("A hit reports its source, age, rule and entry, and has an Age field")
  func hit() async throws {
    let fixture = try await stored()
    let hit = try #require(fixture.client.storedResponse(to: get()))
    #expect(hit.source == .hit)
    #expect(hit.age == 5)
    #expect(hit.reason == .fresh)
    #expect(hit.isWholeEntry)
    #expect(hit.entry != nil)
    #expect(hit.body.bytes == Data("0123456789".utf8))
    #expect(hit.head.fields["Age"] == "5")
    let again = try await fixture.client.respond(to: get(), over: refusing)
    #expect(again.source == .hit)
    #expect(fixture.client.statistics.hits == 2)
    #expect(fixture.client.statistics.misses == 1)
  }

  @Test("A request for the complete representation fetches only the missing range", arguments: [true, false])
  func completed(originAgrees: Bool) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { request, number in
      let tag = ("ETag", number == 1 || originAgrees ? "\"1\"" : "\"2\"")
      switch request.head.fields["Range"] {
      case "bytes=0-4": return fixture.response(206, "01234", [fresh, tag, ("Content-Range", "bytes 0-4/10")])
      case "bytes=5-" where originAgrees:
        #expect(request.head.fields["If-Range"] == "\"1\"")
        return fixture.response(206, "56789", [fresh, tag, ("Content-Range", "bytes 5-9/10")])
      default: return fixture.ok("abcdefghij", fresh, tag)
      }
    }
    _ = try await fixture.client.respond(to: get("http://example.com/a", ["Range": "bytes=0-4"]), over: transport)
    let complete = try await fixture.client.respond(to: get(), over: transport)
    #expect(complete.status == 200)
    #expect(try await complete.text() == (originAgrees ? "0123456789" : "abcdefghij"))
    #expect(transport.count == 2)
    #expect(fixture.client.storedResponse(to: get())?.status == 200)
  }

  @Test("The client's own precondition is evaluated against the stored response")
  func condition() async throws {
    let fixture = try await stored()
    let hit = try #require(fixture.client.storedResponse(to: get("http://example.com/a", ["If-None-Match": "\"1\""])))
    #expect(hit.status == 304)
    #expect(!hit.head.fields.contains("Content-Length"))
  }

  @Test(
    "Each request policy applies to a fresh, a stale, and no stored response",
    arguments: [
      (RequestPolicy.useProtocolCachePolicy, "hit", "miss", "miss"),
      (.reloadIgnoringLocalCacheData, "miss", "miss", "miss"),
      (.returnCacheDataElseLoad, "hit", "stale", "miss"),
      (.returnCacheDataDontLoad, "hit", "stale", "unavailable"),
      (.reloadIgnoringLocalAndRemoteCacheData, "miss", "miss", "miss"),
      (.reloadRevalidatingCacheData, "miss", "miss", "miss"),
    ])
  func policy(policy: RequestPolicy, whenFresh: String, whenStale: String, whenAbsent: String) async throws {
    let expected = [("fresh", 0.0, whenFresh), ("stale", 100, whenStale)]
    for (id, time, source) in expected {
      let fixture = try await stored()
      fixture.clock.advance(by: time)
      let transport = ScriptedTransport { _, _ in fixture.ok("new", fresh) }
      let response = try await fixture.client.respond(to: get(policy: policy), over: transport)
      #expect(response.source.rawValue == source, "\(id)")
      if policy == .reloadIgnoringLocalAndRemoteCacheData {
        #expect(transport.requests[0].head.fields["Cache-Control"] == "no-cache")
      }
      if policy == .reloadRevalidatingCacheData {
        #expect(transport.requests[0].head.fields["If-None-Match"] == "\"1\"")
      }
    }
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("new", fresh) }
    let response = try await fixture.client.respond(to: get(policy: policy), over: transport)
    #expect(response.source.rawValue == whenAbsent)
    #expect(transport.count == (whenAbsent == "miss" ? 1 : 0))
    if whenAbsent == "unavailable" { #expect(response.status == 504) }
  }

  @Test("only-if-cached returns 504 without a fetch, also on the synchronous path")
  func onlyIfCached() async throws {
    let fixture = Fixture()
    let request = get("http://example.com/a", ["Cache-Control": "only-if-cached"])
    #expect(fixture.client.storedResponse(to: request)?.source == .unavailable)
    let response = try await fixture.client.respond(to: request, over: refusing)
    #expect(response.status == 504)
    #expect(fixture.client.statistics.hits == 0)
  }

  @Test("Every response has a Cache-Status member if the option is set")
  func cacheStatus() async throws {
    var options = CachingOptions()
    options.cacheStatusName = "here"
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh, ("Vary", "Accept")) }
    let miss = try await fixture.client.respond(to: get(), over: transport)
    #expect(miss.head.fields["Cache-Status"] == "here; fwd=uri-miss; stored")
    fixture.clock.advance(by: 10)
    #expect(fixture.client.storedResponse(to: get())?.head.fields["Cache-Status"] == "here; hit; ttl=50")
    let post = try await fixture.client.respond(to: get(method: "POST"), over: transport)
    #expect(post.head.fields["Cache-Status"] == "here; fwd=method")
  }

  @Test("Cache-Status of a revalidated and of a stale response contains the origin's status")
  func cacheStatusForwarded() async throws {
    var options = CachingOptions()
    options.cacheStatusName = "here"
    let fixture = try await stored(options: options)
    fixture.clock.advance(by: 100)
    let failing = ScriptedTransport { _, _ in fixture.response(503) }
    let staleRequest = get("http://example.com/a", ["Cache-Control": "stale-if-error=600"])
    let stale = try await fixture.client.respond(to: staleRequest, over: failing)
    #expect(stale.head.fields["Cache-Status"] == "here; fwd=stale; fwd-status=503")
    let confirming = ScriptedTransport { _, _ in fixture.response(304, "", [("ETag", "\"1\""), fresh]) }
    let confirmed = try await fixture.client.respond(to: get(), over: confirming)
    #expect(confirmed.head.fields["Cache-Status"] == "here; fwd=stale; fwd-status=304; stored")
  }

  @Test("An interim response that a transport returns is not stored and invalidates nothing")
  func interim() async throws {
    let fixture = try await stored()
    let transport = ScriptedTransport { _, _ in fixture.response(103) }
    _ = try await fixture.client.respond(to: get("http://example.com/new"), over: transport)
    _ = try await fixture.client.respond(to: get(method: "POST"), over: transport)
    #expect(fixture.storage.entryCount == 1)
  }
}
