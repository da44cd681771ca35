import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Whether a response says that it is stored, or why not.
@Suite("Outcome of storing", .timeLimit(.minutes(1)))
struct StorageOutcomeTests {
  @Test("A response is undecided until its body is complete, and stored afterwards", arguments: [true, false])
  func complete(isCut: Bool) async throws {
    let fixture = Fixture()
    let gates = [Gate(), Gate()]
    gates[0].open()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", fresh, ("Content-Length", "4")).head,
        body: .chunks(isCut ? ["bo"] : ["bo", "dy"], behind: gates))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(response.storage == .undecided && response.storageRefusal == nil)
    gates[1].open()
    if isCut {
      await #expect(throws: (any Error).self) { try await response.text() }
      #expect(response.storage == .notStored(.incompleteBody) && response.storageRefusal == .incompleteBody)
    } else {
      #expect(try await response.text() == "body")
      #expect(response.storage == .stored && response.storageRefusal == nil)
    }
    #expect(fixture.client.storedResponse(to: get())?.storage == (isCut ? nil : .stored))
  }

  @Test("A validated response whose new fields forbid storing is no longer stored")
  func validated() async throws {
    let fixture = Fixture()
    let fields = [("ETag", "\"1\"")]
    let transport = ScriptedTransport { _, number in
      number == 1
        ? fixture.response(200, "body", fields + [fresh])
        : fixture.response(304, "", fields + [("Cache-Control", number == 2 ? "max-age=60" : "no-store")])
    }
    _ = try await fixture.client.respond(to: get(), over: transport)
    for outcome in [StorageOutcome.stored, .notStored(.noStore)] {
      fixture.clock.advance(by: 100)
      let response = try await fixture.client.respond(to: get(), over: transport)
      #expect(response.source == .revalidated)
      #expect(response.storage == outcome)
    }
  }

  @Test("A response that a change has invalidated in flight says so", arguments: [true, false])
  func invalidated(hasHook: Bool) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let getting = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("old", fresh)
    }
    let early = Task {
      try await fixture.client.respond(to: hasHook ? get(willStore: { $0 }) : get(), over: getting).storage
    }
    await until { getting.count == 1 }
    let posting = ScriptedTransport { _, _ in fixture.response(200) }
    let posted = try await fixture.client.respond(to: get(method: "POST"), over: posting)
    #expect(posted.storage == .notStored(.postNotCached))
    gate.open()
    #expect(try await early.value == .notStored(.invalidatedInFlight))
  }

  @Test("A hook that drops its callback refuses to store the response")
  func droppedCallback() async throws {
    let fixture = Fixture()
    var request = get()
    request.willStore = { _, _ in }
    let response = try await fixture.client.respond(
      to: request, over: ScriptedTransport { _, _ in fixture.ok("body", fresh) })
    #expect(response.storage == .notStored(.refusedByCaller))
  }
}
