import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Invalidation by unsafe methods, also of responses in flight (RFC 9111, 4.4; RFC 9875).
@Suite("Invalidation", .timeLimit(.minutes(1)))
struct InvalidationTests {
  private func stored(_ fixture: Fixture, _ url: String, _ fields: (String, String)...) async throws {
    let transport = ScriptedTransport { _, _ in
      fixture.response(200, "old", fields.contains { $0.0 == fresh.0 } ? fields : [fresh] + fields)
    }
    _ = try await fixture.client.respond(to: get(url), over: transport)
  }

  /// Row 90: the response to a POST may serve a later GET, unless it was invalidated in flight.
  @Test("The response to a POST serves a later GET unless it was invalidated in flight", arguments: [false, true])
  func post(isInvalidated: Bool) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let posting = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.response(200, "", [fresh, ("Content-Location", "http://example.com/a")]).head,
        body: .chunks(["posted"], behind: [gate]))
    }
    let url = "http://example.com/a"
    let response = try await fixture.client.respond(to: get(url, method: "POST"), over: posting)
    if isInvalidated {
      let putting = ScriptedTransport { _, _ in fixture.response(200) }
      _ = try await fixture.client.respond(to: get(url, method: "PUT"), over: putting)
    }
    gate.open()
    #expect(try await response.text() == "posted")
    #expect(try await fixture.client.storedResponse(to: get(url))?.text() == (isInvalidated ? nil : "posted"))
  }

  // Guarantee: a response to a request that was sent before a change is not stored after it.
  //
  //   GET                         | POST
  //   ----------------------------+-----------------------------------
  //   sent                        |
  //                               | sent; the response invalidates
  //   gate: 200 "old", fresh      |
  //   its caller gets "old"       |
  //   nothing is stored           | the next GET is sent
  @Test(
    "A GET in flight during an invalidation does not store its response",
    arguments: [
      ("same", "http://example.com/a?x=1"), ("other spelling", "HTTP://Example.COM:80/a?x=1#part"),
    ], [false, true])
  func invalidatedInFlight(spelling: (id: String, url: String), isStreaming: Bool) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let getting = ScriptedTransport { _, number in
      if number == 1, !isStreaming { try await gate.pass() }
      guard number == 1, isStreaming else { return fixture.ok(number == 1 ? "old" : "new", fresh) }
      return IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["old"], behind: [gate]))
    }
    let posting = ScriptedTransport { _, _ in fixture.response(200) }
    let early = Task { try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: getting).text() }
    await until { getting.count == 1 }
    _ = try await fixture.client.respond(to: get(spelling.url, method: "POST"), over: posting)
    // A GET after the change neither waits for the old fetch nor is served by it.
    #expect(try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: getting).text() == "new")
    gate.open()
    #expect(try await early.value == "old")
    #expect(try await fixture.client.storedResponse(to: get("http://example.com/a?x=1"))?.text() == "new")
    #expect(fixture.client.statistics.storageRefusals["invalidated-in-flight"] == 1)
  }

  @Test("A 304 in flight does not restore an invalidated response")
  func invalidatedDuringValidation() async throws {
    let fixture = Fixture()
    try await stored(fixture, "http://example.com/a", ("ETag", "\"1\""))
    fixture.clock.advance(by: 100)
    let gate = Gate()
    let getting = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.response(304, "", [("ETag", "\"1\""), fresh])
    }
    let early = Task { try await fixture.client.respond(to: get(), over: getting).text() }
    await until { getting.count == 1 }
    let posting = ScriptedTransport { _, _ in fixture.response(200) }
    _ = try await fixture.client.respond(to: get(method: "POST"), over: posting)
    gate.open()
    #expect(try await early.value == "old")
    #expect(fixture.client.storedResponse(to: get()) == nil)
  }

  // Guarantee: no request that begins after a removal gets the removed response, even if the fetch that it could join
  // was registered after the removal.
  //
  //   first request               | removal, second request
  //   ----------------------------+-----------------------------------
  //   looks up: stale             |
  //                               | removes the response
  //   registers its fetch, sends  |
  //                               | looks up: nothing; sends its own
  //   gate: a 304 arrives         |
  @Test(
    "A request does not join a validation whose lookup was before a removal",
    arguments: ["max-age=60", "max-age=60, stale-while-revalidate=30"])
  func removedAfterLookup(cacheControl: String) async throws {
    let fixture = Fixture()
    try await stored(fixture, "http://example.com/a", ("ETag", "\"1\""), ("Cache-Control", cacheControl))
    fixture.clock.advance(by: 70)
    fixture.storage.afterNextLookup { [storage = fixture.storage] in storage.removeAll() }
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      guard request.head.fields["If-None-Match"] != nil else { return fixture.ok("new", fresh) }
      try await gate.pass()
      return fixture.response(304, "", [("ETag", "\"1\""), fresh])
    }
    let first = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { transport.count == 1 }
    let second = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { transport.count == 2 || fixture.client.statistics.waiting == 1 }
    gate.open()
    #expect(try await second.value == "new")
    _ = try await first.value
    await fixture.client.finishBackgroundWork()
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "new")
  }

  @Test("An invalidation between the last check of the permit and the store removes the response")
  func invalidatedWhileStoring() async throws {
    let hook = Mutex<(@Sendable () -> Void)?>(nil)
    let fixture = Fixture(storage: MemoryStorage(asksAgain: false, whenStoring: { hook.withLock { $0 }?() }))
    hook.withLock { $0 = { fixture.client.revokeStorePermits() } }
    let transport = ScriptedTransport { _, _ in fixture.ok("old", fresh) }
    _ = try await fixture.client.respond(to: get(), over: transport)
    #expect(fixture.client.storedResponse(to: get()) == nil)
    #expect(fixture.client.statistics.stored == 0)
  }

  // RFC 9111, 4.4, for a request that its session repeats with credentials.
  @Test("Until the unseen response to an unsafe request arrives, no response for its URL is stored")
  func unseenResponse() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, number in fixture.ok("\(number)", fresh) }
    func fetch(_ url: String = "http://example.com/a") async throws -> String {
      try await fixture.client.respond(to: get(url), over: transport).text()
    }
    #expect(try await fetch() == "1")
    let requests =
      [ForwardedRequest(get(method: "POST"), past: fixture.client)] + [
        ForwardedRequest(get(method: "DELETE"), past: fixture.client)
      ]
    for request in requests { await request.expectUnseenResponse() }
    #expect(try await fetch() == "2")
    #expect(try await fetch() == "3")
    #expect(try await fetch("http://example.com/b") == "4")
    #expect(try await fetch("http://example.com/b") == "4")
    await requests[0].unseenResponseHasCome(ResponseHead(status: 200, fields: ["Location": "/b"]))
    #expect(try await fetch() == "5")
    #expect(try await fetch("http://example.com/b") == "6")
    await requests[1].unseenResponseHasCome(nil)
    #expect(try await fetch() == "7")
    #expect(try await fetch() == "7")
    // A safe request invalidates nothing.
    await ForwardedRequest(get(method: "OPTIONS"), past: fixture.client).expectUnseenResponse()
    #expect(try await fetch() == "7")
  }

  @Test("Revoking store permits affects only the fetches that the condition selects")
  func revokeStorePermits() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      try await gate.pass()
      return fixture.ok("body", fresh)
    }
    async let first = fixture.client.respond(to: get("http://one.example/"), over: transport)
    async let second = fixture.client.respond(to: get("http://two.example/"), over: transport)
    await until { transport.count == 2 }
    fixture.client.revokeStorePermits { $0.host == "one.example" }
    gate.open()
    _ = try await (first, second)
    #expect(fixture.client.storedResponse(to: get("http://one.example/")) == nil)
    #expect(fixture.client.storedResponse(to: get("http://two.example/")) != nil)
  }
}
