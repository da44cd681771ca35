import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Concurrent identical misses share one fetch, and no failure spreads to another request (RFC 9111, 4).
@Suite("Request coalescing", .timeLimit(.minutes(1)))
struct CoalescingTests {
  // Row 28 of the checklist. Guarantee: identical misses reach the origin once, and all get its response.
  //
  //   task 1                      | tasks 2 … 1000
  //   ----------------------------+-----------------------------------
  //   miss, sends                 |
  //                               | miss, wait
  //   gate: response arrives      |
  //   stores, continues           | all get the same body
  @Test("1,000 concurrent misses reach the transport once")
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
    #expect(sources == [.miss: 1, .coalesced: 999])
    #expect(fixture.client.statistics.coalesced == 999)
    #expect(fixture.client.statistics.stored == 1)
  }

  @Test("One fetch serves all requests even if the storage keeps nothing")
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

  // Guarantee: on a machine whose lease has ended, a request gets no response that was fetched before it began.
  // A purge elsewhere may have returned since then, because it waits no longer than the lease.
  //
  //   task 1                      | task 2
  //   ----------------------------+-----------------------------------
  //   misses, sends               |
  //   the lease ends              |
  //                               | misses, waits for task 1
  //   response arrives            |
  //                               | sends
  @Test("Without a lease, a request waits for an earlier fetch but does not use its response")
  func withoutLease() async throws {
    let deadline = LeaseDeadline()
    let storage = MemoryStorage(keeps: false)
    let client = CachingClient(
      storage: storage, options: CachingOptions(), lease: deadline.lease, layer: nil, bodyLimit: { 1 << 20 },
      clock: { Date() })
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await gate.pass() }
      return IncomingResponse(
        head: ResponseHead(status: 200, fields: HeaderFields([fresh])), body: ResponseBodyStream(Data("\(number)".utf8))
      )
    }
    @Sendable func load() async throws -> String { try await client.respond(to: get(), over: transport).text() }
    async let first = load()
    await until { transport.count == 1 }
    async let sameLease = load()
    await until { client.statistics.waiting == 1 }
    deadline.end()
    async let later = load()
    await until { client.statistics.waiting == 2 }
    gate.open()
    let texts = try await (first, sameLease, later)
    #expect(texts == ("1", "1", "2"))
  }

  @Test("Without a lease, a request waits for the end of a large body without looking up again and again")
  func largeBodyWithoutLease() async throws {
    let deadline = LeaseDeadline()
    let lookupCount = Atomic(0)
    let storage = MemoryStorage(keeps: false, whenLooked: { lookupCount.add(1, ordering: .relaxed) })
    let client = CachingClient(
      storage: storage, options: CachingOptions(), lease: deadline.lease, layer: nil, bodyLimit: { .max },
      clock: { Date() })
    let gate = Gate(), open = Gate()
    open.open()
    let transport = ScriptedTransport { _, number in
      let chunks = number == 1 ? ["first", " and last"] : ["\(number)"]
      return IncomingResponse(
        head: ResponseHead(status: 200, fields: HeaderFields([fresh])), body: .chunks(chunks, behind: [open, gate]))
    }
    var request = get()
    request.readsBodyInPieces = true
    let first = try await client.respond(to: request, over: transport)
    deadline.end()
    async let later = client.respond(to: request, over: transport).text()
    await until { client.statistics.waiting == 1 }
    let before = lookupCount.load(ordering: .relaxed)
    for _ in 0..<1000 { await Task.yield() }
    #expect(lookupCount.load(ordering: .relaxed) == before)
    gate.open()
    #expect(try await first.text() == "first and last")
    #expect(try await later == "2")
    #expect(transport.count == 2)
  }

  // Guarantee: a request does not fetch if another fetch has stored the response since its lookup.
  //
  //   request                     | other
  //   ----------------------------+-----------------------------------
  //   looks up: nothing           |
  //                               | looks up, sends, stores, ends
  //   looks up again: a hit       |
  @Test("A response that was stored after the lookup is not fetched again")
  func justEnded() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh) }
    // The other request never suspends, so that it is complete when the hook returns.
    fixture.storage.afterNextLookup { Task.immediate { try await fixture.client.respond(to: get(), over: transport) } }
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(response.source == .hit)
    #expect(transport.count == 1)
  }

  @Test("Followers get the complete body of a response that streams to its leader")
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
    // The leader reads the first chunk before the last one arrives.
    #expect(try await iterator.next() == Data("one ".utf8))
    #expect(fixture.client.statistics.waiting == 1)
    end.open()
    #expect(try await iterator.next() == Data("two".utf8))
    #expect(try await iterator.next() == nil)
    #expect(try await follower.text() == "one two")
    #expect(transport.count == 1)
  }

  // Guarantee: requests that cannot use the shared response fetch on their own, concurrently.
  //
  //   leader                      | followers 1 … 20
  //   ----------------------------+-----------------------------------
  //   sends                       | wait
  //   gate 1: not storable        | all send; none waits for another:
  //                               | gate 2 opens when all 20 have sent
  @Test(
    "Followers that cannot reuse the response fetch concurrently",
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

  @Test("A follower with another Vary key fetches before the leader's body is complete")
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
    // The leader's body is still blocked.
    #expect(try await other.text() == "fr")
    end.open()
    #expect(try await same.text() == "de")
    #expect(try await leader.text() == "de")
    #expect(transport.count == 2)
  }

  @Test(
    "A request with a precondition, a range, no-store or no-cache does not wait",
    arguments: [
      "Range: bytes=0-1", "If-None-Match: \"x\"", "Cache-Control: no-store", "Cache-Control: no-cache",
      "Pragma: no-cache",
    ])
  func requestsThatAreNotShared(field: String) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await gate.pass() }
      return fixture.ok("body", fresh)
    }
    async let leader = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    let parts = field.split(separator: ": ")
    let unshared = get("http://example.com/a", HeaderFields([(String(parts[0]), String(parts[1]))]))
    #expect(try await fixture.client.respond(to: unshared, over: transport).source == .miss)
    gate.open()
    _ = try await leader
    #expect(transport.count == 2)
  }

  // Guarantee: a leader that fails does not fail its followers.
  //
  //   leader                      | followers 1 … 20
  //   ----------------------------+-----------------------------------
  //   sends                       | wait
  //   gate: fails, throws         |
  //                               | one sends, 19 wait for it; all succeed
  @Test("After the leader fails, one follower repeats the fetch")
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

  @Test("If the origin is unreachable, every request gets the error")
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

  // Guarantee: a cancelled leader returns at once, and the fetch continues for the followers.
  //
  //   leader                      | follower
  //   ----------------------------+-----------------------------------
  //   sends                       | waits
  //   cancelled: throws           |
  //                               | gate: gets the response of that fetch
  @Test("A fetch continues for its followers after its leader is cancelled")
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

  @Test("Followers get the body even if the leader stops reading")
  func leaderStopsReading() async throws {
    let fixture = Fixture()
    let (head, end) = (Gate(), Gate())
    let transport = ScriptedTransport { _, _ in
      try await head.pass()
      return IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["one ", "two"], behind: [head, end]))
    }
    var leader: Task<CachingClientResponse<MemoryStorage.Entry>, any Error>? = Task {
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

  @Test("A fetch without observers is cancelled and stores nothing")
  func allCancelled() async throws {
    let fixture = Fixture()
    let (never, cancelled) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      if number > 1 { return fixture.ok("next", fresh) }
      do { try await never.pass() } catch {
        cancelled.open()
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
    try await cancelled.pass()
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "next")
  }

  @Test("A cancelled follower returns at once, and the others keep waiting")
  func followerCancelled() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("body", fresh)
    }
    let tasks = (0..<3).map { _ in Task { try await fixture.client.respond(to: get(), over: transport).text() } }
    await until { fixture.client.statistics.waiting == 2 }
    // Regardless of which request leads, the cancelled one returns while the gate is closed.
    tasks[1].cancel()
    await #expect(throws: CancellationError.self) { try await tasks[1].value }
    gate.open()
    #expect(try await tasks[0].value == "body")
    #expect(try await tasks[2].value == "body")
    #expect(transport.count == 1)
  }

  @Test("Requests with different credentials never share a fetch")
  func authorization() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      try await gate.pass()
      return fixture.ok(request.head.fields["Authorization"] ?? "none", fresh)
    }
    try await withThrowingTaskGroup { group in
      for user in ["ann", "bob", "none"] {
        for _ in 0..<5 {
          group.addTask {
            let fields: HeaderFields = user == "none" ? [:] : ["Authorization": user]
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
