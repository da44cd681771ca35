import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
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
      #expect(client.storage.variantCount(of: get()) == 2)
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
}
