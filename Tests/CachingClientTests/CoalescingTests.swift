import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// One fetch for many identical misses, and nobody harmed by it (RFC 9111 section 4).
@Suite("coalescing", .timeLimit(.minutes(1)))
struct CoalescingTests {
  // Row 28 of the checklist. Guarantee: identical misses reach the origin once, and all get its answer.
  //
  //   task 1                      | tasks 2 … 1000
  //   ----------------------------+-----------------------------------
  //   miss, sends                 |
  //                               | miss, wait
  //   gate: the answer comes      |
  //   stores, goes on             | all get the same body
  @Test("coalesce-once: 1,000 concurrent misses reach the transport once")
  func once() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("shared", fresh)
    }
    let sources = try await withThrowingTaskGroup { group in
      for _ in 0..<1_000 {
        group.addTask {
          let response = try await fixture.client.respond(to: get(), over: transport)
          #expect(try await response.text() == "shared")
          return response.source
        }
      }
      await until { fixture.client.statistics.waiting == 999 }
      gate.open()
      return try await group.reduce(into: [ResponseSource: Int]()) { $0[$1, default: 0] += 1 }
    }
    #expect(transport.count == 1)
    #expect(sources == [.network: 1, .coalesced: 999])
    #expect(fixture.client.statistics.coalesced == 999)
    #expect(fixture.client.statistics.stored == 1)
  }

  @Test("coalesce-no-storage: one fetch serves all even if the storage keeps nothing")
  func onceWithoutStorage() async throws {
    let fixture = Fixture(storage: MemoryStorage(keeps: false))
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("shared", fresh)
    }
    try await withThrowingTaskGroup { group in
      for _ in 0..<50 {
        group.addTask { try await fixture.client.respond(to: get(), over: transport).text() }
      }
      await until { fixture.client.statistics.waiting == 49 }
      gate.open()
      for try await text in group { #expect(text == "shared") }
    }
    #expect(transport.count == 1)
  }

  // Guarantee: a fetch that ends between a request's look into the store and its own fetch makes the latter unnecessary.
  //
  //   request                     | other
  //   ----------------------------+-----------------------------------
  //   looks: nothing              |
  //                               | looks, sends, stores, ends
  //   looks again: a hit          |
  @Test("coalesce-just-ended: a result that was filed a moment ago is not fetched again")
  func justEnded() async throws {
    let hook = Mutex<(@Sendable () -> Void)?>(nil)
    let storage = MemoryStorage(
      whenLooked: {
        let once = hook.withLock { hook in
          defer { hook = nil }
          return hook
        }
        once?()
      })
    let fixture = Fixture(storage: storage)
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh) }
    // With everything at hand the other request never suspends, so it is over when the hook returns.
    hook.withLock { $0 = { Task.immediate { try await fixture.client.respond(to: get(), over: transport) } } }
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(response.source == .store)
    #expect(transport.count == 1)
  }

  @Test("coalesce-stream: followers get the whole body of a response that streams to its leader")
  func streaming() async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { _, _ in
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", fresh).head, body: .chunks(["one ", "two"], behind: [head, head, end]))
    }
    async let leader = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    async let follower = fixture.client.respond(to: get(), over: transport)
    await until { fixture.client.statistics.waiting == 1 }
    head.open()
    let response = try await leader
    var iterator = response.body.makeAsyncIterator()
    // The leader reads while the rest is still on its way.
    #expect(try await iterator.next() == Data("one ".utf8))
    #expect(fixture.client.statistics.waiting == 1)
    end.open()
    #expect(try await iterator.next() == Data("two".utf8))
    #expect(try await iterator.next() == nil)
    #expect(try await follower.text() == "one two")
    #expect(transport.count == 1)
  }

  // Guarantee: those who cannot use the result go on alone, all at once.
  //
  //   leader                      | followers 1 … 20
  //   ----------------------------+-----------------------------------
  //   sends                       | wait
  //   gate 1: not storable        | all send; none waits for another:
  //                               | gate 2 opens when all 20 have sent
  @Test(
    "coalesce-unusable: a result that is not for others lets all of them go at once",
    arguments: [
      ("no-store", [("Cache-Control", "no-store")]), ("no-cache", [("Cache-Control", "no-cache")]),
      ("vary-star", [("Cache-Control", "max-age=60"), ("Vary", "*")]),
      ("too-large", [("Cache-Control", "max-age=60"), ("Content-Length", "2000000")]),
    ])
  func unusable(id: String, fields: [(String, String)]) async throws {
    let fixture = Fixture()
    let (first, rest) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      try await (number == 1 ? first : rest).pass()
      let fields = number == 1 ? fields.filter { $0.0 != "Content-Length" || id == "too-large" } : fields
      return IncomingResponse(
        head: fixture.response(200, "", fields).head, body: id == "too-large" ? .chunks(["x"]) : .chunks(["\(number)"]))
    }
    try await withThrowingTaskGroup { group in
      group.addTask { _ = try await fixture.client.respond(to: get(), over: transport) }
      await until { transport.count == 1 }
      for _ in 0..<20 {
        group.addTask { _ = try await fixture.client.respond(to: get(), over: transport) }
      }
      await until { fixture.client.statistics.waiting == 20 }
      first.open()
      await until { transport.count == 21 }
      rest.open()
      try await group.waitForAll()
    }
  }

  @Test("coalesce-vary: whom the head does not suit goes on before the body has come")
  func vary() async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { request, number in
      guard number == 1 else {
        return fixture.ok(request.head.fields["Accept-Language"] ?? "", fresh, ("Vary", "Accept-Language"))
      }
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", fresh, ("Vary", "Accept-Language")).head, body: .chunks(["de"], behind: [end]))
    }
    let german = get("http://example.com/a", ["Accept-Language": "de"])
    let french = get("http://example.com/a", ["Accept-Language": "fr"])
    async let leader = fixture.client.respond(to: german, over: transport)
    await until { transport.count == 1 }
    async let same = fixture.client.respond(to: german, over: transport)
    async let other = fixture.client.respond(to: french, over: transport)
    await until { fixture.client.statistics.waiting == 2 }
    head.open()
    // The leader's body is still held back.
    #expect(try await other.text() == "fr")
    end.open()
    #expect(try await same.text() == "de")
    #expect(try await leader.text() == "de")
    #expect(transport.count == 2)
  }

  @Test(
    "coalesce-own-way: a request with conditions, a range or no-store of its own does not wait",
    arguments: [
      "Range: bytes=0-1", "If-None-Match: \"x\"", "Cache-Control: no-store", "Cache-Control: no-cache",
      "Pragma: no-cache",
    ])
  func ownWay(field: String) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await gate.pass() }
      return fixture.ok("answer", fresh)
    }
    async let leader = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    let parts = field.split(separator: ": ")
    let alone = get("http://example.com/a", HTTPFields([(String(parts[0]), String(parts[1]))]))
    #expect(try await fixture.client.respond(to: alone, over: transport).source == .network)
    gate.open()
    _ = try await leader
    #expect(transport.count == 2)
  }

  // Guarantee: a failing leader fails nobody else.
  //
  //   leader                      | followers 1 … 20
  //   ----------------------------+-----------------------------------
  //   sends                       | wait
  //   gate: fails, throws         |
  //                               | one sends, 19 wait for it; all succeed
  @Test("coalesce-leader-fails: one of the others takes over")
  func leaderFails() async throws {
    let fixture = Fixture()
    let (first, second) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      try await (number == 1 ? first : second).pass()
      if number == 1 { throw Unreachable() }
      return fixture.ok("second", fresh)
    }
    let leader = Task { try await fixture.client.respond(to: get(), over: transport) }
    await until { transport.count == 1 }
    try await withThrowingTaskGroup { group in
      for _ in 0..<20 {
        group.addTask { try await fixture.client.respond(to: get(), over: transport).text() }
      }
      await until { fixture.client.statistics.waiting == 20 }
      first.open()
      await #expect(throws: Unreachable.self) { try await leader.value }
      await until { transport.count == 2 && fixture.client.statistics.waiting == 19 }
      second.open()
      for try await text in group { #expect(text == "second") }
    }
    #expect(transport.count == 2)
  }

  @Test("coalesce-all-fail: with the origin gone everybody gets the error after at most three attempts' time")
  func allFail() async throws {
    let fixture = Fixture()
    let first = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await first.pass() }
      throw Unreachable()
    }
    await withTaskGroup { group in
      for _ in 0..<20 {
        group.addTask {
          await #expect(throws: Unreachable.self) { try await fixture.client.respond(to: get(), over: transport) }
        }
      }
      await until { fixture.client.statistics.waiting == 19 }
      first.open()
    }
    #expect(transport.count <= 20)
  }

  // Guarantee: a cancelled leader returns at once, and the fetch goes on for the others.
  //
  //   leader                      | follower
  //   ----------------------------+-----------------------------------
  //   sends                       | waits
  //   cancelled: throws           |
  //                               | gate: gets the answer of that fetch
  @Test("coalesce-leader-cancelled: the fetch outlives its leader")
  func leaderCancelled() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["kept ", "going"]))
    }
    let leader = Task { try await fixture.client.respond(to: get(), over: transport) }
    await until { transport.count == 1 }
    let follower = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { fixture.client.statistics.waiting == 1 }
    leader.cancel()
    await #expect(throws: CancellationError.self) { try await leader.value }
    gate.open()
    #expect(try await follower.value == "kept going")
    #expect(transport.count == 1)
  }

  @Test("coalesce-leader-stops-reading: followers get the body all the same")
  func leaderStopsReading() async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { _, _ in
      try await head.pass()
      return IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["one ", "two"], behind: [head, end]))
    }
    var leader: Task<ClientResponse<MemoryStorage.Entry>, any Error>? = Task {
      try await fixture.client.respond(to: get(), over: transport)
    }
    await until { transport.count == 1 }
    let follower = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { fixture.client.statistics.waiting == 1 }
    head.open()
    #expect(try await leader?.value.status == 200)
    leader = nil
    end.open()
    #expect(try await follower.value == "one two")
    #expect(transport.count == 1)
  }

  @Test("coalesce-all-cancelled: a fetch nobody waits for is called off and stores nothing")
  func allCancelled() async throws {
    let fixture = Fixture()
    let (never, calledOff) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      if number > 1 { return fixture.ok("next", fresh) }
      do { try await never.pass() } catch {
        calledOff.open()
        throw error
      }
      return fixture.ok("never", fresh)
    }
    let leader = Task { try await fixture.client.respond(to: get(), over: transport) }
    await until { transport.count == 1 }
    let follower = Task { try await fixture.client.respond(to: get(), over: transport) }
    await until { fixture.client.statistics.waiting == 1 }
    follower.cancel()
    await #expect(throws: CancellationError.self) { try await follower.value }
    leader.cancel()
    await #expect(throws: CancellationError.self) { try await leader.value }
    try await calledOff.pass()
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "next")
  }

  @Test("coalesce-follower-cancelled: a cancelled follower returns at once, the others wait on")
  func followerCancelled() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("body", fresh)
    }
    let tasks = (0..<3).map { _ in Task { try await fixture.client.respond(to: get(), over: transport).text() } }
    await until { fixture.client.statistics.waiting == 2 }
    // Whichever leads: the one that is cancelled returns while the gate is shut.
    tasks[1].cancel()
    await #expect(throws: CancellationError.self) { try await tasks[1].value }
    gate.open()
    #expect(try await tasks[0].value == "body")
    #expect(try await tasks[2].value == "body")
    #expect(transport.count == 1)
  }

  @Test("coalesce-authorization: requests with different credentials never share a fetch")
  func authorization() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      try await gate.pass()
      return fixture.ok(request.head.fields["Authorization"] ?? "nobody", fresh)
    }
    try await withThrowingTaskGroup { group in
      for user in ["ann", "bob", "nobody"] {
        for _ in 0..<5 {
          group.addTask {
            let fields: HTTPFields = user == "nobody" ? [:] : ["Authorization": user]
            let response = try await fixture.client.respond(to: get("http://example.com/a", fields), over: transport)
            #expect(try await response.text() == user)
          }
        }
      }
      await until { transport.count == 3 && fixture.client.statistics.waiting == 12 }
      gate.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 3)
  }
}
