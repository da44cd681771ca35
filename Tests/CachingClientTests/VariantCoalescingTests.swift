import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Requests share fetches per variant and per user, regardless of the responses to other requests (RFC 9111, 4 and
/// 4.1).
@Suite("Coalescing of variants", .timeLimit(.minutes(1)))
struct VariantCoalescingTests {
  private let url = "http://example.com/a"
  private let vary = ("Vary", "Accept")

  /// Returns a request for a variant.
  private func accepting(_ type: String) -> CachingClientRequest { get(url, ["Accept": type]) }

  // Guarantee: identical requests of a variant that is not the leader's cost one fetch.
  //
  //   leader "a/a"                | 49 × "a/a"            | 50 × "b/b"
  //   ----------------------------+-----------------------+-----------------------
  //   sends                       | wait                  | wait
  //   gate 1: head and body       | get the leader's      | one sends, 49 wait for it
  //                               |                       | gate 2: get its response
  @Test("50 requests for each of two variants cost one fetch for each variant", arguments: [true, false])
  func twoVariants(isInMemory: Bool) async throws {
    let fixture = Fixture()
    let (first, second) = (Gate(), Gate())
    let transport = ScriptedTransport { [vary] request, number in
      try await (number == 1 ? first : second).pass()
      let type = request.head.fields["Accept"] ?? ""
      return isInMemory
        ? fixture.ok(type, fresh, vary)
        : IncomingResponse(head: fixture.ok("", fresh, vary).head, body: .chunks([type]))
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for number in 0..<100 {
        let type = number % 2 == 0 ? "a/a" : "b/b"
        group.addTask {
          let text = try await fixture.client.respond(to: accepting(type), over: transport).text()
          #expect(text == type)
        }
        if number == 0 { await until { transport.count == 1 } }
      }
      await until { fixture.client.statistics.waiting == 99 }
      first.open()
      await until { transport.count > 1 && transport.count - 1 + fixture.client.statistics.waiting == 50 }
      second.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 2)
  }

  @Test("Requests that arrive after the head of another variant join the fetch of their own variant")
  func lateRequests() async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { [vary] request, _ in
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", fresh, vary).head, body: .chunks([request.head.fields["Accept"] ?? ""], behind: [end]))
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      func start(_ type: String) {
        group.addTask {
          let text = try await fixture.client.respond(to: accepting(type), over: transport).text()
          #expect(text == type)
        }
      }
      start("a/a")
      await until { transport.count == 1 }
      start("b/b")
      await until { fixture.client.statistics.waiting == 1 }
      head.open()
      // The fetches of both variants are in flight, and their bodies are blocked.
      await until { transport.count == 2 }
      for _ in 0..<10 {
        start("a/a")
        start("b/b")
      }
      await until { transport.count + fixture.client.statistics.waiting == 22 }
      end.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 2)
  }

  @Test(
    "While one variant is validated, identical requests of another variant cost one fetch", arguments: [true, false])
  func validation(readsInPieces: Bool) async throws {
    let fixture = Fixture()
    let (first, second) = (Gate(), Gate())
    let transport = ScriptedTransport { [vary] request, number in
      let type = request.head.fields["Accept"] ?? ""
      if number > 1 { try await (number == 2 ? first : second).pass() }
      guard request.head.fields.contains("If-None-Match") else {
        return fixture.ok(type, fresh, vary, ("ETag", "\"1\""))
      }
      return fixture.response(304, "", [fresh, ("ETag", "\"1\"")])
    }
    _ = try await fixture.client.respond(to: accepting("a/a"), over: transport)
    fixture.clock.advance(by: 100)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for number in 0..<40 {
        let type = number % 2 == 0 ? "a/a" : "b/b"
        var request = accepting(type)
        request.readsBodyInPieces = readsInPieces
        group.addTask { [request] in
          let text = try await fixture.client.respond(to: request, over: transport).text()
          #expect(text == type)
        }
        if number == 0 { await until { transport.count == 2 } }
      }
      await until { fixture.client.statistics.waiting == 39 }
      first.open()
      await until { transport.count > 2 && transport.count - 2 + fixture.client.statistics.waiting == 20 }
      second.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 3)
  }

  @Test("A response that must not be stored does not separate identical requests of another variant")
  func unshareableVariant() async throws {
    let fixture = Fixture()
    let (first, second) = (Gate(), Gate())
    let transport = ScriptedTransport { [vary] request, number in
      try await (number == 1 ? first : second).pass()
      let type = request.head.fields["Accept"] ?? ""
      return fixture.ok(type, type == "a/a" ? ("Cache-Control", "no-store") : fresh, vary)
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      group.addTask { _ = try await fixture.client.respond(to: accepting("a/a"), over: transport) }
      await until { transport.count == 1 }
      for _ in 0..<20 {
        group.addTask {
          let text = try await fixture.client.respond(to: accepting("b/b"), over: transport).text()
          #expect(text == "b/b")
        }
      }
      await until { fixture.client.statistics.waiting == 20 }
      first.open()
      await until { transport.count > 1 && transport.count - 1 + fixture.client.statistics.waiting == 20 }
      second.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 2)
  }

  /// Sends a request whose response cannot be shared, then 20 others at once. Returns the number of these sent.
  private func sentCount(
    after refused: CachingClientRequest, _ refusal: @escaping @Sendable (Fixture) -> IncomingResponse,
    others: CachingClientRequest
  ) async throws -> Int {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { [vary] _, number in
      if number == 1 { return refusal(fixture) }
      try await gate.pass()
      return fixture.ok("shared", fresh, vary)
    }
    _ = try await fixture.client.respond(to: refused, over: transport)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<20 {
        group.addTask { _ = try await fixture.client.respond(to: others, over: transport).text() }
      }
      await until { transport.count - 1 + fixture.client.statistics.waiting == 20 }
      gate.open()
      try await group.waitForAll()
    }
    return transport.count - 1
  }

  @Test("A refused credential does not keep the requests of others from sharing a fetch", arguments: [nil, "good"])
  func refusedCredential(other: String?) async throws {
    let bad = get(url, ["Authorization": "bad"])
    let others = get(url, other.map { ["Authorization": $0] } ?? [:])
    #expect(try await sentCount(after: bad, { $0.response(403, "no") }, others: others) == 1)
    #expect(try await sentCount(after: bad, { $0.response(403, "no") }, others: bad) == 20)
  }

  @Test("A response for one user only does not keep the requests of others from sharing a fetch")
  func privateVariant() async throws {
    let user = get(url, ["Cookie": "user=1", "Accept": "a/a"])
    let refusal: @Sendable (Fixture) -> IncomingResponse = {
      $0.ok("mine", ("Cache-Control", "no-store"), ("Vary", "Cookie"))
    }
    #expect(try await sentCount(after: user, refusal, others: accepting("a/a")) == 1)
    #expect(try await sentCount(after: user, refusal, others: user) == 20)
  }

  @Test("After a response of the same kind can be shared, requests share fetches again")
  func sharedAgain() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { [vary] _, number in
      if number == 1 { return fixture.ok("", ("Cache-Control", "no-store"), vary) }
      if number > 2 { try await gate.pass() }
      return fixture.ok("shared", ("Cache-Control", number == 2 ? "max-age=1" : "max-age=60"), vary)
    }
    for _ in 0..<2 { _ = try await fixture.client.respond(to: accepting("a/a"), over: transport) }
    fixture.clock.advance(by: 5)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<20 {
        group.addTask { _ = try await fixture.client.respond(to: accepting("a/a"), over: transport).text() }
      }
      await until { transport.count - 2 + fixture.client.statistics.waiting == 20 }
      gate.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 3)
  }

  /// An origin whose responses vary by `Accept`. It counts the fetches in flight for each value.
  private final class Origin: Sendable {
    private struct State {
      var random: SeededGenerator
      var inFlight: [String: Int] = [:]
      var maximum = 0
    }

    private let state: Mutex<State>

    init(seed: UInt64) { state = Mutex(State(random: SeededGenerator(seed: seed))) }

    var maximum: Int { state.withLock { $0.maximum } }

    func draw(_ range: Range<Int>) -> Int { state.withLock { Int.random(in: range, using: &$0.random) } }

    func pause() async { for _ in 0..<draw(0..<8) { await Task.yield() } }

    func begin(_ type: String) {
      state.withLock { state in
        state.inFlight[type, default: 0] += 1
        state.maximum = max(state.maximum, state.inFlight[type] ?? 0)
      }
    }

    func end(_ type: String) { state.withLock { $0.inFlight[type, default: 0] -= 1 } }
  }

  @Test("At most one fetch per variant is in flight, in any order of events", arguments: UInt64(1)...12)
  func model(seed: UInt64) async throws {
    // Without a storage each request that does not join a fetch is sent.
    let fixture = Fixture(storage: MemoryStorage(keeps: false))
    let origin = Origin(seed: seed)
    let transport = ScriptedTransport { [vary] request, _ in
      let type = request.head.fields["Accept"] ?? ""
      origin.begin(type)
      await origin.pause()
      let parts = Mutex(["", type, ""])
      return IncomingResponse(
        head: fixture.ok("", fresh, vary).head,
        body: ResponseBodyStream(next: {
          await origin.pause()
          return parts.withLock { parts in
            guard parts.isEmpty else { return Data(parts.removeFirst().utf8) }
            origin.end(type)
            return nil
          }
        }))
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<300 {
        let type = ["a/a", "b/b", "c/c"][origin.draw(0..<3)]
        await origin.pause()
        group.addTask {
          let text = try await fixture.client.respond(to: accepting(type), over: transport).text()
          #expect(text == type)
        }
      }
      try await group.waitForAll()
    }
    #expect(origin.maximum == 1)
    #expect(fixture.client.statistics.waiting == 0)
  }
}
