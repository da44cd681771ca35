import CacheModel
import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import ResponseStore
import Synchronization
import Testing

/// The caching client on a `ResponseStore`. Every test ends with a check of the store's invariants.
@Suite("Caching client on a response store", .timeLimit(.minutes(1)))
struct StoreStorageTests {
  private func withClient(
    _ body: (CachingClient<StoreStorage>, ManualClock) async throws -> Void
  ) async throws {
    let directory = FileManager.default.temporaryDirectory.appending(path: "client-\(UUID().uuidString)")
    defer {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(at: directory)
    }
    let store = try ResponseStore.open(directory: directory.path(), options: .init(capacityByteCount: 4 << 20))
    let clock = ManualClock()
    let client = CachingClient(store: store, clock: { clock.now })
    try await body(client, clock)
    try store.flush()
    #expect(store.checkInvariants() == [])
    store.close()
  }

  private func transport(_ clock: ManualClock, _ etag: String = "\"1\"") -> ScriptedTransport {
    ScriptedTransport { request, number in
      let fields = HeaderFields([
        ("Date", clock.field), fresh, ("ETag", etag), ("Vary", "Accept-Language"), ("Cache-Groups", "\"news\""),
      ])
      if request.head.fields["If-None-Match"] == etag {
        return IncomingResponse(head: ResponseHead(status: 304, fields: fields), body: .empty)
      }
      let text =
        "\(number) \(request.head.fields["Accept-Language"] ?? "-") \(request.head.fields["Authorization"] ?? "-")"
      return IncomingResponse(
        head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data(text.utf8)))
    }
  }

  @Test("A stored response is a hit at once, and after it is committed")
  func hit() async throws {
    try await withClient { client, clock in
      let transport = transport(clock)
      _ = try await client.respond(to: get(), over: transport)
      #expect(try await client.storedResponse(to: get())?.text() == "1 - -")
      try client.storage.store.flush()
      let hit = try #require(client.storedResponse(to: get()))
      #expect(try await hit.text() == "1 - -")
      #expect(hit.isWholeEntry)
      #expect(client.storedResponse(to: get(method: "HEAD"))?.status == 200)
      #expect(client.storedResponse(to: get("http://example.com/a?x")) == nil)
      #expect(client.storedResponse(to: get(partition: "other")) == nil)
    }
  }

  @Test("Responses for different languages are variants, and those for users have keys of their own")
  func variants() async throws {
    try await withClient { client, clock in
      let transport = transport(clock)
      let requests = [
        HeaderFields(), ["Accept-Language": "de"], ["Authorization": "ann"], ["Authorization": "bob"],
      ].map { get("http://example.com/a", $0) }
      for request in requests { _ = try await client.respond(to: request, over: transport) }
      try client.storage.store.flush()
      for request in requests {
        let text = try await client.storedResponse(to: request)?.text()
        #expect(
          text?.hasSuffix(
            "\(request.head.fields["Accept-Language"] ?? "-") \(request.head.fields["Authorization"] ?? "-")") == true)
      }
      #expect(client.storedResponse(to: get("http://example.com/a", ["Authorization": "eve"])) == nil)
    }
  }

  @Test("A response for memory only is not written to the store")
  func memoryOnly() async throws {
    try await withClient { client, clock in
      let request = get(willStore: { proposal in
        var changed = proposal
        changed.isMemoryOnly = true
        return changed
      })
      let response = try await client.respond(to: request, over: transport(clock))
      #expect(response.storage == .notStored(.memoryOnly))
      #expect(client.statistics.stored == 0 && client.statistics.storageRefusals == ["memory-only": 1])
      #expect(client.storedResponse(to: get()) == nil)
    }
  }

  // MARK: Removals by other processes

  /// A store that another process changes before the record of a key space is stored.
  private struct ChangedStorage: ResponseStorage, SharesClientState {
    let base: StoreStorage
    let change: @Sendable () -> Void

    var clientState: ClientState {
      ClientState(
        activity: base.store.activity,
        spaces: SpaceRecords(number: {
          defer { change() }
          return base.store.keySpaceNumber(at: $0)
        }) { base.store.lookup($0) { _ in true }?.fields },
        effectOfRemovals: { base.store.possibleEffectOfRemovals(on: $0, since: &$1) })
    }

    func lookup(_ request: CachingClientRequest, at key: RequestKey) -> StoredResponse? {
      base.lookup(request, at: key)
    }
    func body(of entry: StoredResponse) -> Data { base.body(of: entry) }
    func store(_ proposal: ProposedResponse, for request: CachingClientRequest) { base.store(proposal, for: request) }
    func update(
      _ entry: StoredResponse, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
      for request: CachingClientRequest
    ) { base.update(entry, fields: fields, freshness: freshness, askedAt: token, for: request) }
    func remove(_ entry: StoredResponse, for request: CachingClientRequest) async {
      await base.remove(entry, for: request)
    }
    func invalidate(
      _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
    ) async { await base.invalidate(invalidation, for: request, movingPast: &token) }
    var removalToken: RemovalToken { base.removalToken }
    func digest(_ bytes: UnsafeRawBufferPointer) -> String { base.digest(bytes) }
  }

  /// A holder of copies, with which a store counts as one that other caches use, too.
  private final class OtherCache: CopyHolder {
    func dropCopies(of key: RequestKey) {}
  }

  @Test("A removal between the choice of a nonce and the record leaves nothing in the space to be found")
  func removalBeforeRecord() async throws {
    try await withClient { client, clock in
      let store = client.storage.store
      let others = [OtherCache(), OtherCache()]
      for other in others { store.add(other) }
      let key = try #require(RequestKey(urlString: "http://example.com/a"))
      let isRemoving = Mutex(false)
      let storage = ChangedStorage(base: client.storage) {
        if isRemoving.withLock({ $0 }) { store.remove(.resource(key)) }
      }
      let changed = CachingClient(storage: storage, clock: { clock.now })
      let transport = transport(clock)
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
      withExtendedLifetime(others) {}
    }
  }

  @Test(
    "A removal of a URL by another process covers what is being fetched for an equivalent URL",
    arguments: [false, true])
  func removalOfEquivalent(refills: Bool) async throws {
    try await withClient { client, clock in
      let store = client.storage.store
      let removed = try #require(RequestKey(urlString: "http://example.com/a?x=1"))
      let other = CachingClient(store: store, clock: { clock.now })
      @Sendable func reply(_ text: String) -> IncomingResponse {
        let fields = HeaderFields([("Date", clock.field), fresh, ("No-Vary-Search", "params")])
        return IncomingResponse(
          head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data(text.utf8)))
      }
      let transport = ScriptedTransport { _, _ in
        store.remove(.resource(removed))
        if refills {
          _ = try await other.respond(
            to: get("http://example.com/a?z=1"), over: ScriptedTransport { _, _ in reply("new") })
        }
        return reply("old")
      }
      let response = try await client.respond(to: get("http://example.com/a?y=1"), over: transport)
      #expect(try await response.text() == "old")
      let found = try await client.storedResponse(to: get("http://example.com/a?x=1"))?.text()
      #expect(found != "old")
    }
  }
}
