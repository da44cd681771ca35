import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// A request that waits for another's fetch is never served later than it would be without the cache.
@Suite("The client releases followers", .timeLimit(.minutes(1)))
struct ReleaseTests {
  // Issue 15, item 10.
  // Guarantee: nobody waits for the body of a response that he cannot use.
  //
  //   leader                      | follower
  //   ----------------------------+-----------------------------------
  //   sends                       | waits
  //   gate 1: the head            |
  //                               | sends, gets its own response
  //   gate 2: the body            |
  @Test(
    "A follower goes on at the head of a response that it cannot reuse",
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

  // Issue 15, item 10.
  @Test("A request that arrives while a body that it cannot reuse is on its way does not wait for it")
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

  // Issue 15, item 10.
  @Test("A response that is fresh when its head comes is shared though its body takes longer than its lifetime")
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

  /// Starts three requests, and tells how many of them the transport has while none of its responses has come.
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

  // Issue 15, item 10.
  @Test("Requests for a URL whose responses cannot be shared do not wait for each other, for a minute")
  func remembered() async throws {
    let fixture = Fixture()
    let noStore = [("Cache-Control", "no-store")]
    #expect(try await concurrentFetches(fixture, noStore) == 1)
    #expect(try await concurrentFetches(fixture, noStore) == 3)
    fixture.clock.advance(by: 61)
    #expect(try await concurrentFetches(fixture, noStore) == 1)
    // A response that can be shared ends it at once.
    #expect(try await concurrentFetches(fixture, [fresh]) == 3)
    fixture.clock.advance(by: 61)
    #expect(try await concurrentFetches(fixture, [fresh]) == 1)
  }

  // Issue 15, item 10.
  @Test("A server error does not make the requests for its URL independent")
  func errorsAreNotRemembered() async throws {
    let fixture = Fixture()
    let failing = ScriptedTransport { _, _ in fixture.response(503, "", [("Cache-Control", "no-store")]) }
    _ = try await fixture.client.respond(to: get(), over: failing)
    #expect(try await concurrentFetches(fixture, [fresh]) == 1)
  }

  // Issue 15, item 11.
  // Guarantee: a hook that does not answer keeps its own response out of the store, and nobody waiting.
  @Test("A hook that never answers keeps neither its caller nor followers from the response", arguments: [true, false])
  func silentHook(isAtHand: Bool) async throws {
    let fixture = Fixture()
    let head = Gate()
    let held = Mutex<[(StorageProposal, @Sendable (StorageProposal?) -> Void)]>([])
    let transport = ScriptedTransport { _, _ in
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", fresh).head, body: isAtHand ? ResponseBody(Data("body".utf8)) : .chunks(["body"]))
    }
    var request = get()
    request.willStore = { proposal, answer in held.withLock { $0.append((proposal, answer)) } }
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
    // An answer that comes late still counts, once.
    let (proposal, answer) = try #require(held.withLock { $0.first })
    answer(proposal)
    answer(nil)
    #expect(try await fixture.client.storedAnswer(to: get())?.text() == "body")
    #expect(fixture.client.statistics.stored == 1)
  }

  // Issue 15, item 11.
  @Test("An invalidation overtakes a response while its hook thinks, and a hook may let go of its answer")
  func overtakenInHook() async throws {
    let fixture = Fixture()
    let held = Mutex<[(StorageProposal, @Sendable (StorageProposal?) -> Void)]>([])
    let transport = ScriptedTransport { request, _ in
      request.head.method == "GET" ? fixture.ok("body", fresh) : fixture.response(204)
    }
    var request = get()
    request.willStore = { proposal, answer in held.withLock { $0.append((proposal, answer)) } }
    _ = try await fixture.client.respond(to: request, over: transport)
    _ = try await fixture.client.respond(to: get(method: "DELETE"), over: transport)
    held.withLock { $0.forEach { $0.1($0.0) } }
    #expect(fixture.storage.entryCount == 0)
    #expect(fixture.client.statistics.refused["overtaken"] == 1)
    _ = try await fixture.client.respond(to: request, over: transport)
    held.withLock { $0 = [] }
    #expect(fixture.storage.entryCount == 0)
  }

  // Issue 15, item 10.
  @Test("A request that is not to be coalesced waits for no other")
  func optOut() async throws {
    let fixture = Fixture()
    #expect(try await concurrentFetches(fixture, [fresh], overrides: RequestOverrides(allowsCoalescing: false)) == 3)
    fixture.clock.advance(by: 61)
    #expect(try await concurrentFetches(fixture, [fresh]) == 1)
  }
}
