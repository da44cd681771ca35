import CacheModel
import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Origins that do not respond, or fail again and again (RFC 5861, 4).
@Suite("Origins that hang or fail", .timeLimit(.minutes(1)))
struct SlowOriginTests {
  /// A stored response that is stale, and can be served for a day if the origin fails.
  private func staleFixture(
    _ fields: String = "max-age=60, stale-if-error=86400", _ change: (inout CachingOptions) -> Void = { _ in }
  ) async throws -> Fixture {
    var options = CachingOptions()
    options.staleAfter = .milliseconds(20)
    // No test takes so long that the origin is asked again, unless it changes this.
    options.holdOff = .seconds(600)...(.seconds(600))
    change(&options)
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { _, _ in fixture.ok("stored", ("Cache-Control", fields)) }
    _ = try await fixture.client.respond(to: get(), over: transport).text()
    fixture.clock.advance(by: 70)
    return fixture
  }

  @Test("While the origin hangs, all get the stale response, and its late response is stored")
  func hang() async throws {
    let fixture = try await staleFixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("new", fresh)
    }
    try await withThrowingTaskGroup { group in
      for _ in 0..<20 {
        group.addTask {
          let response = try await fixture.client.respond(to: get(), over: transport)
          // A request that comes later is held off.
          #expect(response.reason == .staleAfter || response.reason == .heldOff)
          #expect(response.source == .staleOnError)
          #expect(response.head.fields["Age"] == "70")
          return try await response.text()
        }
      }
      for try await text in group { #expect(text == "stored") }
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).reason == .heldOff)
    #expect(transport.count == 1)
    #expect(fixture.client.statistics.staleServed == 21)
    gate.open()
    await fixture.client.finishBackgroundWork()
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
    #expect(transport.count == 1)
  }

  @Test(
    "A hanging origin is waited for if nothing permits the stale response",
    arguments: [
      ("max-age=60", HeaderFields(), Duration?.some(.zero), Double?.none),
      ("max-age=60, stale-if-error=5", HeaderFields(), .zero, nil),
      ("max-age=60, stale-if-error=86400, must-revalidate", HeaderFields(), .zero, nil),
      ("max-age=60, stale-if-error=86400", HeaderFields([("Cache-Control", "no-cache")]), .zero, nil),
      ("max-age=60, stale-if-error=86400", HeaderFields(), nil, nil),
      ("max-age=60, stale-if-error=86400", HeaderFields(), .zero, .infinity),
    ])
  func wait(stored: String, request: HeaderFields, limit: Duration?, override: Double?) async throws {
    let fixture = try await staleFixture(stored) { $0.staleAfter = limit }
    let transport = ScriptedTransport { _, _ in
      try await Task.sleep(for: .milliseconds(30))
      return fixture.ok("new", fresh)
    }
    let overrides = RequestOverrides(staleAfter: override)
    let response = try await fixture.client.respond(
      to: get("http://example.com/a", request, overrides: overrides), over: transport)
    #expect(try await response.text() == "new")
  }

  @Test("An override sets the time for a request", arguments: [0, 0.01])
  func override(staleAfter: Double) async throws {
    let fixture = try await staleFixture { $0.staleAfter = nil }
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("new", fresh)
    }
    let overrides = RequestOverrides(staleAfter: staleAfter)
    #expect(try await fixture.client.respond(to: get(overrides: overrides), over: transport).reason == .staleAfter)
    gate.open()
    await fixture.client.finishBackgroundWork()
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
  }

  @Test("After a request that is never answered, the next one after the hold-off asks the origin")
  func oneHang() async throws {
    let fixture = try await staleFixture { $0.holdOff = .milliseconds(1)...(.seconds(600)) }
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 {
        try await gate.pass()
        throw Unreachable()
      }
      return fixture.ok("new", fresh)
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).reason == .staleAfter)
    try await Task.sleep(for: .milliseconds(2))
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
    // The end of the first request is no further failure.
    gate.open()
    await fixture.client.finishBackgroundWork()
    fixture.clock.advance(by: 70)
    #expect(try await fixture.client.respond(to: get(), over: transport).source == .miss)
    #expect(transport.count == 3)
  }

  @Test("A request that joins a fetch which has not been answered for too long gets the stale response at once")
  func lateFollower() async throws {
    let fixture = try await staleFixture {
      $0.staleAfter = .zero
      $0.holdOff = nil
      // A request whose time were not noticed would wait forever.
      $0.coalescingTimeout = nil
    }
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("new", fresh)
    }
    for _ in 0..<300 {
      #expect(try await fixture.client.respond(to: get(), over: transport).reason == .staleAfter)
    }
    #expect(transport.count == 1)
    gate.open()
    await fixture.client.finishBackgroundWork()
  }

  @Test("A purge while the origin hangs: no stale response afterwards, and the late one is not stored")
  func purgeDuringHang() async throws {
    let fixture = try await staleFixture { $0.staleAfter = .seconds(3600) }
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await gate.pass() }
      return fixture.ok("new \(number)", fresh)
    }
    async let first = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    fixture.client.revokeStorePermits { _ in true }
    #expect(
      try await fixture.client.respond(to: get(overrides: RequestOverrides(staleAfter: 0)), over: transport)
        .text() == "new 2")
    gate.open()
    #expect(try await first.text() == "new 1")
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new 2")
  }

  @Test("After a failure the origin is asked once, until it has responded", arguments: [0, 503])
  func holdOff(status: Int) async throws {
    let fixture = try await staleFixture { $0.holdOff = .milliseconds(50)...(.milliseconds(50)) }
    let isDown = Atomic(true)
    let transport = ScriptedTransport { _, _ in
      guard isDown.load(ordering: .relaxed) else { return fixture.ok("new", fresh) }
      guard status > 0 else { throw Unreachable() }
      return fixture.response(status, "broken")
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).reason == .staleIfError)
    // The time may end in between, but not for each request.
    let start = ContinuousClock.now
    for _ in 0..<1000 {
      let response = try await fixture.client.respond(to: get(), over: transport)
      #expect(response.reason == .heldOff || response.reason == .staleIfError)
      #expect(try await response.text() == "stored")
    }
    let elapsed = ContinuousClock.now - start
    #expect(transport.count <= 2 + Int(elapsed / .milliseconds(50)))
    isDown.store(false, ordering: .relaxed)
    while try await fixture.client.respond(to: get(), over: transport).text() == "stored" { await Task.yield() }
    // It is no longer held off.
    fixture.clock.advance(by: 100_000)
    let before = transport.count
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new")
    #expect(transport.count == before + 1)
  }

  @Test("Requests that need the origin go past the hold-off, as do those after a removal, and those for another URL")
  func pastHoldOff() async throws {
    let fixture = try await staleFixture { $0.holdOff = .seconds(3600)...(.seconds(3600)) }
    let transport = ScriptedTransport { _, number in
      guard number > 1 else { throw Unreachable() }
      return fixture.response(200, "new \(number)", [("Cache-Control", "no-store")])
    }
    func text(_ request: CachingClientRequest) async throws -> String {
      try await fixture.client.respond(to: request, over: transport).text()
    }
    #expect(try await text(get()) == "stored")
    #expect(try await text(get()) == "stored")
    #expect(try await text(get("http://example.com/b")) == "new 2")
    #expect(transport.count == 2)
    #expect(try await text(get(policy: .reloadIgnoringLocalCacheData)) == "new 3")
  }

  @Test("With no-cache a request asks an origin that has failed")
  func noCache() async throws {
    let fixture = try await staleFixture { $0.holdOff = .seconds(3600)...(.seconds(3600)) }
    let transport = ScriptedTransport { _, number in
      guard number > 1 else { throw Unreachable() }
      return fixture.ok("new", fresh)
    }
    _ = try await fixture.client.respond(to: get(), over: transport)
    #expect(try await fixture.client.respond(to: get(), over: transport).reason == .heldOff)
    let response = try await fixture.client.respond(
      to: get("http://example.com/a", ["Cache-Control": "no-cache"]), over: transport)
    #expect(try await response.text() == "new")
  }

  @Test("Validations in the background are held off, too")
  func background() async throws {
    let fixture = try await staleFixture("max-age=60, stale-while-revalidate=600") {
      $0.holdOff = .seconds(3600)...(.seconds(3600))
    }
    let transport = ScriptedTransport { _, _ in throw Unreachable() }
    for _ in 0..<20 {
      #expect(try await fixture.client.respond(to: get(), over: transport).source == .stale)
      await fixture.client.finishBackgroundWork()
    }
    #expect(transport.count == 1)
  }

  @Test("After a soft purge a validation in the background goes past the hold-off, but not after one of another URL")
  func softPurge() async throws {
    var options = CachingOptions()
    options.holdOff = .seconds(3600)...(.seconds(3600))
    let clock = ManualClock()
    try await withDiskCache(clock: clock, caching: options) { cache in
      let client = CachingClient(cache)
      let transport = ScriptedTransport { _, number in
        guard number == 1 else { throw Unreachable() }
        let fields: HeaderFields = ["Cache-Control": "max-age=60, stale-while-revalidate=600", "Date": clock.field]
        return IncomingResponse(
          head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data("a".utf8)))
      }
      func expectStale(afterRequests count: Int, _ location: SourceLocation = #_sourceLocation) async throws {
        let source = try await client.respond(to: get(), over: transport).source
        #expect(source == .stale, sourceLocation: location)
        await client.finishBackgroundWork()
        #expect(transport.count == count, sourceLocation: location)
      }
      let other = URL(string: "http://example.com/other")!
      _ = try await client.respond(to: get(), over: transport).text()
      clock.advance(by: 70)
      for _ in 0..<2 { try await expectStale(afterRequests: 2) }
      for count in 3...4 {
        _ = try await cache.purge(.url(get().head.url), mode: .soft)
        for _ in 0..<2 { try await expectStale(afterRequests: count) }
        _ = try await cache.purge(.url(other), mode: .soft)
        try await expectStale(afterRequests: count)
      }
    }
  }

  @Test("A change of the system clock neither lengthens nor ends a hold-off", arguments: [-1_000_000.0, 60])
  func clock(step: Double) async throws {
    let fixture = try await staleFixture { $0.holdOff = .seconds(3600)...(.seconds(3600)) }
    let transport = ScriptedTransport { _, _ in throw Unreachable() }
    _ = try await fixture.client.respond(to: get(), over: transport)
    fixture.clock.advance(by: step)
    for _ in 0..<3 { _ = try? await fixture.client.respond(to: get(), over: transport) }
    #expect(transport.count == 1 || step < 0)
  }

  @Test("A 500 for one user holds off that user's requests alone, a 503 those of all users", arguments: [500, 503])
  func users(status: Int) async throws {
    var options = CachingOptions()
    options.holdOff = .seconds(3600)...(.seconds(3600))
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { request, number in
      let user = request.head.fields["Authorization"] ?? ""
      guard number > 2, user == "ann" else {
        return fixture.ok("\(user) \(number)", ("Cache-Control", "max-age=60, stale-if-error=86400"))
      }
      return fixture.response(status, "broken")
    }
    func text(_ user: String) async throws -> String {
      try await fixture.client.respond(
        to: get("http://example.com/me", ["Authorization": user]), over: transport
      ).text()
    }
    #expect(try await text("ann") == "ann 1")
    #expect(try await text("bob") == "bob 2")
    fixture.clock.advance(by: 70)
    for _ in 0..<3 { #expect(try await text("ann") == "ann 1") }
    #expect(transport.count == 3)
    #expect(try await text("bob") == (status == 500 ? "bob 4" : "bob 2"))
  }

  // A purge by another machine returns when the lease has ended, and this machine does not know of it.
  @Test("A machine whose lease has ended serves nothing stale that it found before", arguments: [true, false])
  func leaseEnds(hangs: Bool) async throws {
    var options = CachingOptions()
    options.staleAfter = .milliseconds(20)
    let (clock, deadline, storage) = (ManualClock(), LeaseDeadline(), MemoryStorage())
    let client = CachingClient(
      storage: storage, options: options, lease: deadline.lease, layer: nil, bodyLimit: { 1 << 20 },
      clock: { clock.now })
    let stored = HeaderFields([("Date", clock.field), ("Cache-Control", "max-age=60, stale-if-error=86400")])
    let transport = ScriptedTransport { _, number in
      if number == 2 {
        deadline.end()
        if !hangs { throw Unreachable() }
        try await Task.sleep(for: .milliseconds(60))
      }
      return IncomingResponse(
        head: ResponseHead(status: 200, fields: stored), body: ResponseBodyStream(Data("\(number)".utf8)))
    }
    _ = try await client.respond(to: get(), over: transport).text()
    clock.advance(by: 70)
    if hangs {
      #expect(try await client.respond(to: get(), over: transport).text() == "2")
    } else {
      await #expect(throws: Unreachable.self) { try await client.respond(to: get(), over: transport) }
    }
  }

  @Test("Without staleAfter, a follower of a hanging fetch asks itself before it is served stale")
  func followerWithoutStaleAfter() async throws {
    let fixture = try await staleFixture {
      $0.staleAfter = nil
      $0.coalescingTimeout = .milliseconds(50)
    }
    let hanging = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await hanging.pass() }
      return fixture.ok("\(number)", fresh)
    }
    async let first = fixture.client.respond(to: get(), over: transport).text()
    await until { transport.count == 1 }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "2")
    hanging.open()
    #expect(try await first == "1")
  }

  // Guarantee: no request waits for longer than the limit for a fetch that makes no progress. One of those that waited
  // takes over, and those that come later join it.
  //
  //   request 1     | requests 2 … 10            | request 11
  //   --------------+----------------------------+-----------------
  //   sends, hangs  | wait, leave                |
  //                 | one sends, the others join | joins
  @Test("Followers of a fetch without progress ask themselves, with one request", arguments: [nil, 1.6])
  func coalescingTimeout(timeLimit: Double?) async throws {
    var options = CachingOptions()
    // On a busy machine, too, all have joined the second fetch before this time has passed again.
    options.coalescingTimeout = .milliseconds(800)
    let fixture = Fixture(options: options)
    let (hanging, answering) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      try await (number == 1 ? hanging : answering).pass()
      return fixture.ok("\(number)", fresh)
    }
    var request = get()
    request.timeLimit = timeLimit.map { .seconds($0 * 10) }
    let follower = request
    async let first = fixture.client.respond(to: get(), over: transport).text()
    await until { transport.count == 1 }
    try await withThrowingTaskGroup { group in
      for _ in 0..<9 {
        group.addTask { try await fixture.client.respond(to: follower, over: transport).text() }
      }
      await until { transport.count == 2 }
      group.addTask { try await fixture.client.respond(to: get(), over: transport).text() }
      await until { fixture.client.statistics.waiting == 9 }
      answering.open()
      for try await text in group { #expect(text == "2") }
    }
    #expect(transport.count == 2)
    hanging.open()
    #expect(try await first == "1")
  }

  @Test("A caller with a shorter time limit than the leader's asks itself before its time is over")
  func shortLimit() async throws {
    let fixture = Fixture()
    let hanging = Gate()
    let transport = ScriptedTransport { _, number in
      if number == 1 { try await hanging.pass() }
      return fixture.ok("\(number)", fresh)
    }
    async let first = fixture.client.respond(to: get(), over: transport).text()
    await until { transport.count == 1 }
    var request = get()
    // On a busy machine, too, half of this time is enough for its own fetch.
    request.timeLimit = .seconds(4)
    #expect(try await fixture.client.respond(to: request, over: transport).text() == "2")
    hanging.open()
    #expect(try await first == "1")
  }
}
