import CacheActivity
import CacheModel
import CachingClient
import CachingStorage
import CurlTransport
import FoundationEssentials
import HTTPCaching
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

/// The cache for programs without Foundation's types: the same tiers, purges, statistics and events.
@Suite("Cache without Foundation's types", .timeLimit(.minutes(1)))
struct ResponseCacheTests {
  private final class Lines: Sendable {
    private let lines = Mutex<[String]>([])

    var all: [String] { lines.withLock { $0 } }

    func append(_ line: String) { lines.withLock { $0.append(line) } }
  }

  private func withCache(
    memory: Int = 4 << 20, disk: Int = 16 << 20, options: ResponseCache.Options = ResponseCache.Options(),
    _ body: (ResponseCache, _ directory: String) async throws -> Void
  ) async throws {
    let directory = FileManager.default.temporaryDirectory.appending(path: "response-cache-\(UUID().uuidString)")
    defer {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(at: directory)
    }
    let cache = try ResponseCache(
      directory: directory.path(), memoryCapacity: memory, diskCapacity: disk, options: options)
    try await body(cache, directory.path())
    #expect(cache.flush())
    #expect(cache.tiers.store?.checkInvariants() ?? [] == [])
  }

  private func transport(_ text: String = "body", _ more: [(String, String)] = []) -> ScriptedTransport {
    ScriptedTransport { _, _ in
      IncomingResponse(
        head: ResponseHead(status: 200, fields: HeaderFields([("Cache-Control", "max-age=600")] + more)),
        body: ResponseBodyStream(Data(text.utf8)))
    }
  }

  @Test("Cache-Status says whether a miss is one of another variant")
  func varyMiss() async throws {
    var options = ResponseCache.Options()
    options.caching.cacheStatusName = "here"
    try await withCache(options: options) { cache, _ in
      let client = CachingClient(cache)
      for (type, forward) in [("a/b", "uri-miss"), ("c/d", "vary-miss")] {
        let request = get("http://example.com/a", ["Accept": type])
        let response = try await client.respond(to: request, over: transport("body", [("Vary", "Accept")]))
        #expect(response.head.fields["Cache-Status"] == "here; fwd=\(forward); stored")
      }
    }
  }

  @Test("A response is a hit in memory, and after another opening on disk")
  func tiers() async throws {
    try await withCache { cache, directory in
      let client = CachingClient(cache)
      #expect(try await client.respond(to: get(), over: transport()).text() == "body")
      let hit = try #require(client.storedResponse(to: get()))
      #expect(try await hit.text() == "body")
      #expect(hit.entry?.tier == .memory)
      #expect(cache.flush())
      let other = try ResponseCache(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
      let first = CachingClient(other).storedResponse(to: get())
      #expect(first?.entry?.tier == .disk)
      #expect(CachingClient(other).storedResponse(to: get())?.entry?.tier == .memory)
      #expect(Array(cache.entries()).map(\.url) == ["http://example.com/a"])
      #expect(cache.statistics.disk?.entryCount == 1)
      #expect(cache.prometheusText().contains("urlcache_memory_entries{"))
    }
  }

  @Test("Clients of one cache share their counts and the fetches in flight")
  func sharedState() async throws {
    try await withCache { cache, _ in
      let clients = (0..<4).map { _ in CachingClient(cache) }
      let gate = AsyncStream.makeStream(of: Void.self)
      let started = AsyncStream.makeStream(of: Void.self)
      let slow = ScriptedTransport { _, _ in
        started.continuation.yield()
        for await _ in gate.stream { break }
        return IncomingResponse(
          head: ResponseHead(status: 200, fields: ["Cache-Control": "max-age=600"]),
          body: ResponseBodyStream(Data("body".utf8)))
      }
      try await withThrowingTaskGroup(of: String.self) { group in
        group.addTask { try await clients[0].respond(to: get(), over: slow).text() }
        for await _ in started.stream { break }
        for client in clients.dropFirst() {
          group.addTask { try await client.respond(to: get(), over: slow).text() }
        }
        while cache.statistics.requests.waiting < 3 { await Task.yield() }
        gate.continuation.yield()
        for try await text in group { #expect(text == "body") }
      }
      #expect(cache.statistics.requests.misses == 1)
      #expect(cache.statistics.requests.coalesced == 3)
      #expect(clients[3].statistics == cache.statistics.requests)
    }
  }

  private enum Purge: CaseIterable {
    case all, since, host, prefix, group, url, tag, tagOfOrigin

    var scope: PurgeScope {
      let url = URL(string: "http://example.com/a")!
      return switch self {
      case .all: .all
      case .since: .since(Date(timeIntervalSinceNow: -3600))
      case .host: .host("EXAMPLE.com")
      case .prefix: .prefix(url)
      case .group: .group("news", origin: url)
      case .url: .url(url)
      case .tag: .tag("news")
      case .tagOfOrigin: .tag("news", origin: url)
      }
    }
  }

  @Test("Purges reach both tiers, hard and soft", arguments: Purge.allCases, [(PurgeMode.hard, 1 << 20), (.soft, 0)])
  private func purge(_ purge: Purge, _ setting: (mode: PurgeMode, memory: Int)) async throws {
    try await withCache(memory: setting.memory) { cache, _ in
      let client = CachingClient(cache)
      _ = try await client.respond(to: get(), over: transport("old", [("Cache-Groups", "\"news\"")])).text()
      #expect(try await cache.purge(purge.scope, mode: setting.mode) == nil)
      #expect(client.storedResponse(to: get()) == nil)
      #expect(try await client.respond(to: get(), over: transport("new")).text() == "new")
      #expect(try await client.storedResponse(to: get())?.text() == "new")
    }
  }

  @Test(
    "A purge revokes the permit of a fetch in flight, with and without a disk tier", arguments: [0, 16 << 20],
    [PurgeScope.host("example.com"), .tag("a")])
  func purgeInFlight(disk: Int, scope: PurgeScope) async throws {
    try await withCache(disk: disk) { cache, _ in
      let client = CachingClient(cache)
      let transport = ScriptedTransport { _, _ in
        try await cache.purge(scope)
        return IncomingResponse(
          head: ResponseHead(status: 200, fields: ["Cache-Control": "max-age=600", "Cache-Groups": "\"a\""]),
          body: ResponseBodyStream(Data("old".utf8)))
      }
      let text = try await client.respond(to: get(), over: transport).text()
      #expect(text == "old")
      #expect(client.storedResponse(to: get()) == nil)
    }
  }

  @Test("A scope that no response can have is an error that says what to write")
  func mistakes() async throws {
    try await withCache { cache, _ in
      for (scope, text) in [
        (PurgeScope.host("http://example.com/"), "example.com"), (.url(URL(string: "/a")!), "absolute"),
        (.tag(""), "empty"), (.tag("a", fieldNames: []), "tagFieldNames"),
        (.tag("a", origin: URL(string: "/a")!), "absolute"),
      ] {
        let error = await #expect(throws: PurgeScopeError.self) { try await cache.purge(scope) }
        #expect(error?.description.contains(text) == true)
      }
    }
    #expect(throws: StoreError.self) {
      try ResponseCache(directory: "/tmp", memoryCapacity: 0, diskCapacity: 1000)
    }
  }

  @Test("Events and the log tell what happens")
  func events() async throws {
    let lines = Lines()
    var options = ResponseCache.Options()
    options.log = { lines.append($0) }
    try await withCache(options: options) { cache, _ in
      let events = cache.events
      let client = CachingClient(cache)
      _ = try await client.respond(to: get(), over: transport()).text()
      try await cache.purge(.all)
      var isPurged = false
      for await event in events {
        if case .purged = event { isPurged = true }
        if isPurged { break }
      }
      #expect(isPurged)
      cache.memoryCapacity = 100
      #expect(lines.all.contains { $0.contains("No response fits the memory capacity") })
      cache.memoryCapacity = 0
      #expect(cache.statistics.memoryEntryCount == 0)
      cache.diskCapacity = 0
      #expect(cache.statistics.disk == nil)
    }
  }

  private static let digests = ["Content-Digest", "Repr-Digest", "Digest", "Content-MD5"]

  @Test("The delivered head is true for decoded content, on each way", arguments: [true, false])
  func decoded(decodes: Bool) async throws {
    // "hello", compressed by gzip.
    let coded = try #require(Data(base64Encoded: "H4sIAAAAAAACA8tIzcnJBwCGphA2BQAAAA=="))
    let origin = try LoopbackOrigin { request in
      let fields =
        [("Cache-Control", "max-age=600"), ("Content-Encoding", "gzip"), ("ETag", "\"1\"")]
        + Self.digests.map { ($0, "sha-256=:AAAA:") }
      return request["If-None-Match"] == nil ? Reply(200, fields, body: coded) : Reply(304, fields)
    }
    defer { origin.stop() }
    var configuration = CurlTransport.Configuration()
    configuration.decodesContent = decodes
    let transport = CurlTransport(configuration)
    try await withCache { cache, _ in
      let client = CachingClient(cache)
      var head = RequestHead(url: URL(string: "http://127.0.0.1:\(origin.port)/a")!)
      head.fields.set("Accept-Encoding", "gzip")
      for (round, source) in [ResponseSource.miss, .hit, .revalidated].enumerated() {
        var request = CachingClientRequest(head: head)
        if source == .revalidated { request.policy = .reloadRevalidatingCacheData }
        let response = try await client.respond(to: request, over: transport)
        #expect(response.source == source, "round \(round)")
        let body = try await response.body.collect(upTo: 1 << 20)
        #expect(body == (decodes ? Data("hello".utf8) : coded))
        #expect(response.isContentDecoded == decodes)
        let fields = response.deliveredHead.fields
        #expect(fields["Content-Encoding"] == (decodes ? nil : "gzip"))
        #expect(fields["ETag"] == (decodes ? "W/\"1\"" : "\"1\""))
        #expect(Self.digests.allSatisfy { fields.contains($0) != decodes })
        if let length = fields["Content-Length"] { #expect(length == String(body.count)) }
      }
    }
  }

  // MARK: Without a memory tier

  private func variants(_ clock: ManualClock) -> ScriptedTransport {
    ScriptedTransport { request, number in
      let fields = HeaderFields([("Date", clock.field), fresh, ("Vary", "Accept-Language")])
      let values = ["Accept-Language", "Authorization"].map { request.head.fields[$0] ?? "-" }
      return IncomingResponse(
        head: ResponseHead(status: 200, fields: fields),
        body: ResponseBodyStream(Data("\(number) \(values.joined(separator: " "))".utf8)))
    }
  }

  @Test("Responses for different languages are variants, and those for users have keys of their own")
  func variants() async throws {
    let clock = ManualClock()
    try await withDiskCache(clock: clock) { cache in
      let client = CachingClient(cache)
      let requests = [
        HeaderFields(), ["Accept-Language": "de"], ["Authorization": "ann"], ["Authorization": "bob"],
      ].map { get("http://example.com/a", $0) }
      let transport = variants(clock)
      var texts: [String] = []
      for request in requests { texts.append(try await client.respond(to: request, over: transport).text()) }
      #expect(cache.flush())
      for (request, text) in zip(requests, texts) {
        #expect(try await client.storedResponse(to: request)?.text() == text)
      }
      #expect(client.storedResponse(to: get("http://example.com/a", ["Authorization": "eve"])) == nil)
      #expect(client.storedResponse(to: get("http://example.com/a?x")) == nil)
      #expect(client.storedResponse(to: get(partition: "other")) == nil)
      #expect(client.storedResponse(to: get(method: "HEAD"))?.status == 200)
    }
  }

  @Test("A response for memory only is not written to the disk")
  func memoryOnly() async throws {
    let clock = ManualClock()
    try await withDiskCache(clock: clock) { cache in
      let client = CachingClient(cache)
      let request = get(willStore: { proposal in
        var changed = proposal
        changed.isMemoryOnly = true
        return changed
      })
      let response = try await client.respond(to: request, over: variants(clock))
      #expect(response.storage == .notStored(.memoryOnly))
      #expect(client.statistics.stored == 0 && client.statistics.storageRefusals == ["memory-only": 1])
      #expect(client.storedResponse(to: get()) == nil)
    }
  }

  // MARK: Removals by other processes

  /// A cache that another process changes before the record of a key space is stored.
  private struct ChangedStorage: WrappedCache, SharesClientState {
    let base: ResponseCache
    let clientState: ClientState

    init(base: ResponseCache, change: @escaping @Sendable () -> Void) {
      self.base = base
      let tiers = base.tiers
      clientState = ClientState(
        activity: tiers.activity,
        spaces: SpaceRecords(number: {
          defer { change() }
          return tiers.connection.keySpaceNumber(at: $0)
        }) { tiers.keySpaceRecord(at: $0) },
        effectOfRemovals: { tiers.connection.possibleEffectOfRemovals(on: $0, since: &$1) })
    }

    var removalToken: RemovalToken { base.removalToken }
    func digest(_ bytes: UnsafeRawBufferPointer) -> String { base.digest(bytes) }
  }

  @Test(
    "A removal between the choice of a number and the record leaves nothing in the space to be found",
    arguments: [0, 1 << 20])
  func removalBeforeRecord(memory: Int) async throws {
    let clock = ManualClock()
    try await withDiskCache(memoryCapacity: memory, clock: clock) { cache in
      let store = try #require(cache.tiers.store)
      let key = try #require(RequestKey(urlString: "http://example.com/a"))
      let isRemoving = Mutex(false)
      let storage = ChangedStorage(base: cache) { if isRemoving.withLock({ $0 }) { store.remove(.resource(key)) } }
      let changed = CachingClient(storage: storage, clock: { clock.now })
      let transport = variants(clock)
      func get(_ user: String) -> CachingClientRequest {
        CachingClientTests.get("http://example.com/a", ["Authorization": user])
      }
      _ = try await changed.respond(to: get("ann"), over: transport)
      #expect(changed.storedResponse(to: get("ann")) != nil)
      store.remove(.resource(key))
      #expect(changed.storedResponse(to: get("ann")) == nil)
      isRemoving.withLock { $0 = true }
      _ = try await changed.respond(to: get("bob"), over: transport)
      for user in ["ann", "bob"] { #expect(changed.storedResponse(to: get(user)) == nil, "\(user)") }
      isRemoving.withLock { $0 = false }
      for _ in 1...2 { _ = try await changed.respond(to: get("eve"), over: transport) }
      #expect(transport.count == 3)
      for user in ["ann", "bob"] { #expect(changed.storedResponse(to: get(user)) == nil, "\(user)") }
    }
  }

  @Test(
    "A removal of a URL by another process covers what is being fetched for an equivalent URL",
    arguments: [false, true], [0, 1 << 20])
  func removalOfEquivalent(refills: Bool, memory: Int) async throws {
    let clock = ManualClock()
    try await withDiskCache(memoryCapacity: memory, clock: clock) { cache in
      let store = try #require(cache.tiers.store)
      let removed = try #require(RequestKey(urlString: "http://example.com/a?x=1"))
      // As of another process: it has a state of its own.
      let other = try ResponseCache(
        directory: cache.tiers.connection.directory, memoryCapacity: memory, diskCapacity: cache.diskCapacity,
        options: cache.tiers.options)
      other.minimumDiskLifetime = 0
      @Sendable func reply(_ text: String) -> IncomingResponse {
        let fields = HeaderFields([("Date", clock.field), fresh, ("No-Vary-Search", "params")])
        return IncomingResponse(
          head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data(text.utf8)))
      }
      let transport = ScriptedTransport { _, _ in
        store.remove(.resource(removed))
        if refills {
          _ = try await CachingClient(other).respond(
            to: get("http://example.com/a?z=1"), over: ScriptedTransport { _, _ in reply("new") })
        }
        return reply("old")
      }
      let client = CachingClient(cache)
      let response = try await client.respond(to: get("http://example.com/a?y=1"), over: transport)
      #expect(try await response.text() == "old")
      let found = try await client.storedResponse(to: get("http://example.com/a?x=1"))?.text()
      #expect(found != "old")
    }
  }
}
