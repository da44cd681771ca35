import CachingClient
import CachingStorage
import Dispatch
import FoundationEssentials
import HTTPCaching
import ResponseStore
import Synchronization
import Testing

/// Bodies that are stored while they arrive, and the requests that read them along.
@Suite("Large bodies", .timeLimit(.minutes(1)))
struct LargeBodyTests {
  /// A body whose bytes follow from their position, sent in chunks as a transport delivers them.
  struct Content: Sendable {
    let byteCount: Int
    static let chunkByteCount = 48_000

    /// Repeats in the body, with a period that is no multiple of a chunk's size.
    private static let block: Data = {
      let words = (0..<131_071).map { (UInt64($0) &* 0x9E37_79B9_7F4A_7C15).bigEndian }
      return words.withUnsafeBytes { Data($0) }
    }()

    /// Returns bytes of the body.
    func bytes(_ range: Range<Int>) -> Data {
      var bytes = Data(capacity: range.count)
      while bytes.count < range.count {
        let start = (range.lowerBound + bytes.count) % Self.block.count
        bytes.append(Self.block[start..<min(start + range.count - bytes.count, Self.block.count)])
      }
      return bytes
    }

    /// Returns a body that sends a range, and calls `pause` before each chunk with its position.
    func stream(
      _ range: Range<Int>? = nil, pause: @escaping @Sendable (Int) async throws -> Void = { _ in }
    ) -> ResponseBodyStream {
      let rest = Mutex(range ?? 0..<byteCount)
      return ResponseBodyStream(next: {
        let next = rest.withLock { rest in
          defer { rest = rest.dropFirst(Self.chunkByteCount) }
          return rest.prefix(Self.chunkByteCount)
        }
        guard !next.isEmpty else { return nil }
        try await pause(next.lowerBound)
        return bytes(next)
      })
    }

    /// Reads a body to its end, and compares it. Returns the number of bytes.
    func check(_ body: ResponseBodyStream, from start: Int = 0) async throws -> Int {
      var position = start
      for try await chunk in body {
        guard chunk == bytes(position..<position + chunk.count) else {
          Issue.record("The bytes at \(position) are wrong")
          return position - start
        }
        position += chunk.count
      }
      return position - start
    }
  }

  static let content = Content(byteCount: 5_000_003)

  private func request(_ fields: HeaderFields = HeaderFields()) -> CachingClientRequest {
    var request = get("http://example.com/large", fields)
    request.readsBodyInPieces = true
    return request
  }

  private func response(
    _ body: ResponseBodyStream, _ fields: [(String, String)] = [], length: Int? = content.byteCount
  ) -> IncomingResponse {
    var all = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")] + fields
    if let length { all.append(("Content-Length", String(length))) }
    return IncomingResponse(head: ResponseHead(status: 200, fields: HeaderFields(all)), body: body)
  }

  /// The byte from which a request asks for the rest of a body; 0 if it asks for all of it.
  private func start(of request: OutgoingRequest) -> Int {
    request.head.fields["Range"].flatMap { Int($0.dropFirst("bytes=".count).dropLast()) } ?? 0
  }

  /// Returns the rest of a body, from a byte on.
  private func rest(
    of content: Content, from start: Int, pause: @escaping @Sendable (Int) async throws -> Void = { _ in }
  ) -> IncomingResponse {
    let fields: HeaderFields = [
      "Cache-Control": "max-age=600", "ETag": "\"1\"", "Content-Length": "\(content.byteCount - start)",
      "Content-Range": "bytes \(start)-\(content.byteCount - 1)/\(content.byteCount)",
    ]
    return IncomingResponse(
      head: ResponseHead(status: 206, fields: fields),
      body: content.stream(start..<content.byteCount, pause: pause))
  }

  private func withCache(
    diskCapacity: Int = 64 << 20, maximumBodyByteCount: Int = .max,
    _ test: (ResponseCache, CachingClient<ResponseCache>, Content) async throws -> Void
  ) async throws {
    try await withDiskCache(
      memoryCapacity: 1 << 20, diskCapacity: diskCapacity, maximumBodyByteCount: maximumBodyByteCount
    ) { try await test($0, CachingClient($0), Self.content) }
  }

  // MARK: Storing

  @Test("A body is stored while it arrives, and visible at its end", arguments: [true, false])
  func storing(isLengthKnown: Bool) async throws {
    try await withCache { _, client, content in
      let transport = ScriptedTransport { _, _ in
        let body = content.stream { position in
          #expect(client.storedResponse(to: get("http://example.com/large")) == nil, "\(position)")
        }
        return response(body, length: isLengthKnown ? content.byteCount : nil)
      }
      let first = try await client.respond(to: request(), over: transport)
      #expect(try await content.check(first.body) == content.byteCount)
      #expect(first.storage == .stored)
      for request in [request(), get("http://example.com/large")] {
        let hit = try #require(client.storedResponse(to: request))
        #expect(hit.body.bytes == nil)
        #expect(try await content.check(hit.body) == content.byteCount)
        #expect(hit.entry?.tier == .disk)
      }
      #expect(transport.count == 1)
    }
  }

  @Test("A range of a stored body reads its bytes")
  func ranges() async throws {
    try await withCache { _, client, content in
      let transport = ScriptedTransport { _, _ in response(content.stream()) }
      _ = try await content.check(try await client.respond(to: request(), over: transport).body)
      for (first, last) in [(0, 0), (65_535, 65_536), (1_000_000, 1_300_000), (4_999_000, 5_000_002)] {
        let part = try #require(client.storedResponse(to: request(["Range": "bytes=\(first)-\(last)"])))
        #expect(part.status == 206)
        #expect(part.head.fields["Content-Length"] == "\(last - first + 1)")
        #expect(try await content.check(part.body, from: first) == last - first + 1)
      }
    }
  }

  @Test("A body that is longer than it said, or shorter, is not stored", arguments: [-1, 1])
  func wrongLength(difference: Int) async throws {
    try await withCache { cache, client, content in
      let transport = ScriptedTransport { _, _ in
        response(content.stream(), [("Accept-Ranges", "none")], length: content.byteCount - difference)
      }
      let first = try await client.respond(to: request(), over: transport)
      if difference < 0 {
        await #expect(throws: CachingClientError.self) { _ = try await content.check(first.body) }
      } else {
        _ = try await content.check(first.body)
      }
      #expect(first.storageRefusal == .incompleteBody)
      #expect(cache.entries().map(\.url) == [])
      try await expectNoBody(in: cache)
    }
  }

  @Test("A body beyond the limit is passed on, and what was stored of it is freed", arguments: [true, false])
  func tooLarge(isLengthKnown: Bool) async throws {
    try await withCache(maximumBodyByteCount: 3 << 20) { cache, client, content in
      let transport = ScriptedTransport { _, _ in
        response(content.stream(), length: isLengthKnown ? content.byteCount : nil)
      }
      let first = try await client.respond(to: request(), over: transport)
      #expect(try await content.check(first.body) == content.byteCount)
      #expect(first.storageRefusal == .bodyTooLarge)
      try await expectNoBody(in: cache)
    }
  }

  @Test("By default, the limit is a quarter of the disk capacity")
  func defaultLimit() async throws {
    try await withCache(diskCapacity: 40 << 20) { _, client, _ in
      #expect(client.maximumBodyByteCount == 10 << 20)
    }
  }

  @Test("A purge while the body arrives: it is not stored, and its readers get all of it")
  func purge() async throws {
    try await withCache { cache, client, content in
      let transport = ScriptedTransport { _, _ in
        response(content.stream { if $0 == 50 * Content.chunkByteCount { try await cache.purge(.all) } })
      }
      let first = try await client.respond(to: request(), over: transport)
      #expect(try await content.check(first.body) == content.byteCount)
      #expect(first.storageRefusal == .invalidatedInFlight)
      #expect(client.storedResponse(to: request()) == nil)
      try await expectNoBody(in: cache)
    }
  }

  @Test("What a cancelled transfer left is freed")
  func cancelled() async throws {
    try await withCache { cache, client, content in
      let gate = Gate()
      let transport = ScriptedTransport { _, _ in
        response(content.stream { if $0 > 3 << 20 { try await gate.pass() } })
      }
      var first: ResponseBodyStream? = try await client.respond(to: request(), over: transport).body
      var iterator = first?.makeAsyncIterator()
      #expect(try await iterator?.next() != nil)
      await until { cache.tiers.store?.statistics.unfinishedBodyCount == 1 }
      iterator = nil
      first = nil
      #expect(client.storedResponse(to: request()) == nil)
      try await expectNoBody(in: cache)
    }
  }

  /// Expects that the store has no bytes of bodies once the eviction thread has run.
  private func expectNoBody(in cache: ResponseCache) async throws {
    let store = try #require(cache.tiers.store)
    await until { store.statistics.unfinishedBodyCount == 0 }
  }

  // MARK: Reading along

  private final class Counter: Sendable {
    private let count = Atomic(0)

    var value: Int { count.load(ordering: .relaxed) }
    func increment() -> Int { count.wrappingAdd(1, ordering: .relaxed).newValue }
  }

  @Test("Requests that join read from the first byte; all of them cost one transfer", arguments: [true, false])
  func readingAlong(isLengthKnown: Bool) async throws {
    try await withCache { _, client, content in
      let gate = Gate()
      let transport = ScriptedTransport { _, _ in
        let body = content.stream { if $0 > 2 << 20 { try await gate.pass() } }
        return response(body, length: isLengthKnown ? content.byteCount : nil)
      }
      let begun = Counter()
      try await withThrowingTaskGroup(of: Int.self) { group in
        for _ in 0..<20 {
          group.addTask {
            let response = try await client.respond(to: request(), over: transport)
            var iterator = response.body.makeAsyncIterator()
            var position = 0
            while let chunk = try await iterator.next() {
              #expect(chunk == content.bytes(position..<position + chunk.count))
              if position == 0, begun.increment() == 20 { gate.open() }
              position += chunk.count
            }
            return position
          }
        }
        for try await byteCount in group { #expect(byteCount == content.byteCount) }
      }
      #expect(transport.count == 1)
      #expect(client.storedResponse(to: request()) != nil)
    }
  }

  @Test("A reader that does not read delays neither the transfer nor another reader, and gets all later")
  func slowReader() async throws {
    try await withCache { _, client, _ in
      let content = Content(byteCount: 12_000_000)
      let transport = ScriptedTransport { _, _ in response(content.stream(), length: content.byteCount) }
      let slow = try await client.respond(to: request(), over: transport)
      let other = try await client.respond(to: request(), over: transport)
      #expect(try await content.check(other.body) == content.byteCount)
      await until { client.storedResponse(to: request()) != nil }
      #expect(try await content.check(slow.body) == content.byteCount)
      #expect(transport.count == 1)
    }
  }

  @Test("The transfer goes on for a reader that has joined, if the first one leaves")
  func leaderLeaves() async throws {
    try await withCache { _, client, content in
      let gate = Gate()
      let transport = ScriptedTransport { _, _ in
        response(content.stream { if $0 > 1 << 20 { try await gate.pass() } })
      }
      var leader: CachingClientResponse<CacheEntry>? = try await client.respond(to: request(), over: transport)
      let other = try await client.respond(to: request(), over: transport)
      #expect(other.source == .coalesced)
      withExtendedLifetime(leader) {}
      leader = nil
      gate.open()
      #expect(try await content.check(other.body) == content.byteCount)
      #expect(client.storedResponse(to: request()) != nil)
      #expect(transport.count == 1)
    }
  }

  @Test("The transfer goes on for a follower if the leader is cancelled before the response arrives")
  func leaderIsCancelled() async throws {
    try await withCache { _, client, _ in
      let content = Content(byteCount: 200_000)
      let (head, body) = (Gate(), Gate())
      let transport = ScriptedTransport { _, _ in
        try await head.pass()
        return response(content.stream { if $0 > 0 { try await body.pass() } }, length: content.byteCount)
      }
      let request = request()
      let leader = Task { try await client.respond(to: request, over: transport).status }
      await until { transport.count == 1 }
      let follower = Task {
        let response = try await client.respond(to: request, over: transport)
        return (response.source, try await content.check(response.body))
      }
      await until { client.statistics.waiting == 1 }
      leader.cancel()
      await #expect(throws: CancellationError.self) { try await leader.value }
      head.open()
      await until { client.statistics.waiting == 0 }
      body.open()
      let (source, byteCount) = try await follower.value
      #expect(source == .coalesced)
      #expect(byteCount == content.byteCount)
      #expect(transport.count == 1)
    }
  }

  // MARK: Stores that cannot keep up

  /// A destination that fails, or that does not return until the test ends.
  private final class BadDestination: BodyDestination {
    private let gate: DispatchSemaphore?

    init(waitingFor gate: DispatchSemaphore? = nil) {
      self.gate = gate
    }

    func write(_ pieces: [Data]) -> Bool {
      gate?.wait()
      return false
    }
    func complete() -> Bool { false }
    var readableByteCount: Int { 0 }
    func read(_ range: Range<Int>) -> Data? { nil }
  }

  @Test("If the store is too slow, the body is not stored, and its reader gets it nevertheless")
  func slowStore() async throws {
    let gate = DispatchSemaphore(value: 0)
    defer { gate.signal() }
    let content = Content(byteCount: 12_000_000)
    let storage = MemoryStorage(placement: { .whileArriving(BadDestination(waitingFor: gate)) })
    var options = CachingOptions()
    options.storageWaitLimit = .milliseconds(50)
    let client = CachingClient(storage: storage, options: options, maximumBodyByteCount: 1 << 30)
    let transport = ScriptedTransport { _, _ in response(content.stream(), length: content.byteCount) }
    let first = try await client.respond(to: request(), over: transport)
    #expect(try await content.check(first.body) == content.byteCount)
    #expect(first.storageRefusal == .storeTooSlow)
    #expect(client.statistics.storageRefusals[Rule.storeTooSlow.id] == 1)
  }

  @Test(
    "A reader that is left behind by another one gets the rest of the same representation, or an error",
    arguments: [true, false])
  func leftBehind(isSame: Bool) async throws {
    let content = Content(byteCount: 6_000_000)
    let storage = MemoryStorage(placement: { .whileArriving(BadDestination()) })
    let client = CachingClient(storage: storage, maximumBodyByteCount: 1 << 30)
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      let tag = number == 1 || isSame ? "\"1\"" : "\"2\""
      let body = content.stream { if $0 > 100_000 { try await gate.pass() } }
      return IncomingResponse(
        head: ResponseHead(
          status: 200,
          fields: ["Cache-Control": "max-age=600", "ETag": tag, "Content-Length": "\(content.byteCount)"]),
        body: body)
    }
    let slow = try await client.respond(to: request(), over: transport)
    let fast = try await client.respond(to: request(), over: transport)
    #expect(fast.source == .coalesced)
    // Both begin before the rest arrives. Otherwise the fast one could be the one that is left behind.
    var fastIterator = fast.body.makeAsyncIterator()
    var fastByteCount = try #require(try await fastIterator.next()).count
    var iterator = slow.body.makeAsyncIterator()
    let begin = try #require(try await iterator.next())
    gate.open()
    while let chunk = try await fastIterator.next() { fastByteCount += chunk.count }
    #expect(fastByteCount == content.byteCount)
    #expect(transport.count == 1)
    var position = begin.count
    do {
      while let chunk = try await iterator.next() {
        #expect(chunk == content.bytes(position..<position + chunk.count))
        position += chunk.count
      }
      #expect(isSame && position == content.byteCount)
    } catch CachingClientError.storedBodyLost {
      #expect(!isSame)
    }
    #expect(transport.count == 2)
    #expect(slow.storageRefusal == .writeDropped)
  }

  /// Is released with the body of a transfer.
  private final class Token: Sendable {
    let count: Counter
    init(_ count: Counter) { self.count = count }
    deinit { _ = count.increment() }
  }

  @Test("A transfer ends when the only reader that is left has lost its place")
  func lastReaderLeftBehind() async throws {
    let gate = DispatchSemaphore(value: 0)
    let content = Content(byteCount: 6_000_000)
    let storage = MemoryStorage(placement: { .whileArriving(BadDestination(waitingFor: gate)) })
    let client = CachingClient(storage: storage, maximumBodyByteCount: 1 << 30)
    let ended = Counter()
    let transport = ScriptedTransport { _, _ in
      let token = Token(ended)
      return response(content.stream { _ in withExtendedLifetime(token) {} }, length: content.byteCount)
    }
    let slow = try await client.respond(to: request(), over: transport)
    var slowIterator = slow.body.makeAsyncIterator()
    let begin = try #require(try await slowIterator.next())
    let fast = Task {
      let response = try await client.respond(to: request(), over: transport)
      #expect(response.source == .coalesced)
      gate.signal()
      var byteCount = 0
      for try await chunk in response.body {
        byteCount += chunk.count
        // More than waits to be written, so the body is only passed on.
        if byteCount > 5_000_000 { break }
      }
    }
    try await fast.value
    var byteCount = begin.count
    while let chunk = try await slowIterator.next() { byteCount += chunk.count }
    #expect(byteCount == content.byteCount)
    #expect(transport.count == 2)
    // The first one, although its response is still held.
    await until { ended.value >= 1 }
    withExtendedLifetime((slow, slowIterator)) {}
  }

  // MARK: Parts

  @Test("A cut body with a strong validator is kept as a part, and the next request asks for the rest")
  func part() async throws {
    try await withCache { _, client, content in
      let transport = ScriptedTransport { request, number in
        guard number > 1 else { return response(content.stream { if $0 > 3 << 20 { throw Unreachable() } }) }
        #expect(request.head.fields["If-Range"] == "\"1\"")
        return rest(of: content, from: start(of: request))
      }
      let first = try await client.respond(to: request(), over: transport)
      await #expect(throws: Unreachable.self) { _ = try await content.check(first.body) }
      let second = try await client.respond(to: request(), over: transport)
      #expect(second.status == 200)
      #expect(second.head.fields["Content-Length"] == "\(content.byteCount)")
      #expect(try await content.check(second.body) == content.byteCount)
      let ranges = transport.requests.map { $0.head.fields["Range"] }
      #expect(ranges.count == 2)
      #expect(ranges.last??.hasPrefix("bytes=3") == true)
      let hit = try #require(client.storedResponse(to: request()))
      #expect(try await content.check(hit.body) == content.byteCount)
    }
  }

  @Test("If the rest is cut as well, the part grows until it is complete")
  func partThatGrows() async throws {
    try await withCache { _, client, content in
      let starts = Mutex<[Int]>([])
      let transport = ScriptedTransport { request, _ in
        let start = start(of: request)
        starts.withLock { $0.append(start) }
        let cut: @Sendable (Int) throws -> Void = { if $0 >= start + 1_500_000 { throw Unreachable() } }
        return start > 0 ? rest(of: content, from: start, pause: cut) : response(content.stream(pause: cut))
      }
      for _ in 0..<3 {
        let response = try await client.respond(to: request(), over: transport)
        await #expect(throws: Unreachable.self) { _ = try await content.check(response.body) }
      }
      let last = try await client.respond(to: request(), over: transport)
      #expect(try await content.check(last.body) == content.byteCount)
      let received = starts.withLock { $0 }
      #expect(received.count == 4)
      #expect(received.first == 0)
      #expect(zip(received, received.dropFirst()).allSatisfy { $1 - $0 >= 1_500_000 }, "\(received)")
      let hit = try #require(client.storedResponse(to: request()))
      #expect(try await content.check(hit.body) == content.byteCount)
    }
  }

  @Test("If the rest is cut before its first byte, the whole response is requested and stored")
  func restWithoutBytes() async throws {
    try await withCache { _, client, content in
      let transport = ScriptedTransport { request, number in
        guard request.head.fields.contains("Range") else {
          return response(content.stream { if number == 1, $0 > 3 << 20 { throw Unreachable() } })
        }
        return rest(of: content, from: start(of: request)) { _ in throw Unreachable() }
      }
      let first = try await client.respond(to: request(), over: transport)
      await #expect(throws: Unreachable.self) { _ = try await content.check(first.body) }
      let second = try await client.respond(to: request(), over: transport)
      #expect(try await content.check(second.body) == content.byteCount)
      #expect(second.storage == .stored)
      #expect(transport.requests.map { $0.head.fields.contains("Range") } == [false, true, false])
      let hit = try #require(client.storedResponse(to: request()))
      #expect(try await content.check(hit.body) == content.byteCount)
    }
  }

  @Test("A cut body is not kept without a strong validator, or if the origin serves no ranges")
  func noPart() async throws {
    try await withCache { cache, client, content in
      for fields in [["ETag": "W/\"1\""], ["ETag": "\"1\"", "Accept-Ranges": "none"], [:]] {
        let transport = ScriptedTransport { _, _ in
          var fields = fields
          fields["Cache-Control"] = "max-age=600"
          fields["Content-Length"] = String(content.byteCount)
          return IncomingResponse(
            head: ResponseHead(status: 200, fields: HeaderFields(fields.map { ($0, $1) })),
            body: content.stream { if $0 > 3 << 20 { throw Unreachable() } })
        }
        let first = try await client.respond(to: request(), over: transport)
        await #expect(throws: Unreachable.self) { _ = try await content.check(first.body) }
        #expect(first.storageRefusal == .incompleteBody)
        #expect(cache.entries().map(\.url) == [])
        try await expectNoBody(in: cache)
      }
    }
  }

  @Test("A cut transfer leaves a response alone that was stored while it arrived", arguments: ["\"1\"", "\"2\""])
  func cutAfterNewer(tag: String) async throws {
    try await withCache { _, client, content in
      let gate = Gate()
      let transport = ScriptedTransport { _, number in
        let body = content.stream { position in
          guard number == 1, position >= 3_000_000 else { return }
          try await gate.pass()
          throw Unreachable()
        }
        return IncomingResponse(
          head: ResponseHead(
            status: 200,
            fields: [
              "Cache-Control": "max-age=600", "ETag": number == 1 ? "\"1\"" : tag,
              "Content-Length": "\(content.byteCount)",
            ]), body: body)
      }
      let first = try await client.respond(to: request(), over: transport)
      let second = try await client.respond(to: request(["Cache-Control": "no-cache"]), over: transport)
      #expect(try await content.check(second.body) == content.byteCount)
      gate.open()
      await #expect(throws: Unreachable.self) { _ = try await content.check(first.body) }
      let hit = try #require(client.storedResponse(to: request()))
      #expect(hit.head.fields["ETag"] == tag)
      #expect(try await content.check(hit.body) == content.byteCount)
    }
  }

  // MARK: The capacity

  @Test("Of ten transfers of more than the capacity together, as many are stored as fit, within 110% of it")
  func manyTransfers() async throws {
    try await withCache(diskCapacity: 32 << 20) { cache, client, _ in
      let content = Content(byteCount: 7_500_000)
      let transport = ScriptedTransport { _, _ in response(content.stream(), length: content.byteCount) }
      let store = try #require(cache.tiers.store)
      try await withThrowingTaskGroup(of: Int.self) { group in
        for number in 0..<10 {
          group.addTask {
            var request = get("http://example.com/\(number)")
            request.readsBodyInPieces = true
            let response = try await client.respond(to: request, over: transport)
            var position = 0
            for try await chunk in response.body {
              #expect(chunk == content.bytes(position..<position + chunk.count))
              position += chunk.count
              #expect(store.statistics.diskByteCount <= (32 << 20) / 10 * 11)
            }
            return position
          }
        }
        for try await byteCount in group { #expect(byteCount == content.byteCount) }
      }
      #expect(cache.flush())
      #expect(store.statistics.diskByteCount <= (32 << 20) / 10 * 11)
      // Half of the capacity has space for two. The disk is full again and again, until the others make way.
      let stored = (0..<10).filter { client.storedResponse(to: get("http://example.com/\($0)")) != nil }
      #expect(stored.count == 2)
    }
  }
}
