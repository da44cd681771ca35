import Foundation
import FoundationNetworking
import Glibc
import LoopbackOrigin
import Testing

@testable import LMDBURLCache
@testable import RedisTier

@Suite("Sentinel", .needsRedis, .timeLimit(.minutes(1)))
struct SentinelTests {
  /// Two servers, of which the second one replicates the first, and a fleet.
  private final class Servers: Sendable {
    let fleet: FleetFixture
    let other: RedisServerProcess
    let port: UInt16
    let otherPort: UInt16

    init(_ configure: (inout RedisTier.Configuration) -> Void = { _ in }) throws {
      let (port, otherPort) = (try freePort(), try freePort())
      (self.port, self.otherPort) = (port, otherPort)
      fleet = try FleetFixture(
        {
          $0.lease = .seconds(2)
          configure(&$0)
        },
        redisOptions: ["--port", "\(port)", "--repl-diskless-sync-delay", "0"])
      other = try RedisServerProcess([
        "--port", "\(otherPort)", "--replicaof", "127.0.0.1", "\(port)", "--repl-diskless-sync-delay", "0",
      ])
    }

    func machine(_ name: String, _ url: String) throws -> Machine {
      let tier = try RedisTier(url: url, secret: testSecret, configuration: fleet.configuration)
      return try Machine(fleet.directory.appendingPathComponent(name), tier)
    }

    func waitForReplica() async throws {
      try await wait { try fleet.redis.command("INFO", "replication").asText().contains("state=online") }
    }

    /// Makes the replica a server of its own, while the first one goes on.
    func split() async throws {
      try await waitForReplica()
      try other.command("REPLICAOF", "NO", "ONE")
    }
  }

  private static func epoch(_ machine: Machine) -> UInt64 { machine.membership.file.tag >> 48 }

  @Test("After a failover by Sentinel machines go on with the new primary, and purges hold")
  func failover() async throws {
    let servers = try Servers()
    var sentinels: [RedisServerProcess] = []
    var addresses: [String] = []
    for _ in 0..<3 {
      let port = try freePort()
      addresses.append("127.0.0.1:\(port)")
      sentinels.append(
        try RedisServerProcess(
          sentinel: """
            port \(port)
            sentinel monitor fleet 127.0.0.1 \(servers.port) 2
            sentinel down-after-milliseconds fleet 1000
            sentinel failover-timeout fleet 5000
            """))
    }
    let url = "redis+sentinel://\(addresses.joined(separator: ","))/fleet"
    let (one, two) = (try servers.machine("1", url), try servers.machine("2", url))
    await wait { one.hasLease && two.hasLease }
    try servers.fleet.mature()
    let page = servers.fleet.origin.url("/a")
    let before = try await two.get(page)
    try await servers.waitForReplica()
    for sentinel in sentinels {
      try await wait {
        let text = try sentinel.command("INFO", "sentinel").asText()
        return text.contains("slaves=1,sentinels=3")
      }
    }
    let epochs = [one, two].map(Self.epoch)
    servers.fleet.redis.kill()
    // Within the lease, a removal that cannot be posted holds on its machine, and is posted later.
    await #expect(throws: RedisTierError.self) { try await one.cache.purge(.url(page), timeout: .milliseconds(50)) }
    await wait { [one, two].map(Self.epoch) != epochs && one.hasLease && two.hasLease }
    #expect(try servers.other.command("ROLE").asElements()[0].asText() == "master")
    // If a lease has ended meanwhile, the machine validates everything instead.
    var after = before
    while after == before { after = try await two.get(page) }
    // This one waits for leases of the earlier epoch.
    #expect(try await one.cache.purge(.url(page))?.confirmedCount == 2)
    #expect(try await two.get(page) != after)
    // Machines serve without the origin again, and share.
    let origin = servers.fleet.origin
    for machine in [one, two] {
      var requestCount: Int
      repeat {
        requestCount = origin.requestCount
        _ = try await machine.get(page)
      } while origin.requestCount != requestCount
    }
    let sharedHits = two.counts.sharedHits
    var number = 0
    while two.counts.sharedHits == sharedHits {
      number += 1
      for machine in [one, two] { _ = try await machine.get(origin.url("/shared/\(number)")) }
    }
    // The earlier primary returns, and is a primary until a Sentinel makes it a replica. No machine uses it.
    try servers.fleet.redis.start()
    #expect(try await one.cache.purge(.url(page))?.confirmedCount == 2)
    #expect(try servers.fleet.redis.command("EXISTS", "lmuc:{default}:seen").asInteger() == 0)
  }

  @Test("A machine that is connected to an earlier primary gets no further lease there, and moves to the new one")
  func earlierPrimary() async throws {
    let servers = try Servers()
    let sentinels = [try FakeSentinel(naming: servers.port), try FakeSentinel(naming: servers.port)]
    let machine = try servers.machine("1", FakeSentinel.url(sentinels[0], sentinels[1]))
    await wait { machine.hasLease }
    let epoch = Self.epoch(machine)
    try await servers.split()
    for sentinel in sentinels { sentinel.name(servers.otherPort) }
    // The earlier primary goes on to accept renewals.
    await wait { Self.epoch(machine) != epoch && machine.hasLease }
    #expect(try servers.other.command("HLEN", "lmuc:{default}:seen").asInteger() == 1)
    // The machine may ask between the two Sentinels, which then do not agree.
    let reasons = ["the Sentinels name another server after a failover", "must name one primary"]
    #expect(machine.lines.all.contains { line in reasons.contains { line.contains($0) } })
  }

  @Test("A purge that was posted to an earlier primary is posted to the new one before it returns")
  func purgeOnEarlierPrimary() async throws {
    let servers = try Servers { $0.maximumSharedBodyByteCount = 0 }
    let (sentinel, later) = (try FakeSentinel(naming: servers.port), try FakeSentinel(naming: servers.port))
    let (one, two) = (
      try servers.machine("1", FakeSentinel.url(sentinel)), try servers.machine("2", FakeSentinel.url(later))
    )
    await wait { one.hasLease && two.hasLease }
    try servers.fleet.mature()
    // From now on, the first machine has an idle connection to the server.
    try await one.cache.purge(.host("example.com"))
    let page = servers.fleet.origin.url("/a")
    let before = try await two.get(page)
    let epoch = Self.epoch(two)
    try await servers.split()
    later.name(servers.otherPort)
    await wait { Self.epoch(two) != epoch && two.hasLease }
    // The second machine has left the earlier primary for good, so no purge waits for it there.
    try servers.fleet.redis.command("ZREM", "lmuc:{default}:acks", two.membership.file.node.text)
    try servers.fleet.redis.command("HDEL", "lmuc:{default}:seen", two.membership.file.node.text)
    try servers.fleet.redis.command("HINCRBY", "lmuc:{default}:ctl", "nodes", "-1")
    sentinel.name(servers.otherPort)
    try await one.cache.purge(.url(page))
    #expect(try await two.get(page) != before)
  }

  @Test("One of three Sentinels that names another server misleads no machine")
  func lyingSentinel() async throws {
    let servers = try Servers()
    try await servers.waitForReplica()
    let stranger = try RedisServerProcess(["--port", "\(freePort())"])
    let strangerPort = UInt16(try stranger.command("CONFIG", "GET", "port").asElements()[1].asInteger())
    for port in [servers.otherPort, strangerPort, 1, nil] {
      let liar = try FakeSentinel(naming: port)
      let honest = [try FakeSentinel(naming: servers.port), try FakeSentinel(naming: servers.port)]
      let connection = try connect(FakeSentinel.url(liar, honest[0], honest[1]))
      #expect(try connection.serverRun() == servers.fleet.redis.connect().serverRun())
      // Two of three lie, in different ways.
      honest[0].name(port == 1 ? nil : 1)
      #expect(throws: RedisTierError.self) { try connect(FakeSentinel.url(liar, honest[0], honest[1])) }
    }
  }

  @Test("A Sentinel that names a replica, a server that is not there, or nothing is refused, and the error says so")
  func misleadingSentinel() async throws {
    let servers = try Servers()
    let sentinel = try FakeSentinel(naming: servers.otherPort)
    let machine = try servers.machine("1", FakeSentinel.url(sentinel))
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains("is a replica") == true)
    #expect(!machine.hasLease)
    func error() -> RedisTierError? {
      #expect(throws: RedisTierError.self) { try connect(FakeSentinel.url(sentinel)) }
    }
    sentinel.name(1)
    #expect(error()?.code == .cannotConnect)
    sentinel.name(nil)
    let unknown = error()
    #expect(unknown?.code == .noPrimary && unknown?.reason.contains("knows no server of this name") == true)
    for reply in [
      "+OK\r\n", "*2\r\n$1\r\nh\r\n$1\r\n0\r\n", "*2\r\n$0\r\n\r\n:1\r\n", ":1\r\n", "-ERR no\r\n", "%1\r\n",
    ] {
      sentinel.reply(reply)
      #expect(error()?.code == .noPrimary, "\(reply)")
    }
    // It is right from now on.
    sentinel.name(servers.port)
    await wait { machine.hasLease }
  }

  @Test("A Sentinel that names another fleet's server gives a machine no lease there")
  func otherFleet() async throws {
    let (servers, stranger) = (try Servers(), try Servers())
    let secret = Data(testSecret.reversed())
    let tier = try RedisTier(
      url: "redis://127.0.0.1:\(stranger.port)", secret: secret, configuration: stranger.fleet.configuration)
    let resident = try Machine(stranger.fleet.directory.appendingPathComponent("1"), tier)
    await wait { resident.hasLease }
    let sentinel = try FakeSentinel(naming: stranger.port)
    let machine = try servers.machine("1", FakeSentinel.url(sentinel))
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains("another lease or another secret") == true)
    #expect(!machine.hasLease && resident.hasLease)
    withExtendedLifetime(sentinel) {}
  }

  @Test("A Sentinel that does not reply costs a part of the time limit, once")
  func silentSentinel() throws {
    let servers = try Servers()
    let sentinels = try (0..<3).map { _ in try FakeSentinel(naming: servers.port) }
    let connection = try connect(FakeSentinel.url(sentinels[0], sentinels[1], sentinels[2]))
    let silent = sentinels[0]
    let before = silent.requestCount
    silent.reply("")
    for limit in [2, 60, 60] { try connection.checkPrimary(timeout: .seconds(limit)) }
    #expect(silent.requestCount == before + 1)
  }

  @Test("Sentinels get their own user and password")
  func login() throws {
    let servers = try Servers()
    try servers.fleet.redis.command("CONFIG", "SET", "requirepass", "word")
    let sentinel = try FakeSentinel(naming: servers.port)
    var configuration = servers.fleet.configuration
    configuration.password = { "word" }
    configuration.sentinelUser = "watcher"
    configuration.sentinelPassword = { "other" }
    let fleet = try configuration.fleet(url: FakeSentinel.url(sentinel))
    #expect(try fleet.connect().serverRun().count == 40)
    #expect(sentinel.logins == ["watcher $5 other"])
    // Without a password for them, Sentinels get none.
    configuration.sentinelUser = nil
    configuration.sentinelPassword = nil
    _ = try configuration.fleet(url: FakeSentinel.url(sentinel)).connect()
    #expect(sentinel.logins.count == 1)
    // The tool has options for both.
    let file = try servers.fleet.makeDirectory("files") + "/password"
    for (word, name) in [("word", file), ("other", file + "2")] {
      try Data(word.utf8).write(to: URL(fileURLWithPath: name))
    }
    let result = try FleetTool.run([
      "fleet", "status", FakeSentinel.url(sentinel), "--password-file", file, "--sentinel-password-file", file + "2",
      "--sentinel-user", "watcher",
    ])
    #expect(result.status == 1 && result.errors.contains("knows no fleet"), "\(result.errors)")
    #expect(sentinel.logins.last == "watcher $5 other")
  }

  @Test("A Sentinel as the server itself is refused")
  func sentinelAsServer() throws {
    let sentinel = try RedisServerProcess(sentinel: "port \(freePort())")
    let error = #expect(throws: RedisTierError.self) { try connect(sentinel.url).serverRun() }
    #expect(error?.code == .wrongRole && error?.reason.contains("redis+sentinel://") == true)
  }
}
