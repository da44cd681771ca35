import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Checking what is stored, and doing without the check (RFC 9111 sections 4.2.4 and 4.3, RFC 5861).
@Suite("revalidation", .timeLimit(.minutes(1)))
struct RevalidationTests {
  private let etag = ("ETag", "\"1\"")

  /// Stores one response with an ETag, and lets it become stale by ten seconds.
  private func staleFixture(
    _ fields: [(String, String)] = [("Cache-Control", "max-age=60")], options: CachingOptions = CachingOptions()
  ) async throws -> Fixture {
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { _, _ in fixture.response(200, "stored", [("ETag", "\"1\"")] + fields) }
    _ = try await fixture.client.respond(to: get(), over: transport)
    fixture.clock.advance(by: 70)
    return fixture
  }

  @Test("revalidate-304: the stored response is updated and served; the client sees no 304")
  func notModified() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, _ in
      fixture.response(304, "", [("ETag", "\"1\""), ("Cache-Control", "max-age=100"), ("X-New", "1")])
    }
    #expect(fixture.client.storedAnswer(to: get()) == nil)
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(transport.requests[0].head.fields["If-None-Match"] == "\"1\"")
    #expect(response.status == 200)
    #expect(response.source == .revalidated)
    #expect(try await response.text() == "stored")
    #expect(response.head.fields["X-New"] == "1")
    #expect(fixture.client.statistics.revalidations == 1)

    fixture.clock.advance(by: 90)
    let hit = try #require(fixture.client.storedAnswer(to: get()))
    #expect(hit.age == 90)
    #expect(hit.head.fields["X-New"] == "1")
    #expect(hit.head.fields["Age"] == "90")
  }

  @Test("revalidate-own-condition: a client whose own tag is the stored one gets its 304")
  func ownCondition() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, _ in fixture.response(304, "", [("ETag", "\"1\""), fresh]) }
    let request = get("http://example.com/a", ["If-None-Match": "\"1\""])
    let response = try await fixture.client.respond(to: request, over: transport)
    #expect(response.status == 304)
    #expect(try await response.text() == "")
    #expect(fixture.client.storedAnswer(to: get())?.status == 200)
  }

  @Test("revalidate-replaced: a full response takes the place of the stored one")
  func replaced() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("new", fresh, ("ETag", "\"2\"")) }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
    #expect(try await fixture.client.storedAnswer(to: get())?.text() == "new")
    #expect(fixture.storage.entryCount == 1)
  }

  @Test("revalidate-superseded: a full response that must not be stored still ends the old one")
  func superseded() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("secret", ("Cache-Control", "no-store")) }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "secret")
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("revalidate-wrong-304: a 304 for something else is followed by a plain request")
  func wrongConfirmation() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { request, _ in
      request.head.fields.contains("If-None-Match")
        ? fixture.response(304, "", [("ETag", "\"other\"")]) : fixture.ok("new", fresh, ("ETag", "\"other\""))
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
    #expect(transport.count == 2)
  }

  @Test("revalidate-once: concurrent checks of one stale response make one request")
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
    "stale-if-error: what the origin's failure leads to",
    arguments: [
      ("status-allowed", "max-age=60, stale-if-error=30", 503, "stored", ResponseSource.staleOnError),
      ("status-late", "max-age=60, stale-if-error=5", 503, "broken", .network),
      ("status-not-named", "max-age=60", 503, "broken", .network),
      ("status-forbidden", "max-age=60, stale-if-error=30, must-revalidate", 503, "broken", .network),
      ("status-no-error", "max-age=60, stale-if-error=30", 404, "broken", .network),
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

  @Test("stale-if-error-forbidden: without permission the transport's error arrives")
  func unreachableForbidden() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, must-revalidate")])
    let transport = ScriptedTransport { _, _ in throw Unreachable() }
    await #expect(throws: Unreachable.self) { try await fixture.client.respond(to: get(), over: transport) }
  }

  @Test("stale-if-error-followers: those who wait get their stale response too")
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

  // Guarantee: inside the window everybody is answered at once, one request goes out, and what it brings is not lost.
  //
  //   callers 1 … 50              | background
  //   ----------------------------+-----------------------------------
  //   stale, answered at once     | the first one's check is sent
  //   all 50 have their answer    | gate: 200 "new"
  //   finishBackgroundWork()      | stored
  //   the next is fresh: "new"    |
  @Test("swr-once: one background revalidation per key at a time")
  func staleWhileRevalidate() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, stale-while-revalidate=30")])
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("new", fresh, ("ETag", "\"2\""))
    }
    for _ in 0..<50 {
      let response = try await fixture.client.respond(to: get(), over: transport)
      #expect(response.source == .staleStore)
      #expect(try await response.text() == "stored")
    }
    gate.open()
    await fixture.client.finishBackgroundWork()
    #expect(transport.count == 1)
    #expect(transport.requests[0].head.fields["If-None-Match"] == "\"1\"")
    let hit = try #require(fixture.client.storedAnswer(to: get()))
    #expect(try await hit.text() == "new")

    // Stale again, and checked again: the first check left nothing behind.
    fixture.clock.advance(by: 100)
    let miss = try await fixture.client.respond(to: get(), over: transport)
    #expect(miss.source == .network)
    #expect(transport.count == 2)
  }

  @Test("swr-failure: a check that fails changes nothing, and the next answer tries again")
  func staleWhileRevalidateFails() async throws {
    let fixture = try await staleFixture([("Cache-Control", "max-age=60, stale-while-revalidate=30")])
    let transport = ScriptedTransport { _, _ in throw Unreachable() }
    for expected in 1...2 {
      #expect(try await fixture.client.respond(to: get(), over: transport).source == .staleStore)
      await fixture.client.finishBackgroundWork()
      #expect(transport.count == expected)
    }
  }

  @Test("swr-cancelled-caller: the check goes on when its caller is cancelled")
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
    #expect(fixture.client.storedAnswer(to: get())?.source == .store)
  }
}
