import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Validation, background revalidation, and stale responses (RFC 9111, 4.2.4 and 4.3; RFC 5861).
@Suite("Revalidation", .timeLimit(.minutes(1)))
struct RevalidationTests {
  private let etag = ("ETag", "\"1\"")

  /// Stores a response with an `ETag` and advances the clock to 10 seconds after its lifetime.
  private func staleFixture(
    _ fields: [(String, String)] = [("Cache-Control", "max-age=60")], options: CachingOptions = CachingOptions()
  ) async throws -> Fixture {
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { _, _ in fixture.response(200, "stored", [("ETag", "\"1\"")] + fields) }
    _ = try await fixture.client.respond(to: get(), over: transport)
    fixture.clock.advance(by: 70)
    return fixture
  }

  @Test("A 304 updates the stored response, and the client gets a 200")
  func notModified() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, _ in
      fixture.response(304, "", [("ETag", "\"1\""), ("Cache-Control", "max-age=100"), ("X-New", "1")])
    }
    #expect(fixture.client.storedResponse(to: get()) == nil)
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(transport.requests[0].head.fields["If-None-Match"] == "\"1\"")
    #expect(response.status == 200)
    #expect(response.source == .revalidated)
    #expect(try await response.text() == "stored")
    #expect(response.head.fields["X-New"] == "1")
    #expect(fixture.client.statistics.revalidations == 1)

    fixture.clock.advance(by: 90)
    let hit = try #require(fixture.client.storedResponse(to: get()))
    #expect(hit.age == 90)
    #expect(hit.head.fields["X-New"] == "1")
    #expect(hit.head.fields["Age"] == "90")
  }

  @Test("After a 304 for another response the client sends an unconditional request")
  func wrongConfirmation() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { request, _ in
      request.head.fields.contains("If-None-Match")
        ? fixture.response(304, "", [("ETag", "\"other\"")]) : fixture.ok("new", fresh, ("ETag", "\"other\""))
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
    #expect(transport.count == 2)
  }

  @Test("Concurrent validations of a stale response send one request")
  func once() async throws {
    let fixture = try await staleFixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.response(304, "", [("ETag", "\"1\""), fresh])
    }
    try await withThrowingTaskGroup { group in
      for _ in 0..<100 {
        group.addTask { try await fixture.client.respond(to: get(), over: transport).text() }
      }
      await until { fixture.client.statistics.waiting == 99 }
      gate.open()
      for try await text in group { #expect(text == "stored") }
    }
    #expect(transport.count == 1)
  }

  @Test(
    "A stale response is served on an error only if stale-if-error permits it",
    arguments: [
      ("status-allowed", "max-age=60, stale-if-error=30", 503, "stored", ResponseSource.staleOnError),
      ("status-late", "max-age=60, stale-if-error=5", 503, "broken", .miss),
      ("status-not-named", "max-age=60", 503, "broken", .miss),
      ("status-forbidden", "max-age=60, stale-if-error=30, must-revalidate", 503, "broken", .miss),
      ("status-no-error", "max-age=60, stale-if-error=30", 404, "broken", .miss),
      ("unreachable-allowed", "max-age=60, stale-if-error=30", 0, "stored", .staleOnError),
    ])
  func staleIfError(id: String, cacheControl: String, status: Int, text: String, source: ResponseSource) async throws {
    let fixture = try await staleFixture([("Cache-Control", cacheControl)])
    let transport = ScriptedTransport { _, _ in
      guard status != 0 else { throw Unreachable() }
      return fixture.response(status, "broken")
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(try await response.text() == text)
    #expect(response.source == source)
    #expect(fixture.client.statistics.staleServed == (source == .staleOnError ? 1 : 0))
    if source == .staleOnError { #expect(response.head.fields["Age"] == "70") }
  }

  @Test("If stale-if-error does not apply, the transport's error is thrown")
  func unreachableForbidden() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, must-revalidate")])
    let transport = ScriptedTransport { _, _ in throw Unreachable() }
    await #expect(throws: Unreachable.self) { try await fixture.client.respond(to: get(), over: transport) }
  }

  @Test("Followers get the stale response on an error, too")
  func staleForFollowers() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, stale-if-error=30")])
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.response(500, "broken")
    }
    try await withThrowingTaskGroup { group in
      for _ in 0..<10 {
        group.addTask { try await fixture.client.respond(to: get(), over: transport).source }
      }
      await until { fixture.client.statistics.waiting == 9 }
      gate.open()
      for try await source in group { #expect(source == .staleOnError) }
    }
    #expect(transport.count == 1)
  }

  // Guarantee: within stale-while-revalidate all callers get a response at once, and one revalidation is sent and
  // stored.
  //
  //   callers 1 … 50              | background
  //   ----------------------------+-----------------------------------
  //   stale responses at once     | the first one's validation is sent
  //   all 50 have a response      | gate: 200 "new"
  //   finishBackgroundWork()      | stored
  //   the next is fresh: "new"    |
  @Test("Only one background revalidation per key runs at a time")
  func staleWhileRevalidate() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, stale-while-revalidate=30")])
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("new", fresh, ("ETag", "\"2\""))
    }
    for _ in 0..<50 {
      let response = try await fixture.client.respond(to: get(), over: transport)
      #expect(response.source == .stale)
      #expect(try await response.text() == "stored")
    }
    gate.open()
    await fixture.client.finishBackgroundWork()
    #expect(transport.count == 1)
    #expect(transport.requests[0].head.fields["If-None-Match"] == "\"1\"")
    let hit = try #require(fixture.client.storedResponse(to: get()))
    #expect(try await hit.text() == "new")

    // A second revalidation runs after the first one has ended.
    fixture.clock.advance(by: 100)
    let miss = try await fixture.client.respond(to: get(), over: transport)
    #expect(miss.source == .miss)
    #expect(transport.count == 2)
  }

  /// Row 63; RFC 9111, 4.3.1.
  @Test("A background revalidation is a GET with the request's fields, except its range, conditions and directives")
  func backgroundRequest() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, stale-while-revalidate=30")])
    let transport = ScriptedTransport { _, _ in fixture.response(304, "", [("ETag", "\"1\""), fresh]) }
    let fields: HeaderFields = [
      "Foo": "1", "Range": "bytes=0-1", "Cache-Control": "no-transform", "If-None-Match": "\"x\"",
    ]
    let request = get("http://example.com/a", fields, method: "HEAD")
    #expect(try await fixture.client.respond(to: request, over: transport).source == .stale)
    await fixture.client.finishBackgroundWork()
    let sent = try #require(transport.requests.first).head
    #expect(sent.method == "GET")
    #expect(sent.fields["Foo"] == "1")
    #expect(sent.fields["If-None-Match"] == "\"1\"")
    #expect(!sent.fields.contains("Range") && !sent.fields.contains("Cache-Control"))
  }

  @Test("A background revalidation that fails changes nothing, and without a hold-off the next request repeats it")
  func staleWhileRevalidateFails() async throws {
    var options = CachingOptions()
    options.holdOff = nil
    let fixture = try await staleFixture(
      [("Cache-Control", "max-age=60, stale-while-revalidate=30")], options: options)
    let transport = ScriptedTransport { _, _ in throw Unreachable() }
    for expected in 1...2 {
      #expect(try await fixture.client.respond(to: get(), over: transport).source == .stale)
      await fixture.client.finishBackgroundWork()
      #expect(transport.count == expected)
    }
  }

  @Test("A background revalidation continues after its caller is cancelled")
  func staleWhileRevalidateCancelled() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, stale-while-revalidate=30")])
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.response(304, "", [("ETag", "\"1\""), fresh])
    }
    let caller = Task { try await fixture.client.respond(to: get(), over: transport) }
    _ = try await caller.value
    caller.cancel()
    gate.open()
    await fixture.client.finishBackgroundWork()
    #expect(fixture.client.storedResponse(to: get())?.source == .hit)
  }
}
