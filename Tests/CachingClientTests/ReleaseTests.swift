import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// A request that waits for another's fetch never waits longer than it would without the cache.
@Suite("Release of followers", .timeLimit(.minutes(1)))
struct ReleaseTests {
  // Guarantee: no follower waits for the body of a response that it cannot reuse.
  //
  //   leader                      | follower
  //   ----------------------------+-----------------------------------
  //   sends                       | waits
  //   gate 1: the head            |
  //                               | sends, gets its own response
  //   gate 2: the body            |
  @Test(
    "A follower fetches at once if the head shows that it cannot reuse the response",
    arguments: [
      ("no lifetime", []), ("no-cache", [("Cache-Control", "no-cache"), ("ETag", "\"1\"")]),
      (
        "expired",
        [("Cache-Control", "max-age=60"), ("Age", "100"), ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")]
      ),
      ("event stream", [("Cache-Control", "max-age=60"), ("Content-Type", "text/event-stream; charset=utf-8")]),
    ])
  func atTheHead(id: String, fields: [(String, String)]) async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      try await head.pass()
      return IncomingResponse(
        head: fixture.response(200, "", fields).head, body: .chunks(["\(number)"], behind: number == 1 ? [end] : []))
    }
    async let leader = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    async let follower = fixture.client.respond(to: get(), over: transport).text()
    await until { fixture.client.statistics.waiting == 1 }
    head.open()
    #expect(try await follower == "2")
    end.open()
    #expect(try await leader.text() == "1")
  }

  @Test("A new request does not wait for the body of a response that it cannot reuse")
  func afterTheHead() async throws {
    let fixture = Fixture()
    let end = Gate()
    let transport = ScriptedTransport { _, number in
      IncomingResponse(head: fixture.ok("").head, body: .chunks(["\(number)"], behind: number == 1 ? [end] : []))
    }
    let leader = try await fixture.client.respond(to: get(), over: transport)
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "2")
    end.open()
    #expect(try await leader.text() == "1")
  }

  @Test("A response that is fresh when its head arrives is shared even if its body takes longer than its lifetime")
  func slowBody() async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { _, _ in
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", ("Cache-Control", "max-age=2")).head, body: .chunks(["body"], behind: [end]))
    }
    async let leader = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    async let follower = fixture.client.respond(to: get(), over: transport)
    await until { fixture.client.statistics.waiting == 1 }
    head.open()
    let response = try await leader
    fixture.clock.advance(by: 10)
    end.open()
    #expect(try await response.text() == "body")
    #expect(try await follower.text() == "body")
    #expect(try await follower.age == 10)
    #expect(transport.count == 1)
  }

  /// Starts three requests and returns how many of them reach the transport before the first response.
  private func concurrentFetches(
    _ fixture: Fixture, _ fields: [(String, String)] = [], overrides: RequestOverrides = RequestOverrides()
  ) async throws -> Int {
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.response(200, "body", fields)
    }
    return try await withThrowingTaskGroup { group in
      for _ in 0..<3 {
        group.addTask { _ = try await fixture.client.respond(to: get(overrides: overrides), over: transport).text() }
      }
      await until { transport.count + fixture.client.statistics.waiting == 3 }
      let count = transport.count
      gate.open()
      try await group.waitForAll()
      return count
    }
  }

  @Test("For a minute, requests for a URL with a response that is not shareable do not wait for each other")
  func remembered() async throws {
    let fixture = Fixture()
    let noStore = [("Cache-Control", "no-store")]
    #expect(try await concurrentFetches(fixture, noStore) == 1)
    #expect(try await concurrentFetches(fixture, noStore) == 3)
    fixture.clock.advance(by: 61)
    #expect(try await concurrentFetches(fixture, noStore) == 1)
    // A shareable response ends this at once.
    #expect(try await concurrentFetches(fixture, [fresh]) == 3)
    fixture.clock.advance(by: 61)
    #expect(try await concurrentFetches(fixture, [fresh]) == 1)
  }

  @Test("A server error does not disable coalescing for its URL")
  func errorsAreNotRemembered() async throws {
    let fixture = Fixture()
    let failing = ScriptedTransport { _, _ in fixture.response(503, "", [("Cache-Control", "no-store")]) }
    _ = try await fixture.client.respond(to: get(), over: failing)
    #expect(try await concurrentFetches(fixture, [fresh]) == 1)
  }

  // Guarantee: a hook that never replies prevents only the storing of its response.
  @Test("A hook that never replies delays neither its caller nor the followers", arguments: [true, false])
  func silentHook(isAtHand: Bool) async throws {
    let fixture = Fixture()
    let head = Gate()
    let held = Mutex<[(ProposedResponse, @Sendable (ProposedResponse?) -> Void)]>([])
    let transport = ScriptedTransport { _, _ in
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", fresh).head, body: isAtHand ? ResponseBodyStream(Data("body".utf8)) : .chunks(["body"]))
    }
    var request = get()
    request.willStore = { proposal, reply in held.withLock { $0.append((proposal, reply)) } }
    let asking = request
    async let leader = fixture.client.respond(to: asking, over: transport).text()
    await until { transport.count == 1 }
    async let follower = fixture.client.respond(to: get(), over: transport).text()
    await until { fixture.client.statistics.waiting == 1 }
    head.open()
    #expect(try await follower == "body")
    #expect(try await leader == "body")
    #expect(fixture.storage.entryCount == 0)
    #expect(transport.count == 1)
    // A late reply still counts, once.
    let (proposal, reply) = try #require(held.withLock { $0.first })
    reply(proposal)
    reply(nil)
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "body")
    #expect(fixture.client.statistics.stored == 1)
  }

  @Test("A response that is invalidated while its hook decides is not stored; a hook may drop its reply")
  func invalidatedDuringHook() async throws {
    let fixture = Fixture()
    let held = Mutex<[(ProposedResponse, @Sendable (ProposedResponse?) -> Void)]>([])
    let transport = ScriptedTransport { request, _ in
      request.head.method == "GET" ? fixture.ok("body", fresh) : fixture.response(204)
    }
    var request = get()
    request.willStore = { proposal, reply in held.withLock { $0.append((proposal, reply)) } }
    _ = try await fixture.client.respond(to: request, over: transport)
    _ = try await fixture.client.respond(to: get(method: "DELETE"), over: transport)
    held.withLock { $0.forEach { $0.1($0.0) } }
    #expect(fixture.storage.entryCount == 0)
    #expect(fixture.client.statistics.storageRefusals["invalidated-in-flight"] == 1)
    _ = try await fixture.client.respond(to: request, over: transport)
    held.withLock { $0 = [] }
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("A request that disables coalescing does not wait for another")
  func optOut() async throws {
    let fixture = Fixture()
    #expect(try await concurrentFetches(fixture, [fresh], overrides: RequestOverrides(allowsCoalescing: false)) == 3)
    fixture.clock.advance(by: 61)
    #expect(try await concurrentFetches(fixture, [fresh]) == 1)
  }
}
