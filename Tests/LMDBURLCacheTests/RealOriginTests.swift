import Foundation
import FoundationNetworking
import LMDBURLCache
import Testing

/// Validation by the web servers that users have, whose 304s differ in what they name.
@Suite("Real web servers", .endsFixtures, .serialized)
struct RealOriginTests {
  private static let text = String(repeating: "The same line, which compresses well.\n", count: 100)

  /// A cache with the real time, which the servers use for their dates.
  private func withOrigin(
    _ origin: RealOrigin, _ body: (LMDBURLCache, RealOriginProcess) async throws -> Void
  ) async throws {
    let server = try RealOriginProcess(origin)
    let fixture = try CacheFixture { $0.clock = { Date() } }
    try await body(fixture.cache, server)
  }

  private static let lastMonth = Date(timeIntervalSinceNow: -30 * 86_400)

  /// Rows 70, 71 and 72.
  @Test("One validation by nginx makes a response fresh", .needs(RealOrigin.nginx[0]), arguments: RealOrigin.nginx)
  func nginx(_ origin: RealOrigin) async throws { try await validate(origin) }

  /// Rows 70, 71 and 72.
  @Test("One validation by Apache makes a response fresh", .needs(RealOrigin.apache[0]), arguments: RealOrigin.apache)
  func apache(_ origin: RealOrigin) async throws { try await validate(origin) }

  /// Rows 70, 71 and 72.
  @Test("One validation by Caddy makes a response fresh", .needs(RealOrigin.caddy[0]), arguments: RealOrigin.caddy)
  func caddy(_ origin: RealOrigin) async throws { try await validate(origin) }

  /// Rows 70, 71 and 72.
  @Test(
    "One validation by lighttpd makes a response fresh", .needs(RealOrigin.lighttpd[0]), arguments: RealOrigin.lighttpd)
  func lighttpd(_ origin: RealOrigin) async throws { try await validate(origin) }

  /// Rows 70, 71 and 72.
  @Test("One validation by Python's server makes a response fresh", .needs(RealOrigin.python))
  func python() async throws { try await validate(RealOrigin.python) }

  private func validate(_ origin: RealOrigin) async throws {
    try await withOrigin(origin) { (cache, server) async throws in
      try server.write(Self.text, to: "a.txt", modified: Self.lastMonth)
      let request = URLRequest(url: server.url("a.txt"))
      func load() async throws -> LoadResult {
        let result = try await cache.load(request)
        #expect(result.data.text == Self.text)
        return result
      }
      #expect(try await load().source == .miss)
      #expect(try await load().source == .hit)
      for _ in 0..<2 {
        try await cache.purge(.all, mode: .soft)
        let validated = try await load()
        #expect(validated.source == .revalidated)
        for _ in 0..<2 {
          let hit = try await load()
          #expect(hit.source == .hit)
          // nginx numbers its responses, also a 304.
          #expect(hit.response.field("X-Request") == validated.response.field("X-Request"))
        }
      }
      // A changed file has another validator, or a later date.
      try server.write("Changed. " + Self.text, to: "a.txt", modified: Self.lastMonth + 86_400)
      try await cache.purge(.all, mode: .soft)
      let changed = try await cache.load(request)
      #expect(changed.source == .miss && changed.data.text == "Changed. " + Self.text)
    }
  }
}
