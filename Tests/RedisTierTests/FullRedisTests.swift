import Foundation
import FoundationNetworking
import LoopbackOrigin
import Testing

@testable import LMDBURLCache
@testable import RedisTier

@Suite("A Redis without memory", .needsRedis, .timeLimit(.minutes(1)))
struct FullRedisTests {
  static let limit = 8_000_000

  private static func fleet(_ policy: String) throws -> FleetFixture {
    try FleetFixture(
      { $0.lease = .milliseconds(500) },
      redisOptions: ["--maxmemory", "\(limit)", "--maxmemory-policy", policy]
    ) { request in
      Reply(
        200, [("Cache-Control", "max-age=600"), ("ETag", "\"\(request.number)\"")],
        parts: [
          .text("\(request.number)"), .bytes(Data(count: request.path.hasPrefix("/large") ? 200_000 : 0)),
        ])
    }
  }

  private static func usedMemory(_ fleet: FleetFixture) throws -> Int {
    let info = try fleet.redis.command("INFO", "memory").asText()
    let line = try #require(info.split(whereSeparator: \.isNewline).first { $0.hasPrefix("used_memory:") })
    return try #require(Int(line.dropFirst("used_memory:".count)))
  }

  /// Waits until no machine holds a fetch lock, so that all stores have ended.
  private static func waitForStores(_ fleet: FleetFixture) async throws {
    try await wait { try fleet.redis.command("KEYS", "lmuc:*:l:*").asElements().isEmpty }
  }

  @Test("Leases are renewed, machines join and purges hold while other data leaves Redis no memory")
  func foreignData() async throws {
    let fleet = try Self.fleet("noeviction")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let url = fleet.origin.url("/a")
    let before = try await other.get(url)
    // The limit counts the buffers of connections, too, which can shrink afterwards.
    let connection = try fleet.redis.connect()
    try connection.command(["CONFIG", "SET", "maxmemory", "1000000"])
    let error = #expect(throws: RedisTierError.self) { try connection.command(["SET", "x", "x"]) }
    #expect(error?.serverCode == "OOM" || error?.code != .serverError)
    let counts = other.counts
    await wait { other.counts.leaseRenewals > counts.leaseRenewals + 4 || other.counts.reconnects > counts.reconnects }
    #expect(other.hasLease)
    #expect(other.counts.cutOffMilliseconds == counts.cutOffMilliseconds)
    let third = try Machine(fleet.directory.appendingPathComponent("3"), fleet.tier())
    await wait { third.hasLease }
    let result = try await one.cache.purge(.url(url))
    #expect(result?.confirmedCount == 3)
    #expect(try await other.get(url) != before)
    // Misses go to the origin without a lock, and are not failures.
    #expect(try await third.get(fleet.origin.url("/b")) == "2")
    #expect(third.counts.failedLookups == 0)
  }

  @Test("Shared responses fill Redis up to its limit only, and what it has is still found")
  func ownData() async throws {
    let fleet = try Self.fleet("noeviction")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    for index in 0..<60 {
      _ = try await one.get(fleet.origin.url("/large/\(index)"))
      try await Self.waitForStores(fleet)
    }
    // The last command before the limit, and the buffers of connections, count beyond it.
    let usedMemory = try Self.usedMemory(fleet)
    #expect(usedMemory < Self.limit + 2_000_000)
    let stored = try fleet.objectKeys().count
    #expect((10..<50).contains(stored))
    #expect(one.counts.sharedStores == stored)
    #expect(one.counts.failedLookups == 0)
    #expect(try await other.get(fleet.origin.url("/large/0")).hasPrefix("0"))
    #expect(fleet.origin.requestCount == 60)
    #expect(other.hasLease)
    // With memory, responses are shared again.
    try fleet.redis.command("CONFIG", "SET", "maxmemory", "\(2 * Self.limit)")
    let last = fleet.origin.url("/large/last")
    _ = try await one.get(last)
    try await Self.waitForStores(fleet)
    #expect(try await other.get(last).hasPrefix("60"))
  }

  @Test("With volatile-lru, Redis evicts shared responses for new ones, and nothing else")
  func eviction() async throws {
    let fleet = try Self.fleet("volatile-lru")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let epoch = one.membership.file.tag >> 48
    for index in 0..<60 {
      _ = try await one.get(fleet.origin.url("/large/\(index)"))
      try await Self.waitForStores(fleet)
    }
    #expect(try fleet.objectKeys().count < 50)
    #expect(try await other.get(fleet.origin.url("/large/59")).hasPrefix("59"))
    #expect(fleet.origin.requestCount == 60)
    #expect(try await one.cache.purge(.host("example.com"))?.confirmedCount == 2)
    #expect(one.membership.file.tag >> 48 == epoch)
  }
}
