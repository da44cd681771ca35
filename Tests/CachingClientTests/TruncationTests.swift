import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Responses whose bodies are cut after the head (RFC 5861, 4; RFC 9111, 3.3).
@Suite("Truncated responses", .timeLimit(.minutes(1)))
struct TruncationTests {
  /// Stores a response and advances the clock to 10 seconds after its lifetime.
  private func staleFixture(_ cacheControl: String = "max-age=60, stale-if-error=600") async throws -> Fixture {
    var options = CachingOptions()
    options.holdOff = nil
    let fixture = Fixture(options: options, maximumBodyByteCount: 100)
    let transport = ScriptedTransport { _, _ in fixture.ok("stored", ("Cache-Control", cacheControl), ("ETag", "\"1\""))
    }
    _ = try await fixture.client.respond(to: get(), over: transport)
    fixture.clock.advance(by: 70)
    return fixture
  }

  /// Returns a request whose caller receives the body as it arrives.
  private func streaming(readsInPieces: Bool = true) -> CachingClientRequest {
    var request = get()
    if readsInPieces { request.readsBodyInPieces = true } else { request.receivesBodyAsItArrives = true }
    return request
  }

  @Test("If the body is cut, the leader gets the stale response as its followers do")
  func staleOnCut() async throws {
    let fixture = try await staleFixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      IncomingResponse(
        head: fixture.ok("", fresh).head,
        body: .chunks(["new", "er"], behind: [gate], failing: Unreachable()))
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<5 {
        group.addTask {
          let response = try await fixture.client.respond(to: get(), over: transport)
          #expect(response.source == .staleOnError)
          #expect(try await response.text() == "stored")
        }
      }
      await until { transport.count + fixture.client.statistics.waiting == 5 }
      gate.open()
      try await group.waitForAll()
    }
    #expect(fixture.storage.entryCount == 1)
    #expect(fixture.client.statistics.waiting == 0)
  }

  @Test("A body that is shorter than its Content-Length counts as cut")
  func shorter() async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(head: fixture.ok("", fresh, ("Content-Length", "10")).head, body: .chunks(["new"]))
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "stored")
  }

  @Test(
    "A caller that receives a body as it arrives gets the stale response before the first part, and then the error",
    arguments: [true, false])
  func staleBeforeFirstPart(readsInPieces: Bool) async throws {
    let fixture = try await staleFixture()
    let transport = ScriptedTransport { _, number in
      IncomingResponse(
        head: fixture.ok("", fresh).head, body: .chunks(number == 1 ? [] : ["new"], failing: Unreachable()))
    }
    let stale = try await fixture.client.respond(to: streaming(readsInPieces: readsInPieces), over: transport)
    #expect(stale.source == .staleOnError)
    #expect(try await stale.text() == "stored")
    let cut = try await fixture.client.respond(to: streaming(readsInPieces: readsInPieces), over: transport)
    #expect(cut.source == .miss)
    await #expect(throws: Unreachable.self) { try await cut.text() }
    #expect(fixture.storage.entryCount == 1)
  }

  @Test("A reader in pieces gets the first part before the body is complete, also if a stale response is permitted")
  func streamsAfterFirstPart() async throws {
    let fixture = try await staleFixture()
    let (first, end) = (Gate(), Gate())
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["ne", "w"], behind: [first, end]))
    }
    async let reply = fixture.client.respond(to: streaming(), over: transport)
    await until { transport.count == 1 }
    first.open()
    var iterator = try await reply.body.makeAsyncIterator()
    #expect(try await iterator.next() == Data("ne".utf8))
    end.open()
    #expect(try await iterator.next() == Data("w".utf8))
    #expect(try await iterator.next() == nil)
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "new")
  }

  @Test("A body beyond the limit streams to its caller, also if a stale response is permitted")
  func tooLarge() async throws {
    let fixture = try await staleFixture()
    let gate = Gate()
    let large = String(repeating: "x", count: 80)
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", fresh).head, body: .chunks([large, large, "end"], behind: [Gate.opened, .opened, gate]))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    gate.open()
    #expect(try await response.text() == large + large + "end")
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("Without a stale response that may be served, the head is returned before the body")
  func notHeldBack() async throws {
    let fixture = try await staleFixture("max-age=60")
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["new"], behind: [gate], failing: Unreachable()))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    gate.open()
    await #expect(throws: Unreachable.self) { try await response.text() }
    #expect(fixture.storage.entryCount == 1)
  }

  @Test(
    "Only a complete response that is not stored removes the stored one",
    arguments: [
      ("no-store", [("Cache-Control", "no-store")]), ("declared", [fresh, ("Content-Length", "160")]),
      ("undeclared", [fresh]),
    ], [true, false])
  func removal(kind: (id: String, fields: [(String, String)]), isComplete: Bool) async throws {
    let fixture = try await staleFixture("max-age=60")
    let large = String(repeating: "x", count: 80)
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.response(200, "", kind.fields).head,
        body: .chunks([large, large], failing: isComplete ? nil : Unreachable()))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    if isComplete {
      #expect(try await response.text() == large + large)
    } else {
      await #expect(throws: Unreachable.self) { try await response.text() }
    }
    #expect(fixture.storage.entryCount == (isComplete ? 0 : 1))
  }
}

extension Gate {
  /// A gate that is open.
  fileprivate static var opened: Gate {
    let gate = Gate()
    gate.open()
    return gate
  }
}
