import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// The numbers of stored responses that a program or an operator sees.
@Suite("Number of stored responses", .timeLimit(.minutes(1)))
struct ResponseCountTests {
  /// Loads responses of which each kind is in a key space: of users, of queries, and of equivalent URLs.
  private func load(_ cache: LMDBURLCache, from origin: LoopbackOrigin) async throws {
    for number in 0..<5 {
      var user = URLRequest(url: origin.url("/me"))
      user.setValue("Bearer \(number)", forHTTPHeaderField: "Authorization")
      var query = URLRequest(url: origin.url("/search"))
      query.httpMethod = "QUERY"
      query.httpBody = Data(#"{"page": \#(number)}"#.utf8)
      query.setValue("application/json", forHTTPHeaderField: "Content-Type")
      let equivalent = URLRequest(url: origin.url("/list?page=\(number)&utm=\(number)"))
      for request in [user, query, equivalent, URLRequest(url: origin.url("/plain/\(number)"))] {
        _ = try await cache.data(for: request)
      }
    }
  }

  private func expect(
    _ count: Int, in cache: LMDBURLCache, memory: Int, _ sourceLocation: SourceLocation = #_sourceLocation
  ) throws {
    #expect(cache.flush())
    let statistics = cache.statistics
    #expect(statistics.disk?.entryCount == count, sourceLocation: sourceLocation)
    if memory > 0 { #expect(statistics.memoryEntryCount == count, sourceLocation: sourceLocation) }
    #expect(Array(cache.entries()).count == count, sourceLocation: sourceLocation)
    #expect(cache.prometheusText().contains("urlcache_entries{"), sourceLocation: sourceLocation)
    #expect(
      cache.prometheusText().split(separator: "\n").contains {
        $0.hasPrefix("urlcache_entries{") && $0.hasSuffix(" \(count)")
      },
      sourceLocation: sourceLocation)
  }

  @Test("Records of key spaces do not count", arguments: [0, 4 << 20])
  func spaces(memory: Int) async throws {
    try await withCache(memory: memory, disk: 16 << 20) { _ in
    } origin: { request in
      var fields = [("Cache-Control", "max-age=600"), ("Content-Type", "text/plain")]
      if request.path == "/list" { fields.append(("No-Vary-Search", #"params=("utm")"#)) }
      return Reply(200, fields, "body")
    } _: { fixture, origin in
      try await load(fixture.cache, from: origin)
      try expect(20, in: fixture.cache, memory: memory)
      // The second time, everything is a hit, and the records exist.
      try await load(fixture.cache, from: origin)
      try expect(20, in: fixture.cache, memory: memory)
      try fixture.reopen(memory: memory, disk: 16 << 20)
      try expect(20, in: fixture.cache, memory: 0)
      try await fixture.cache.purge(.url(origin.url("/me")))
      try await load(fixture.cache, from: origin)
      #expect(origin.requestCount == 25)
      #expect(fixture.cache.flush())
      fixture.cache.core.store?.applyRemovals()
      fixture.cache.removeAllCachedResponses()
      try await load(fixture.cache, from: origin)
      #expect(fixture.cache.flush())
      #expect(fixture.cache.core.store?.checkInvariants() == [])
    }
  }

  @Test("The count stays right while responses are evicted")
  func evictions() async throws {
    let body = String(repeating: "x", count: 20_000)
    try await withCache(memory: 0, disk: 2 << 20) { _ in
    } origin: { _ in
      Reply(200, [("Cache-Control", "max-age=600"), ("Content-Type", "text/plain")], body)
    } _: { fixture, origin in
      // Each URL has a space with one response.
      for number in 0..<300 {
        var request = URLRequest(url: origin.url("/\(number)"))
        request.setValue("Bearer 1", forHTTPHeaderField: "Authorization")
        _ = try await fixture.cache.data(for: request)
      }
      #expect(fixture.cache.flush())
      let store = try #require(fixture.cache.core.store)
      #expect(store.statistics.evictions > 0)
      #expect(store.checkInvariants() == [])
    }
  }
}
