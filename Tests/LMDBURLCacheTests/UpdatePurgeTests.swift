import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import LoopbackOrigin
import Testing

/// A validation that goes wrong, such as a 304 with a lifetime of a year, is undone by a purge since its time.
@Suite("Purges of what a validation has updated", .endsFixtures)
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
      #expect(try await fixture.cache.load(request).source == .miss)
      if tiers != .memory { #expect(fixture.cache.flush()) }
      fixture.clock.advance(by: 100)
      #expect(try await fixture.cache.load(request).source == .revalidated)
      let updatedAt = fixture.clock.now
      fixture.clock.advance(by: 100)
      #expect(try await fixture.cache.load(request).source == .hit)
      try await fixture.cache.purge(.since(updatedAt), mode: mode)
      #expect(try await fixture.cache.load(request).source == .hit)
      try await fixture.cache.purge(.since(updatedAt - 1), mode: mode)
      #expect(try await fixture.cache.load(request).source == (mode == .hard ? .miss : .revalidated))
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
      #expect(try await fixture.cache.load(URLRequest(url: url)).source == .hit)
      #expect(other.isCached(url))
      fixture.cache.removeCachedResponses(since: fixture.clock.now - 50)
      #expect(!fixture.cache.isCached(url) && !other.isCached(url))
    }
  }

  /// How another process updates a response.
  enum Update: String, CaseIterable, Codable, Sendable {
    case notModified, head, complete

    static func reply(to request: RecordedRequest) -> Reply {
      let isValidation = request["If-None-Match"] != nil
      let fields = [
        ("ETag", "\"1\""), ("Cache-Control", "max-age=\(isValidation || request.method == "HEAD" ? 31_536_000 : 600)"),
      ]
      let isNotModified = isValidation && request.path != "/complete" && request.method != "HEAD"
      return isNotModified ? Reply(304, fields) : Reply(200, fields, "body")
    }
  }

  /// Updates the response of a URL in another process, without a copy in its memory, and purges what was updated since.
  private func updateInOtherProcess(
    _ request: URLRequest, _ update: Update, of fixture: CacheFixture, purging mode: PurgeMode? = nil
  ) async {
    let user = request.value(forHTTPHeaderField: "Authorization")
    await #expect(processExitsWith: .success) {
      [
        path = fixture.directory.path as String, now = fixture.clock.now as Date, url = request.url! as URL,
        user = user as String?, update = update as Update, purges = (mode != nil) as Bool,
        isSoft = (mode == .soft) as Bool
      ] in
      var options = LMDBURLCache.Options()
      options.clock = { now }
      let cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
      var request = URLRequest(url, method: update == .head ? "HEAD" : "GET", ["Cache-Control": "no-cache"])
      if let user { request.setValue(user, forHTTPHeaderField: "Authorization") }
      let source = try await cache.load(request).source
      guard source == (update == .notModified ? .revalidated : .miss), cache.flush() else { exit(1) }
      if purges { try await cache.purge(.since(now - 1), mode: isSoft ? .soft : .hard) }
    }
  }

  @Test(
    "A purge by date reaches a copy in memory of a response that another process has updated since, and no other",
    arguments: Update.allCases, [PurgeMode.hard, .soft])
  func copyInMemory(_ update: Update, _ mode: PurgeMode) async throws {
    try await withCache {
      Update.reply(to: $0)
    } _: { (fixture, origin) async throws in
      for user in [nil, "Bearer 1"] {
        var request = URLRequest(url: origin.url("/\(update)"))
        var other = URLRequest(url: origin.url("/other"))
        for value in [user].compactMap({ $0 }) {
          request.setValue(value, forHTTPHeaderField: "Authorization")
          other.setValue(value, forHTTPHeaderField: "Authorization")
        }
        func load(_ request: URLRequest) async throws -> (source: ResponseSource, tier: CacheProvenance.Tier?) {
          let result = try await fixture.cache.load(request)
          return (result.source, result.response.cacheProvenance?.tier)
        }
        for request in [request, other] {
          #expect(try await load(request).source == .miss)
          #expect(fixture.cache.flush())
          #expect(try await load(request).tier == .memory)
        }
        fixture.clock.advance(by: 100)
        await updateInOtherProcess(request, update, of: fixture, purging: mode)
        #expect(try await load(request).source == (mode == .soft && update != .complete ? .revalidated : .miss))
        // The record of the other response has decided.
        #expect(try await load(other) == (.hit, .disk))
        for request in [request, other] { #expect(try await load(request) == (.hit, .memory)) }
      }
    }
  }

  @Test("A purge by date reaches a copy in memory that was validated after another process had updated its record")
  func validatedCopy() async throws {
    try await withCache {
      Update.reply(to: $0)
    } _: { (fixture, origin) async throws in
      let request = URLRequest(url: origin.url("/notModified"))
      #expect(try await fixture.cache.load(request).source == .miss)
      #expect(fixture.cache.flush())
      fixture.clock.advance(by: 100)
      await updateInOtherProcess(request, .notModified, of: fixture)
      let validation = URLRequest(request.url!, ["Cache-Control": "no-cache"])
      #expect(try await fixture.cache.load(validation).source == .revalidated)
      fixture.clock.advance(by: 100)
      await updateInOtherProcess(request, .notModified, of: fixture, purging: .hard)
      #expect(try await fixture.cache.load(request).source == .miss)
    }
  }

  @Test("A purge by date judges a response that is only in memory by its own date", arguments: [false, true])
  func onlyInMemory(afterDisk: Bool) async throws {
    let fixture = try CacheFixture()
    let url = try #require(URL(string: "http://a.example/"))
    let response = cached(url)
    fixture.cache.storeCachedResponse(
      afterDisk
        ? response
        : CachedURLResponse(
          response: response.response, data: response.data, storagePolicy: .allowedInMemoryOnly),
      for: URLRequest(url: url))
    if afterDisk { fixture.cache.diskCapacity = 0 }
    let storedAt = fixture.clock.now
    fixture.clock.advance(by: 10)
    for mode in [PurgeMode.hard, .soft] {
      try await fixture.cache.purge(.since(storedAt), mode: mode)
      #expect(try await fixture.cache.load(URLRequest(url: url)).source == .hit)
    }
    try await fixture.cache.purge(.since(storedAt - 1), mode: .soft)
    #expect(fixture.cache.isCached(url))
    let stale = try await fixture.cache.load(URLRequest(url, policy: .returnCacheDataDontLoad))
    #expect(stale.source == .stale)
    try await fixture.cache.purge(.since(storedAt - 1))
    #expect(!fixture.cache.isCached(url))
  }
}
