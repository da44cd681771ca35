import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Transfers that stop after the head of the response, and the requests that read them along.
@Suite("Transfers that stop in the middle", .timeLimit(.minutes(1)))
struct StalledTransferTests {
  private let content = LargeBodyTests.Content(byteCount: 3_000_003)

  private func request(timeLimit: Duration? = nil) -> CachingClientRequest {
    var request = get("http://example.com/large")
    request.readsBodyInPieces = true
    request.timeLimit = timeLimit
    return request
  }

  private func response(_ body: ResponseBodyStream, tag: String) -> IncomingResponse {
    let fields: HeaderFields = ["Cache-Control": "max-age=600", "ETag": tag, "Content-Length": "\(content.byteCount)"]
    return IncomingResponse(head: ResponseHead(status: 200, fields: fields), body: body)
  }

  /// Returns a transport whose first body stops at a gate after some bytes.
  private func transport(
    stoppingAt gate: Gate, after byteCount: Int = 100_000, tag: String = "\"1\"",
    then second: (@Sendable () async throws -> IncomingResponse)? = nil
  ) -> ScriptedTransport {
    ScriptedTransport { _, number in
      if number == 1 {
        return response(content.stream { if $0 >= byteCount { try await gate.pass() } }, tag: tag)
      }
      return try await second?() ?? response(content.stream(), tag: tag)
    }
  }

  // Guarantee: a transfer without progress holds no later request.
  //
  //   request 1                     | request 2
  //   ------------------------------+------------------
  //   receives the head; gate       |
  //                                 | sends, gets all
  //   gets all                      |
  @Test("A request does not join a transfer that makes no progress")
  func later() async throws {
    var options = CachingOptions()
    options.coalescingTimeout = .zero
    let fixture = Fixture(options: options, maximumBodyByteCount: 16 << 20)
    let gate = Gate()
    let transport = transport(stoppingAt: gate)
    let first = try await fixture.client.respond(to: request(), over: transport)
    let second = try await fixture.client.respond(to: request(), over: transport)
    #expect(second.source == .miss)
    #expect(transport.count == 2)
    gate.open()
    for body in [second.body, first.body] { #expect(try await content.check(body) == content.byteCount) }
    #expect(transport.count == 2)
  }

  @Test("Each request joins a transfer that makes progress all the time")
  func progress() async throws {
    let fixture = Fixture(maximumBodyByteCount: 16 << 20)
    let isOver = Atomic(false)
    let transport = ScriptedTransport { _, _ in
      let body = ResponseBodyStream(next: {
        await Task.yield()
        return isOver.load(ordering: .relaxed) ? nil : Data(count: 1)
      })
      return response(body, tag: "\"1\"")
    }
    let body = try await fixture.client.respond(to: request(), over: transport).body
    for _ in 0..<3000 { _ = try await fixture.client.respond(to: request(), over: transport) }
    #expect(transport.count == 1)
    isOver.store(true, ordering: .relaxed)
    // It is shorter than declared.
    await #expect(throws: CachingClientError.self) { for try await _ in body {} }
  }

  struct Stall {
    let byteCount: Int
    var tag = "\"1\""
    var timeout: Duration?
    var timeLimit: Duration?
  }

  // The time begins when the reader waits, so the follower joins before.
  @Test(
    "A reader that gets no bytes asks for the rest itself, and the transfer goes on",
    arguments: [
      Stall(byteCount: 0, tag: "W/\"1\"", timeout: .milliseconds(500)),
      Stall(byteCount: 100_000, timeout: .milliseconds(500)),
      Stall(byteCount: 100_000, timeLimit: .seconds(1)),
      Stall(byteCount: 2_000_000, timeLimit: .seconds(1)),
    ])
  func rest(stall: Stall) async throws {
    var options = CachingOptions()
    options.coalescingTimeout = stall.timeout
    try await withDiskCache(diskCapacity: 64 << 20, caching: options) { cache in
      let client = CachingClient(cache)
      let gate = Gate()
      let transport = transport(stoppingAt: gate, after: stall.byteCount, tag: stall.tag)
      let leader = try await client.respond(to: request(), over: transport)
      let follower = try await client.respond(to: request(timeLimit: stall.timeLimit), over: transport)
      #expect(follower.source == .coalesced)
      #expect(try await content.check(follower.body) == content.byteCount)
      #expect(transport.count == 2)
      gate.open()
      #expect(try await content.check(leader.body) == content.byteCount)
      // The follower's request is later.
      #expect(leader.storageRefusal == .overtaken)
    }
  }

  @Test("The readers of a transfer that makes no progress share one request for the rest", arguments: [0, 100_000])
  func shared(byteCount: Int) async throws {
    var options = CachingOptions()
    options.coalescingTimeout = .seconds(1)
    let fixture = Fixture(options: options, maximumBodyByteCount: 16 << 20)
    let gate = Gate()
    let transport = transport(stoppingAt: gate, after: byteCount)
    let leader = try await fixture.client.respond(to: request(), over: transport)
    var followers: [ResponseBodyStream] = []
    for _ in 0..<8 { followers.append(try await fixture.client.respond(to: request(), over: transport).body) }
    try await withThrowingTaskGroup { group in
      for body in followers { group.addTask { try await content.check(body) } }
      for try await byteCount in group { #expect(byteCount == content.byteCount) }
    }
    #expect(transport.count == 2)
    gate.open()
    #expect(try await content.check(leader.body) == content.byteCount)
    #expect(transport.count == 2)
  }

  @Test("The readers of a transfer that is cut share one request for the rest", arguments: [false, true])
  func cut(isAlwaysCut: Bool) async throws {
    let fixture = Fixture(maximumBodyByteCount: 16 << 20)
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      let isCut = number == 1 || isAlwaysCut
      let body = content.stream { position in
        guard isCut, position >= 100_000 else { return }
        if number == 1 { try await gate.pass() }
        throw Unreachable()
      }
      return response(body, tag: "\"1\"")
    }
    let leader = try await fixture.client.respond(to: request(), over: transport)
    var followers: [ResponseBodyStream] = []
    for _ in 0..<8 { followers.append(try await fixture.client.respond(to: request(), over: transport).body) }
    gate.open()
    await #expect(throws: Unreachable.self) { _ = try await content.check(leader.body) }
    let results = await withTaskGroup { group in
      for body in followers { group.addTask { try? await content.check(body) } }
      return await group.reduce(into: []) { $0.append($1) }
    }
    #expect(results == Array(repeating: isAlwaysCut ? nil : content.byteCount, count: 8))
    // If the others join late, the stored response serves them, or they ask for themselves.
    #expect(transport.count == 2 || isAlwaysCut)
    #expect(transport.count <= 9)
  }

  @Test("A reader that cannot get the rest itself goes on reading the transfer", arguments: [true, false])
  func waitsOn(originFails: Bool) async throws {
    // Without a time limit, so that a busy machine does not end the wait for the transfer.
    var options = CachingOptions()
    options.coalescingTimeout = .milliseconds(500)
    let fixture = Fixture(options: options, maximumBodyByteCount: 16 << 20)
    let gate = Gate()
    let transport = transport(stoppingAt: gate) {
      if originFails { throw Unreachable() }
      return response(content.stream(), tag: "\"2\"")
    }
    let leader = try await fixture.client.respond(to: request(), over: transport)
    let follower = try await fixture.client.respond(to: request(), over: transport)
    #expect(follower.source == .coalesced)
    async let byteCount = content.check(follower.body)
    await until { transport.count == 2 }
    gate.open()
    #expect(try await byteCount == content.byteCount)
    #expect(try await content.check(leader.body) == content.byteCount)
    #expect(transport.count == 2)
  }

  @Test(
    "A reader's own time limit ends its wait, also while it asks for the rest",
    arguments: [("W/\"1\"", 1), ("\"1\"", 2)])
  func timeLimit(tag: String, requestCount: Int) async throws {
    let fixture = Fixture(maximumBodyByteCount: 16 << 20)
    let (gate, hanging) = (Gate(), Gate())
    let transport = transport(stoppingAt: gate, tag: tag) {
      try await hanging.pass()
      throw Unreachable()
    }
    let leader = try await fixture.client.respond(to: request(), over: transport)
    let follower = try await fixture.client.respond(to: request(timeLimit: .seconds(1)), over: transport)
    #expect(follower.source == .coalesced)
    await #expect(throws: CachingClientError.timedOut) { try await content.check(follower.body) }
    #expect(transport.count == requestCount)
    gate.open()
    #expect(try await content.check(leader.body) == content.byteCount)
  }

  // MARK: Memory

  /// The memory of this process without mapped files.
  private func residentByteCount() throws -> Int {
    let status = String(decoding: try Data(contentsOf: URL(filePath: "/proc/self/status")), as: UTF8.self)
    let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("RssAnon:") })
    return try #require(Int(line.filter(\.isNumber))) * 1024
  }

  @Test("Waits that end in time leave nothing in memory")
  func memoryOfWaits() async throws {
    let fixture = Fixture(maximumBodyByteCount: 16 << 20)
    let chunk = Data("fourteen bytes".utf8)
    let (warmUp, count) = (500, 3500)
    let received = Atomic(0)
    let sent = Atomic(0)
    let transport = ScriptedTransport { [chunk] _, _ in
      let body = ResponseBodyStream(next: {
        let number = sent.add(1, ordering: .relaxed).oldValue
        while received.load(ordering: .relaxed) < number { await Task.yield() }
        // The follower has the chunk before this one. Let it begin to wait for this one.
        for _ in 0..<200 { await Task.yield() }
        return number < count ? chunk : nil
      })
      let fields: HeaderFields = ["Cache-Control": "max-age=600"]
      return IncomingResponse(head: ResponseHead(status: 200, fields: fields), body: body)
    }
    let leader = try await fixture.client.respond(to: request(), over: transport)
    let follower = try await fixture.client.respond(to: request(timeLimit: .seconds(60)), over: transport)
    #expect(follower.source == .coalesced)
    var before = 0
    for try await chunk in follower.body {
      received.add(chunk.count / 14, ordering: .relaxed)
      if received.load(ordering: .relaxed) == warmUp { before = try residentByteCount() }
    }
    let grown = try residentByteCount() - before
    #expect(grown < 700_000, "\(grown) bytes for \(count - warmUp) waits")
    #expect(received.load(ordering: .relaxed) == count)
    withExtendedLifetime(leader) {}
  }
}
