import Foundation
import FoundationNetworking
import LoopbackOrigin
import Testing

@testable import LMDBURLCache

/// A validation that goes wrong, such as a 304 with a lifetime of a year, is undone by a purge since its time.
@Suite("Purges of what a validation has updated")
struct UpdatePurgeTests {
  @Test(
    "A purge by date covers a response that a 304 has updated since, in each tier",
    arguments: SoftPurgeTests.Tiers.allCases,
    [PurgeMode.hard, .soft])
  func updatedBy304(_ tiers: SoftPurgeTests.Tiers, _ mode: PurgeMode) async throws {
    try await withCache(memory: tiers.memory, disk: tiers.disk) { request in
      request["If-None-Match"] == nil
        ? Reply(200, [("ETag", "\"1\""), ("Cache-Control", "max-age=5")], "body")
        : Reply(304, [("ETag", "\"1\""), ("Cache-Control", "max-age=31536000")])
    } _: { fixture, origin in
      let request = URLRequest(url: origin.url("/a"))
      #expect(try await fixture.cache.load(request).source == .network)
      if tiers != .memory { #expect(fixture.cache.flush()) }
      fixture.clock.advance(by: 100)
      #expect(try await fixture.cache.load(request).source == .revalidated)
      let updatedAt = fixture.clock.now
      fixture.clock.advance(by: 100)
      #expect(try await fixture.cache.load(request).source == .store)
      try await fixture.cache.purge(.since(updatedAt), mode: mode)
      #expect(try await fixture.cache.load(request).source == .store)
      try await fixture.cache.purge(.since(updatedAt - 1), mode: mode)
      #expect(try await fixture.cache.load(request).source == (mode == .hard ? .network : .revalidated))
    }
  }

  @Test("removeCachedResponses(since:) covers a response that a HEAD has updated since, also in another cache")
  func updatedByHead() async throws {
    try await withCache(memory: 4 << 20, disk: 16 << 20) { request in
      Reply(
        200, [("ETag", "\"1\""), ("Cache-Control", request.method == "HEAD" ? "max-age=31536000" : "max-age=5")], "body"
      )
    } _: { fixture, origin in
      let url = origin.url("/a")
      let other = try LMDBURLCache(
        directory: fixture.directory, memoryCapacity: 4 << 20, diskCapacity: 16 << 20)
      _ = try await fixture.cache.load(URLRequest(url: url))
      fixture.clock.advance(by: 100)
      var head = URLRequest(url: url)
      head.httpMethod = "HEAD"
      _ = try await fixture.cache.load(head)
      #expect(try await fixture.cache.load(URLRequest(url: url)).source == .store)
      #expect(other.isCached(url))
      fixture.cache.removeCachedResponses(since: fixture.clock.now - 50)
      #expect(!fixture.cache.isCached(url) && !other.isCached(url))
    }
  }
}
