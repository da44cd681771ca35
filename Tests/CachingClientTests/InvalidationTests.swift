import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Unsafe methods, and results that come too late (RFC 9111 section 4.4, RFC 9875).
@Suite("invalidation", .timeLimit(.minutes(1)))
struct InvalidationTests {
  private func stored(_ fixture: Fixture, _ url: String, _ fields: (String, String)...) async throws {
    let transport = ScriptedTransport { _, _ in fixture.response(200, "old", [fresh] + fields) }
    _ = try await fixture.client.respond(to: get(url), over: transport)
  }

  @Test(
    "unsafe: forwarded always, and what a success changed is gone",
    arguments: [
      ("post-200", "POST", 200, true), ("put-204", "PUT", 204, true), ("delete-302", "DELETE", 302, true),
      ("unknown-200", "FROBNICATE", 200, true), ("post-400", "POST", 400, false), ("post-500", "POST", 500, false),
      ("options-200", "OPTIONS", 200, false),
    ])
  func unsafe(id: String, method: String, status: Int, invalidates: Bool) async throws {
    let fixture = Fixture()
    try await stored(fixture, "http://example.com/a")
    let transport = ScriptedTransport { _, _ in fixture.response(status, "") }
    let response = try await fixture.client.respond(to: get(method: method), over: transport)
    #expect(response.status == status)
    #expect(transport.requests[0].head.method == method)
    #expect((fixture.client.storedAnswer(to: get()) == nil) == invalidates)
  }

  @Test("unsafe-location: Location of the same origin goes too, of another origin it stays")
  func location() async throws {
    let fixture = Fixture()
    try await stored(fixture, "http://example.com/b")
    try await stored(fixture, "http://other.example/b")
    for location in ["http://example.com/b", "http://other.example/b"] {
      let transport = ScriptedTransport { _, _ in fixture.response(201, "", [("Location", location)]) }
      _ = try await fixture.client.respond(to: get("http://example.com/a", method: "POST"), over: transport)
    }
    #expect(fixture.client.storedAnswer(to: get("http://example.com/b")) == nil)
    #expect(fixture.client.storedAnswer(to: get("http://other.example/b")) != nil)
  }

  @Test("unsafe-groups: the groups an answer names are gone")
  func groups() async throws {
    let fixture = Fixture()
    try await stored(fixture, "http://example.com/b", ("Cache-Groups", "\"articles\""))
    try await stored(fixture, "http://example.com/c", ("Cache-Groups", "\"other\""))
    let transport = ScriptedTransport { _, _ in
      fixture.response(200, "", [("Cache-Group-Invalidation", "\"articles\"")])
    }
    _ = try await fixture.client.respond(to: get(method: "POST"), over: transport)
    #expect(fixture.client.storedAnswer(to: get("http://example.com/b")) == nil)
    #expect(fixture.client.storedAnswer(to: get("http://example.com/c")) != nil)
  }

  /// Row 90: a POST's answer may be a later GET's, but not after a change that overtook its body.
  @Test("post: its answer answers a later GET, unless a change overtook it", arguments: [false, true])
  func post(isOvertaken: Bool) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let posting = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.response(200, "", [fresh, ("Content-Location", "http://example.com/a")]).head,
        body: .chunks(["posted"], behind: [gate]))
    }
    let url = "http://example.com/a"
    let answer = try await fixture.client.respond(to: get(url, method: "POST"), over: posting)
    if isOvertaken {
      let putting = ScriptedTransport { _, _ in fixture.response(200) }
      _ = try await fixture.client.respond(to: get(url, method: "PUT"), over: putting)
    }
    gate.open()
    #expect(try await answer.text() == "posted")
    #expect(try await fixture.client.storedAnswer(to: get(url))?.text() == (isOvertaken ? nil : "posted"))
  }

  // Guarantee: what was asked for before a change is not stored after it.
  //
  //   GET                         | POST
  //   ----------------------------+-----------------------------------
  //   sent                        |
  //                               | sent, answered: invalidates
  //   gate: 200 "old", fresh      |
  //   its caller gets "old"       |
  //   nothing is stored           | the next GET is sent
  @Test(
    "overtaken: a GET in flight does not store its older result",
    arguments: [
      ("same", "http://example.com/a?x=1"), ("spelled-otherwise", "HTTP://Example.COM:80/a?x=1#part"),
    ], [false, true])
  func overtaken(spelling: (id: String, url: String), isStreaming: Bool) async throws {
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
    #expect(try await fixture.client.storedAnswer(to: get("http://example.com/a?x=1"))?.text() == "new")
    #expect(fixture.client.statistics.refused["overtaken"] == 1)
  }

  @Test("overtaken-304: a confirmation in flight does not bring the invalidated response back")
  func overtakenConfirmation() async throws {
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
    #expect(fixture.client.storedAnswer(to: get()) == nil)
  }

  @Test("overtaken-while-storing: an invalidation between the last check and the store is repeated")
  func overtakenWhileStoring() async throws {
    let hook = Mutex<(@Sendable () -> Void)?>(nil)
    let fixture = Fixture(storage: MemoryStorage(asksAgain: false, whenStoring: { hook.withLock { $0 }?() }))
    hook.withLock { $0 = { fixture.client.voidFetches() } }
    let transport = ScriptedTransport { _, _ in fixture.ok("old", fresh) }
    _ = try await fixture.client.respond(to: get(), over: transport)
    #expect(fixture.client.storedAnswer(to: get()) == nil)
    #expect(fixture.client.statistics.stored == 0)
  }

  // RFC 9111 section 4.4, for a request that its session sends again, with credentials.
  @Test("Until the unseen response to an unsafe request has come, nothing that is fetched from its URL is stored")
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
    // A safe request changes nothing.
    await ForwardedRequest(get(method: "OPTIONS"), past: fixture.client).expectUnseenResponse()
    #expect(try await fetch() == "7")
  }

  @Test("void-fetches: a purge from outside overtakes the fetches it names, and no others")
  func voidFetches() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      try await gate.pass()
      return fixture.ok("body", fresh)
    }
    async let first = fixture.client.respond(to: get("http://one.example/"), over: transport)
    async let second = fixture.client.respond(to: get("http://two.example/"), over: transport)
    await until { transport.count == 2 }
    fixture.client.voidFetches { $0.host == "one.example" }
    gate.open()
    _ = try await (first, second)
    #expect(fixture.client.storedAnswer(to: get("http://one.example/")) == nil)
    #expect(fixture.client.storedAnswer(to: get("http://two.example/")) != nil)
  }
}
