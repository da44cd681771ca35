import CacheActivity
import CacheModel
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// A cache looks for equivalent URLs (No-Vary-Search) only if it may have a response for them.
@Suite("Lookups for equivalent URLs in memory", .endsFixtures, .timeLimit(.minutes(1)))
struct EquivalentLookupTests {
  /// The storage of a cache, which counts the lookups of records of equivalent URLs.
  private final class CountingStorage: WrappedCache, SharesClientState {
    let base: ResponseCache
    private let counter = Atomic(0)

    init(base: ResponseCache) { self.base = base }

    var count: Int { counter.load(ordering: .relaxed) }

    var clientState: ClientState {
      ClientState(
        activity: ActivityReference(),
        spaces: SpaceRecords(hasEquivalents: { [base] in base.tiers.mayHaveEquivalentURLs }) { [self] key in
          if key.isSearchSpace { counter.add(1, ordering: .relaxed) }
          return base.tiers.lookup(key) { _ in true }?.fields
        },
        effectOfRemovals: { _, _ in .none })
    }
  }

  private struct Origin: Transport {
    func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
      var fields: HeaderFields = ["Cache-Control": "max-age=600"]
      if request.head.url.path == "/nvs" { fields.append(name: "No-Vary-Search", value: "params") }
      return IncomingResponse(
        head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data("body".utf8)))
    }
  }

  @Test("A miss in a cache without a store makes no second lookup until a response with the field is stored")
  func withoutStore() async throws {
    let fixture = try CacheFixture(disk: 0)
    #expect(fixture.cache.core.connection.openStore.load() == nil)
    let storage = CountingStorage(base: fixture.cache.storage)
    let client = CachingClient(storage: storage, clock: { [clock = fixture.clock] in clock.now })
    func source(_ path: String) async throws -> ResponseSource {
      let url = try #require(URL(string: "http://a.example" + path))
      return try await client.respond(to: CachingClientRequest(head: RequestHead(url: url)), over: Origin()).source
    }
    for path in ["/a", "/b?x=1", "/b?x=2"] { #expect(try await source(path) == .miss) }
    #expect(storage.count == 0)
    #expect(try await source("/nvs?x=1") == .miss)
    let count = storage.count
    #expect(try await source("/nvs?x=2") == .hit)
    #expect(storage.count == count + 1)
  }

  @Test("A response with No-Vary-Search that is only in memory answers equivalent URLs", arguments: [0, 16 << 20])
  func onlyInMemory(disk: Int) async throws {
    try await withCache(disk: disk) { _ in
      Reply(200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", "params")], "body")
    } _: { fixture, origin in
      let delegate = RecordingDelegate(willCache: {
        CachedURLResponse(response: $0.response, data: $0.data, storagePolicy: .allowedInMemoryOnly)
      })
      let session = fixture.session(delegate: delegate)
      for query in ["x=1", "x=2"] { await delegate.run(session.dataTask(with: origin.url("/a?\(query)"))) }
      #expect(origin.requestCount == 1)
    }
  }
}
