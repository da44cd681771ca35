import Foundation
import FoundationNetworking
import Glibc
import Testing

@testable import LMDBURLCache
@testable import RedisTier

@Suite("A failover of Redis", .needsRedis, .timeLimit(.minutes(1)))
struct FailoverTests {
  /// An address that leads to one of two servers, as a name or a proxy does that follows Sentinel.
  final class SwitchedAddress: Sendable {
    private let path = "/tmp/address-\(RandomID().text.prefix(12))"
    var url: String { "unix://" + path }

    init(to server: RedisServerProcess) throws {
      try lead(to: server)
    }

    deinit { unlink(path) }

    func lead(to server: RedisServerProcess) throws {
      unlink(path)
      guard symlink(server.socketPath, path) == 0 else { throw TestError("no link") }
    }
  }

  @Test("When an address leads to the promoted replica, machines go on there, and purges hold")
  func promotedReplica() async throws {
    let port = try freePort()
    let fleet = try FleetFixture(
      { $0.lease = .seconds(2) }, redisOptions: ["--port", "\(port)", "--repl-diskless-sync-delay", "0"])
    let replica = try RedisServerProcess(["--replicaof", "127.0.0.1", "\(port)"])
    let address = try SwitchedAddress(to: fleet.redis)
    let tier = try RedisTier(url: address.url, secret: testSecret, configuration: fleet.configuration)
    let one = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    let other = try Machine(fleet.directory.appendingPathComponent("2"), tier)
    await wait { one.hasLease && other.hasLease }
    try fleet.mature()
    let url = fleet.origin.url("/a")
    try await one.cache.purge(.host("example.com"))
    let before = try await other.get(url)
    try await fleet.waitForObjects(1)
    // The replica has everything.
    try await wait { try replica.command("KEYS", "lmuc:*:o:*").asElements().count == 1 }
    let epoch = other.membership.file.tag >> 48
    fleet.redis.kill()
    try replica.command("REPLICAOF", "NO", "ONE")
    try address.lead(to: replica)
    await wait { [one, other].allSatisfy { $0.membership.file.tag >> 48 != epoch && $0.hasLease } }
    // Their leases were valid, so that nothing became suspect.
    #expect(other.counts.lostLogs == 0)
    #expect(try await other.get(url) == before)
    try replica.command("HSET", "lmuc:{default}:ctl", "mature", "1")
    #expect(try await one.cache.purge(.url(url))?.confirmedCount == 2)
    #expect(try await other.get(url) != before)
  }

  @Test("A server in cluster mode is refused, also if it has all slots")
  func cluster() async throws {
    let port = try freePort()
    let fleet = try FleetFixture(redisOptions: ["--port", "\(port % 50_000 + 1024)", "--cluster-enabled", "yes"])
    try fleet.redis.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    try await wait { try fleet.redis.command("CLUSTER", "INFO").asText().contains("cluster_state:ok") }
    let machine = try Machine(fleet.directory.appendingPathComponent("1"), fleet.tier())
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains("the server runs in cluster mode. Give the address of a server") == true)
    #expect(!machine.hasLease)
    let error = await #expect(throws: RedisTierError.self) { try await machine.cache.purge(.all) }
    #expect(error?.code == .cluster)
  }
}
