import CachingClient
import Foundation
import FoundationNetworking
import LoopbackOrigin
import ResponseStore
import Testing

@testable import FleetSharing
@testable import LMDBURLCache
@testable import RedisTier

/// Users of Redis that lack permissions, and servers that refuse commands for other reasons.
@Suite("Refusals of Redis", .needsRedis, .timeLimit(.minutes(1)))
struct PermissionTests {
  static let rules =
    "on >word resetchannels ~lmuc:{default}:* -@all +info +evalsha +script|load +hmget +hget +hset +hincrby "
    + "+hdel +hgetall +hlen +zadd +zrem +zcard +zrange +zrangebyscore +xadd +xlen +xrange +xread +xtrim +rpush "
    + "+blpop +pexpire +pttl +get +set +del +unlink +time"

  private static func setUser(_ rules: String, on redis: RedisServerProcess) throws {
    try redis.connect().command(["ACL", "SETUSER", "cache"] + rules.split(separator: " ").map { String($0) })
  }

  private static func url(_ redis: RedisServerProcess) -> String { "unix://cache:word@\(redis.socketPath)" }

  @Test("Each script of the protocol fails without a command that any of them uses, and changes nothing")
  func missingCommands() throws {
    let redis = try RedisServerProcess()
    try Self.setUser(Self.rules, on: redis)
    var configuration = RedisTier.Configuration()
    configuration.lease = .seconds(1)
    let settings = try RedisTier(url: Self.url(redis), secret: testSecret, configuration: configuration).settings
    let connection = try settings.fleet.connect()
    let run = try connection.serverRun()
    let arguments = settings.controlArguments(run: run)
    let node = Array(RandomID().text.utf8)
    func bytes(_ texts: String...) -> [[UInt8]] { texts.map { Array($0.utf8) } }
    let scripts: [(Script, [[UInt8]])] = [
      (FleetScripts.renew, [node] + bytes("", "0", "", "10", "0", "host")),
      (FleetScripts.post, bytes(RandomID().text, "removal", "10")),
      (FleetScripts.finish, bytes(RandomID().text, "epoch", "1", "0")), (FleetScripts.leave, [node]),
      (FleetScripts.sweep, []),
    ]
    func runAll() -> [RedisTierError?] {
      scripts.map { script, tail in
        do throws(RedisTierError) {
          _ = try script.run(keys: settings.controlKeys, arguments + tail, on: connection)
          return nil
        } catch {
          return error
        }
      }
    }
    func state() throws -> [RedisReply] {
      try redis.connect().commands(settings.controlKeys.map { [Array("DUMP".utf8), $0] })
    }
    #expect(runAll().allSatisfy { $0 == nil })
    let before = try state()
    let commands = [
      "hmget", "hset", "hincrby", "hdel", "unlink", "xlen", "xrange", "xadd", "xtrim", "zcard", "zadd", "zrem",
      "zrange", "zrangebyscore", "hlen", "hget", "hgetall", "rpush", "pexpire", "time", "info",
      // Those of the follower outside of scripts, of shared responses, and of calls that wait for a purge.
      "xread", "get", "set", "del", "pttl", "blpop",
    ]
    for command in commands {
      try Self.setUser("-" + command, on: redis)
      for error in runAll() {
        #expect(
          error?.code == .accessDenied && error?.reason.contains("the command '\(command)'") == true, "\(command)")
      }
      try Self.setUser("+" + command, on: redis)
      #expect(try state() == before, "\(command)")
    }
    // One of the keys.
    try Self.setUser("resetkeys ~lmuc:{default}:ctl ~lmuc:{default}:log", on: redis)
    #expect(runAll().allSatisfy { $0?.code == .accessDenied })
    try Self.setUser("resetkeys", on: redis)
    for name in ["ctl", "log", "acks", "seen", "wait"] { try Self.setUser("~lmuc:{default}:\(name)", on: redis) }
    #expect(runAll().allSatisfy { $0?.reason.contains("the command 'rpush'") == true })
    #expect(try state() == before)
  }

  @Test(
    "A machine that loses a permission loses its lease, says which command it lacks, and begins no epoch",
    arguments: ["zcard", "hlen", "xadd", "xread"])
  func lostPermission(_ command: String) async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    try Self.setUser(Self.rules, on: fleet.redis)
    let tier = try RedisTier(
      url: Self.url(fleet.redis), secret: testSecret, configuration: fleet.configuration)
    let one = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    let other = try await fleet.machine("2")
    await wait { one.hasLease }
    let url = fleet.origin.url("/a")
    let before = try await one.get(url)
    let epoch = try fleet.redis.command("HGET", "lmuc:{default}:ctl", "epoch")
    try Self.setUser("-" + command, on: fleet.redis)
    // It does not receive the purge, so it must not serve what the purge covers.
    try await other.cache.purge(.url(url))
    #expect(try await one.get(url) != before)
    await wait { !one.hasLease && one.lines.all.contains { $0.contains("is cut off") } }
    #expect(one.lines.all.contains { $0.contains("Redis refused the command '\(command)' to the user") })
    let error = await #expect(throws: RedisTierError.self) { try await one.cache.purge(.all) }
    #expect(error?.code == .accessDenied && error?.reason.contains("'\(command)'") == true)
    #expect(try fleet.redis.command("HGET", "lmuc:{default}:ctl", "epoch") == epoch)
    #expect(other.hasLease)
    try Self.setUser("+" + command, on: fleet.redis)
    await wait { one.hasLease }
    #expect(try fleet.redis.command("HGET", "lmuc:{default}:ctl", "epoch") == epoch)
  }

  @Test("For an operator, a refused command is named, and so is a key of another type")
  func console() throws {
    let redis = try RedisServerProcess()
    try Self.setUser(Self.rules, on: redis)
    let console = try FleetConsole(url: Self.url(redis))
    #expect(throws: RedisTierError.self) { try console.status() }
    for command in ["hgetall", "xlen", "zrange", "time", "info"] {
      try Self.setUser("-" + command, on: redis)
      let error = #expect(throws: RedisTierError.self) { try console.status() }
      #expect(error?.code == .accessDenied && error?.reason.contains("'\(command)'") == true, "\(command)")
      try Self.setUser("+" + command, on: redis)
    }
    try redis.connect().command(["SET", "lmuc:{default}:ctl", "x"])
    for call in [{ _ = try console.status() }, { _ = try console.lease() }] {
      let error = #expect(throws: RedisTierError.self) { try call() }
      #expect(error?.code == .badReply && error?.reason.contains("WRONGTYPE") == true)
    }
  }

  @Test("A command outside of scripts that the user may not run is named")
  func refusedCommand() throws {
    let redis = try RedisServerProcess()
    try Self.setUser(Self.rules, on: redis)
    let connection = try connect(Self.url(redis))
    let error = #expect(throws: RedisTierError.self) { try connection.command(["FLUSHALL"]) }
    #expect(error?.code == .accessDenied && error?.reason.contains("the command 'flushall'") == true)
    // In a script of the shared responses, which does not check first.
    try Self.setUser("-get", on: redis)
    let settings = try RedisTier(url: Self.url(redis), secret: testSecret).settings
    let inScript = #expect(throws: RedisTierError.self) {
      try SharingScripts.unlock.run(keys: [settings.fleet.key("l:x")], [[], [], []], on: connection)
    }
    #expect(inScript?.code == .accessDenied)
  }

  @Test("A full server, one that is read only, and one with too many clients are reported in Redis's own words")
  func refusals() throws {
    let redis = try RedisServerProcess()
    let connection = try redis.connect()
    try connection.command(["CONFIG", "SET", "maxmemory", "1"])
    let full = #expect(throws: RedisTierError.self) { try connection.command(["SET", "a", "b"]) }
    #expect(full?.code == .outOfMemory)
    #expect(full?.reason.contains("'OOM command not allowed when used memory > 'maxmemory''") == true)
    #expect(full?.description.contains("maxmemory of redis-server") == true)
    try connection.command(["CONFIG", "SET", "maxmemory", "0"])
    try connection.command(["REPLICAOF", "127.0.0.1", "1"])
    let readOnly = #expect(throws: RedisTierError.self) { try connection.command(["SET", "a", "b"]) }
    #expect(readOnly?.code == .wrongRole)
    #expect(readOnly?.reason.contains("'READONLY You can't write against a read only replica'") == true)
    try connection.command(["REPLICAOF", "NO", "ONE"])
    try connection.command(["CONFIG", "SET", "maxclients", "1"])
    let clients = #expect(throws: RedisTierError.self) { try redis.connect().command(["PING"]) }
    #expect(clients?.code == .tooManyClients)
    #expect(clients?.reason.contains("'ERR max number of clients reached'") == true)
    try connection.command(["CONFIG", "SET", "maxclients", "100"])
    let unknown = #expect(throws: RedisTierError.self) { try connection.command(["NOTHING", "secret-word"]) }
    #expect(unknown?.code == .missingFeature && unknown?.reason.contains("the command 'NOTHING'") == true)
    #expect(unknown?.reason.contains("ERR unknown command") == true && unknown?.reason.contains("word") == false)
  }

  @Test("A purge that is not posted names its cause, in Redis's own words")
  func notPosted() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let machine = try await fleet.machine("1")
    try fleet.redis.command("REPLICAOF", "127.0.0.1", "1")
    let error = await #expect(throws: RedisTierError.self) {
      try await machine.cache.purge(.all, timeout: .seconds(1))
    }
    #expect(error?.code == .notPosted && error?.reason.contains("is a replica") == true)
  }

  @Test(
    "Errors of a cluster are reported as such",
    arguments: ["MOVED 3999 127.0.0.1:6381", "CLUSTERDOWN The cluster is down"])
  func cluster(_ reply: String) async throws {
    let listener = try SocketListener { bytes in
      let text = String(decoding: bytes, as: UTF8.self)
      return Array((text.contains("INFO") ? "$8\r\nrun_id:a\r\n" : "-\(reply)\r\n").utf8)
    }
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let tier = try RedisTier(url: "unix://" + listener.path, secret: testSecret, configuration: fleet.configuration)
    let machine = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains("a node of a Redis Cluster") == true)
    #expect(machine.lines.all.first?.contains("'\(reply)'") == true)
    #expect(!machine.hasLease)
    let error = await #expect(throws: RedisTierError.self) { try await machine.cache.purge(.all) }
    #expect(error?.code == .cluster && error?.reason.contains(reply) == true)
  }
}
