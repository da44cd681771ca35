import CachingClient
import CachingStorage
import FoundationEssentials
import Glibc
import HTTPCaching
import Synchronization
import Testing

/// Concurrent unsafe requests whose responses can be stored for a GET (RFC 9110, 9.3.3; RFC 9111, 4.4).
@Suite("Concurrent changes", .timeLimit(.minutes(1)))
struct ConcurrentChangeTests {
  private static let url = "http://example.com/a"
  private let post = get(url, method: "POST")

  /// Returns a response that can be stored for a GET.
  private static func reply(_ fixture: Fixture, _ body: String) -> IncomingResponse {
    fixture.response(200, body, [fresh, ("Content-Location", url)])
  }

  // Guarantee: the response to the POST that is answered last is stored, and none after it.
  //
  //   POST 1 … 20     | sent, all in flight
  //   gate i opens    | POST i is answered: its response replaces that of the one before
  @Test("Of concurrent POSTs, the one that was answered last is stored", arguments: UInt64(1)...3)
  func lastAnswered(seed: UInt64) async throws {
    let fixture = Fixture()
    var random = SeededGenerator(seed: seed)
    let gates = (0..<20).map { _ in Gate() }
    let transport = ScriptedTransport { _, number in
      try await gates[number - 1].pass()
      return Self.reply(fixture, "\(number)")
    }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in gates { group.addTask { _ = try await fixture.client.respond(to: post, over: transport).text() } }
      await until { transport.count == gates.count }
      for (index, gate) in gates.enumerated().shuffled(using: &random) {
        gate.open()
        try await group.next()
        #expect(try await fixture.client.storedResponse(to: get())?.text() == "\(index + 1)")
      }
    }
    #expect(fixture.storage.entryCount == 1)
    #expect(fixture.client.statistics.storageRefusals["invalidated-in-flight"] == nil)
  }

  @Test("Of POSTs that are answered at the same time, one is stored")
  func sameTime() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      try await gate.pass()
      return Self.reply(fixture, "\(number)")
    }
    for _ in 0..<10 {
      try await withThrowingTaskGroup(of: Void.self) { group in
        for _ in 0..<150 { group.addTask { _ = try await fixture.client.respond(to: post, over: transport).text() } }
        gate.open()
        try await group.waitForAll()
      }
      #expect(fixture.client.storedResponse(to: get()) != nil)
      #expect(fixture.storage.entryCount == 1)
    }
  }

  // Guarantee: an invalidated response removes no newer one.
  //
  //   POST 1, POST 2  | sent
  //   POST 2          | answered; its response is being stored
  //   POST 1          | answered: invalidates that response, and is stored
  //   POST 2          | its response is not stored
  @Test("A POST that is answered while the response to another one is being stored is stored instead")
  func whileStoring() async throws {
    let firstStore = Mutex<(@Sendable () -> Void)?>(nil)
    let fixture = Fixture(storage: MemoryStorage(whenStoring: { firstStore.withLock { $0.take() }?() }))
    let gate = Gate()
    firstStore.withLock {
      $0 = {
        gate.open()
        while fixture.storage.entryCount == 0 { sched_yield() }
      }
    }
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await gate.pass() }
      return Self.reply(fixture, "\(number)")
    }
    async let first = fixture.client.respond(to: post, over: transport).text()
    await until { transport.count == 1 }
    #expect(try await fixture.client.respond(to: post, over: transport).text() == "2")
    #expect(try await first == "1")
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "1")
  }

  @Test(
    "A change by another method while a POST is in flight prevents storing the POST's response",
    arguments: ["PUT", "DELETE"])
  func otherMethod(method: String) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      guard request.head.method == "POST" else { return fixture.response(204) }
      try await gate.pass()
      return Self.reply(fixture, "posted")
    }
    async let posted = fixture.client.respond(to: post, over: transport).text()
    await until { transport.count == 1 }
    _ = try await fixture.client.respond(to: get(Self.url, method: method), over: transport)
    gate.open()
    #expect(try await posted == "posted")
    #expect(fixture.client.storedResponse(to: get()) == nil)
  }

  @Test(
    "A removal while a POST is in flight prevents storing its response", arguments: ["this client", "another process"])
  func removed(by remover: String) async throws {
    let fixture = Fixture()
    let (gate, other) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      try await (number == 1 ? gate : other).pass()
      return Self.reply(fixture, "\(number)")
    }
    async let first = fixture.client.respond(to: post, over: transport).text()
    await until { transport.count == 1 }
    if remover == "this client" { fixture.client.revokeStorePermits() } else { fixture.storage.removeAll() }
    async let second = fixture.client.respond(to: post, over: transport).text()
    await until { transport.count == 2 }
    // The change that is answered in the meantime does not hide the removal.
    other.open()
    #expect(try await second == "2")
    gate.open()
    #expect(try await first == "1")
    #expect(fixture.client.storedResponse(to: get()) == nil)
  }

  @Test("A change after an error response to a POST prevents storing that response")
  func errorResponse() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      guard request.head.method == "POST" else { return fixture.response(204) }
      return IncomingResponse(
        head: fixture.response(404, "", [fresh, ("Content-Location", Self.url)]).head,
        body: .chunks(["none"], behind: [gate]))
    }
    let response = try await fixture.client.respond(to: post, over: transport)
    _ = try await fixture.client.respond(to: get(Self.url, method: "PUT"), over: transport)
    gate.open()
    #expect(try await response.text() == "none")
    #expect(fixture.client.storedResponse(to: get()) == nil)
  }

  @Test("On a store on disk, each of many concurrent POSTs to different URLs is stored, and one of those to one URL")
  func onDisk() async throws {
    let fixture = Fixture()
    try await withDiskCache(clock: fixture.clock) { cache in
      let client = CachingClient(cache)
      let gate = Gate()
      let transport = ScriptedTransport { request, _ in
        try await gate.pass()
        let url = request.head.url.absoluteString
        return fixture.response(200, url, [fresh, ("Content-Location", url)])
      }
      let urls = (0..<100).map { "http://example.com/\($0)" }
      try await withThrowingTaskGroup(of: Void.self) { group in
        for url in urls + Array(repeating: Self.url, count: 50) {
          group.addTask { _ = try await client.respond(to: get(url, method: "POST"), over: transport).text() }
        }
        await until { transport.count == 150 }
        gate.open()
        try await group.waitForAll()
      }
      for url in urls + [Self.url] { #expect(try await client.storedResponse(to: get(url))?.text() == url) }
    }
  }
}
