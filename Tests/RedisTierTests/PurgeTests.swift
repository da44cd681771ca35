import CacheActivity
import CacheModel
import CachingClient
import Foundation
import FoundationNetworking
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

@testable import LMDBURLCache
@testable import RedisTier

/// A cache without a fleet that keeps another cache in step.
private final class CacheWithCompanion: LMDBURLCache, @unchecked Sendable {
  let companion = Mutex<LMDBURLCache?>(nil)

  override func removeAllCachedResponses() {
    super.removeAllCachedResponses()
    companion.withLock { $0 }?.removeAllCachedResponses()
  }

  override func removeCachedResponse(for request: URLRequest) {
    super.removeCachedResponse(for: request)
    companion.withLock { $0 }?.removeCachedResponse(for: request)
  }
}

@Suite("Purges of a fleet", .needsRedis, .timeLimit(.minutes(2)))
struct PurgeTests {
  static let scopes: [@Sendable (URL) -> PurgeScope] = [
    { _ in .all }, { _ in .since(Date(timeIntervalSinceNow: -60)) }, { .host($0.host!) },
    { .prefix($0.deletingLastPathComponent()) }, { .group("g", origin: $0) }, { .url($0) },
    { _ in .tag("g") }, { .tag("g", origin: $0) },
  ]

  @Test("A purge of each kind reaches the other machines before it returns")
  func kinds() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/dir/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    for scope in Self.scopes {
      let before = try await other.get(url)
      #expect(try await other.get(url) == before)
      let result = try await one.cache.purge(scope(url))
      #expect(result == FleetPurgeResult(confirmedCount: 2, expiredLeaseCount: 0))
      #expect(!other.cache.isCached(url))
      #expect(try await other.get(url) != before)
    }
    // A scope that covers nothing of it.
    let kept = try await other.get(url)
    try await one.cache.purge(.host("example.com"))
    #expect(try await other.get(url) == kept)
  }

  @Test("A soft purge has the other machines validate their responses")
  func soft() async throws {
    let fleet = try FleetFixture()
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let before = try await other.get(url)
    let result = try await one.cache.purge(.url(url), mode: .soft)
    #expect(result == FleetPurgeResult(confirmedCount: 2, expiredLeaseCount: 0))
    #expect(other.cache.isCached(url))
    #expect(try await other.get(url) != before)
    #expect(fleet.origin.requests.last?["If-None-Match"] == "\"\(before)\"")
  }

  @Test("Methods of URLCache and unsafe requests remove on other machines, too")
  func otherRemovals() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let removals: [(LMDBURLCache) async throws -> Void] = [
      { $0.removeAllCachedResponses() }, { $0.removeCachedResponse(for: URLRequest(url: url)) },
      { $0.removeCachedResponses(inGroup: "g", origin: url) },
      {
        var request = URLRequest(url: url)
        request.httpMethod = "DELETE"
        _ = try await $0.data(for: request)
      },
    ]
    for removal in removals {
      _ = try await other.get(url)
      #expect(other.cache.isCached(url))
      try await removal(one.cache)
      await wait { !other.cache.isCached(url) }
    }
  }

  @Test("A removal that an override makes in another cache, which belongs to a fleet, reaches that fleet")
  func companion() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let cache = try CacheWithCompanion(
      directory: fleet.directory.appendingPathComponent("3"), memoryCapacity: 1 << 20, diskCapacity: 4 << 20)
    cache.companion.withLock { $0 = one.cache }
    let removals: [(LMDBURLCache) async throws -> Void] = [
      { try await $0.purge(.all) },
      {
        var request = URLRequest(url: url)
        request.httpMethod = "DELETE"
        _ = try await $0.data(for: request)
      },
    ]
    for removal in removals {
      _ = try await other.get(url)
      try await removal(cache)
      await wait { !other.cache.isCached(url) }
    }
  }

  @Test("A purge does not wait longer than the lease of a machine that cannot reach Redis, and says so")
  func partitioned() async throws {
    let pair = try await ProxiedMachine()
    let (one, cut, url) = (pair.one, pair.other, pair.url)
    pair.proxy.cut()
    let result = try await one.cache.purge(.url(url))
    #expect(result == FleetPurgeResult(confirmedCount: 1, expiredLeaseCount: 1))
    #expect(!cut.hasLease)
    // Without a lease the stored response is validated with its ETag.
    #expect(cut.cache.cachedResponse(for: URLRequest(url: url)) == nil)
    #expect(try await cut.get(url) != pair.body)
    #expect(pair.fleet.origin.requests.last?["If-None-Match"] == "\"\(pair.body)\"")
    // The machine is no longer registered, so the next purge does not wait for it.
    #expect(try await one.cache.purge(.url(url)) == FleetPurgeResult(confirmedCount: 1, expiredLeaseCount: 0))
    pair.proxy.restore()
    await wait { cut.hasLease }
    #expect(!cut.cache.isCached(url))
  }

  @Test(
    "A purge by date covers what a machine stored whose clock differs within the tolerance", arguments: [4.0, 3600])
  func sinceByOtherClocks(_ seconds: Double) async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    func machine(_ name: String, _ offset: Double) async throws -> Machine {
      let tier = try fleet.tier { $0.wallClock = { Date().timeIntervalSince1970 + offset } }
      let directory = fleet.directory.appendingPathComponent(name)
      let machine = try Machine(directory, tier) { $0.clock = { Date() + offset } }
      await wait { machine.hasLease }
      return machine
    }
    let (ahead, behind) = (try await machine("1", seconds), try await machine("2", -4))
    let before = try await behind.get(url)
    // Everything of the last minute, by the clock of the first machine.
    try await ahead.cache.purge(.since(Date() + seconds - 60))
    #expect(try await behind.get(url) != before)
    let later = try await behind.get(url)
    // Nothing but a second, which is less than the clocks differ by.
    try await ahead.cache.purge(.since(Date() + seconds - 1))
    #expect(try await behind.get(url) != later)
  }

  @Test("A machine without a lease serves nothing stored, with any policy, and validates it instead")
  func cutOff() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let machine = try await fleet.machine("1")
    _ = try await machine.get(url)
    fleet.redis.kill()
    await wait { !machine.hasLease }
    let count = fleet.origin.requestCount
    var request = URLRequest(url: url)
    request.cachePolicy = .returnCacheDataElseLoad
    _ = try await machine.cache.data(for: request)
    #expect(fleet.origin.requestCount == count + 1)
    request.cachePolicy = .returnCacheDataDontLoad
    await #expect(throws: URLError.self) { try await machine.cache.data(for: request) }
    request.cachePolicy = .useProtocolCachePolicy
    request.setValue("only-if-cached", forHTTPHeaderField: "Cache-Control")
    #expect((try await machine.cache.data(for: request).1 as? HTTPURLResponse)?.statusCode == 504)
    #expect(machine.cache.cachedResponse(for: URLRequest(url: url)) == nil)
    let error = await #expect(throws: RedisTierError.self) { try await machine.cache.purge(.all) }
    #expect(error?.code == .notPosted)
    try fleet.redis.start()
    await wait { machine.hasLease }
  }

  @Test("A purge ends at its time limit if Redis does not reply, before or after it was posted")
  func timeLimit() async throws {
    let fleet = try FleetFixture {
      $0.lease = .seconds(600)
      $0.commandTimeout = .seconds(600)
    }
    let one = try await fleet.machine("1")
    fleet.redis.suspend()
    let error = await #expect(throws: RedisTierError.self) {
      try await one.cache.purge(.all, timeout: .milliseconds(20))
    }
    #expect(error?.code == .notPosted)
    fleet.redis.resume()
    withExtendedLifetime(one) {}
    // The follower of another machine receives a purge, so it is posted.
    let file = try FleetFile(directory: try fleet.makeDirectory("2"), settings: try fleet.tier().settings)
    let node = FleetNode(
      storeID: { 7 },
      remove: {
        if $0.contains(Removal(.host("a.example"))) { fleet.redis.suspend() }
        return true
      }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: try fleet.tier().settings, file: file, node: node)
    #expect(follower.start())
    defer {
      fleet.redis.resume()
      follower.stop()
    }
    await wait { file.isLeaseValid }
    await #expect(throws: RedisTierError.self) {
      try await one.cache.purge(.host("a.example"), timeout: .seconds(1))
    }
    fleet.redis.resume()
    withExtendedLifetime(one) {}
  }

  @Test("A machine that leaves is no longer waited for")
  func leave() async throws {
    let fleet = try FleetFixture()
    let one = try await fleet.machine("1")
    var other: Machine? = try await fleet.machine("2")
    #expect(try await one.cache.purge(.all)?.confirmedCount == 2)
    withExtendedLifetime(other) {}
    other = nil
    try await wait { try fleet.redis.command("ZCARD", "lmuc:{default}:acks") == .integer(1) }
    #expect(try await one.cache.purge(.all) == FleetPurgeResult(confirmedCount: 1, expiredLeaseCount: 0))
  }

  @Test("A machine that missed purges applies them when it returns")
  func missed() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    var other: Machine? = try await fleet.machine("2")
    let before = try await other!.get(url)
    other!.cache.flush()
    other = nil
    try await one.cache.purge(.url(url))
    let returned = try await fleet.machine("2")
    #expect(!returned.cache.isCached(url))
    #expect(try await returned.get(url) != before)
    #expect(returned.lines.all == [])
  }

  @Test("A directory of a fleet opens only with that fleet")
  func otherFleets() async throws {
    let fleet = try FleetFixture()
    _ = try await fleet.machine("1")
    let directory = fleet.directory.appendingPathComponent("1")
    #expect(throws: StoreError.self) {
      try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20)
    }
    let error = #expect(throws: RedisTierError.self) {
      try Machine(directory, fleet.tier { $0.fleetName = "other" })
    }
    #expect(error?.code == .unusableDirectory)
    #expect(throws: StoreError.self) {
      var options = LMDBURLCache.Options()
      options.fleet = try fleet.tier()
      _ = try LMDBURLCache(
        directory: fleet.directory.appendingPathComponent("2"), memoryCapacity: 1 << 20, diskCapacity: 0,
        options: options)
    }
  }

  @Test("A machine ends its lease when another lease was set for its fleet after Redis had lost its data")
  func otherLeaseAfterLoss() async throws {
    let fleet = try FleetFixture { $0.lease = .seconds(600) }
    let one = try await fleet.machine("1")
    // It then waits for purges for minutes, so the other one begins the epoch.
    try await wait { try fleet.redis.command("CLIENT", "LIST").asText().contains("cmd=xread") }
    try fleet.redis.command("FLUSHALL")
    let other = try Machine(fleet.directory.appendingPathComponent("2"), fleet.tier { $0.lease = .seconds(1) })
    await wait { other.hasLease }
    #expect(one.hasLease)
    try fleet.redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await wait { !one.hasLease }
    #expect(one.lines.all.contains { $0.contains("another lease") })
  }

  @Test("A machine with another lease or secret than its fleet gets no lease")
  func otherSettings() async throws {
    let fleet = try FleetFixture()
    let one = try await fleet.machine("1")
    let tiers = [
      try fleet.tier { $0.lease = .seconds(2) },
      try RedisTier(url: fleet.redis.url, secret: Data(count: 32), configuration: fleet.configuration),
    ]
    for (index, tier) in tiers.enumerated() {
      let other = try Machine(fleet.directory.appendingPathComponent("other\(index)"), tier)
      await wait { !other.lines.all.isEmpty }
      #expect(other.lines.all.count == 1)
      #expect(!other.hasLease)
      let error = await #expect(throws: RedisTierError.self) { try await other.cache.purge(.all) }
      #expect(error?.code == .otherFleetSettings)
    }
    #expect(one.hasLease)
  }
}
