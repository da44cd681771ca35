import CachingClient
import Foundation
import LoopbackOrigin
import Testing

@testable import LMDBURLCache
@testable import RedisTier

/// Servers that are not the fleet's Redis, and data in it that is not the fleet's.
@Suite("Bad input of a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct BadInputTests {
  /// Servers that are not a redis-server, by what they reply to each command.
  static let replies: [(String, [UInt8]?, RedisTierError.Code)] = [
    ("another protocol", Array("HTTP/1.1 400 Bad Request\r\n\r\n".utf8), .badReply),
    ("RESP3", Array("%1\r\n+a\r\n+b\r\n".utf8), .badReply),
    ("a reply of another type", Array(":1\r\n".utf8), .badReply),
    ("an array instead of a text", Array("*1\r\n:1\r\n".utf8), .badReply),
    ("a text without a run_id", Array("+OK\r\n".utf8), .missingFeature),
    ("half a reply, then nothing", Array("$1000\r\nrun_id".utf8), .timedOut),
    ("an impossible length", Array("$-7\r\n".utf8), .badReply),
    ("an array that never ends", Array(String(repeating: "*1\r\n", count: 20).utf8), .badReply),
    ("an error", Array("-ERR no\r\n".utf8), .serverError),
    ("a replica", Array("$11\r\nrole:slave\n\r\n".utf8), .wrongRole),
    ("a server that loads its data", Array("-LOADING dataset\r\n".utf8), .wrongRole),
    ("the end of the connection", nil, .connectionLost),
  ]

  @Test(
    "With a server that is not the fleet's Redis a machine gets no lease, says why, and works without it",
    arguments: 0..<12)
  func otherServers(_ index: Int) async throws {
    let (_, reply, code) = Self.replies[index]
    let listener = try SocketListener { _ in reply }
    let fleet = try FleetFixture {
      $0.commandTimeout = code == .timedOut ? .milliseconds(50) : .seconds(5)
      $0.lookupTimeout = .milliseconds(20)
    }
    let tier = try RedisTier(
      url: "unix://" + listener.path, secret: testSecret, configuration: fleet.configuration)
    let machine = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    // On a busy machine, another line can precede it.
    let cause = RedisTierError(code, "").description.suffix(20)
    await wait { machine.lines.all.contains { $0.contains(cause) } }
    #expect(!machine.hasLease)
    let url = fleet.origin.url("/a")
    // Each request goes to the origin; the second one as a validation of what is stored.
    #expect(try await machine.get(url) == "1")
    #expect(try await machine.get(url) == "2")
    #expect(fleet.origin.requests.last?["If-None-Match"] == "\"1\"")
    let error = await #expect(throws: RedisTierError.self) {
      try await machine.cache.purge(.all, timeout: .milliseconds(50))
    }
    // On a busy machine the time limit of the purge can pass before the first reply.
    #expect(
      error?.code == .notPosted || (error?.code == code && [.badReply, .missingFeature].contains(code)),
      "\(error?.description ?? "no error")")
    #expect(!machine.cache.isCached(url))
  }

  @Test(
    "A server without a feature that the protocol needs is refused, and the feature is named",
    arguments: [
      ("EVALSHA", "the server does not have the command 'EVALSHA'"),
      ("XADD", "the server does not have the command 'xadd'"),
    ])
  func missingCommand(_ command: String, _ reason: String) async throws {
    let fleet = try FleetFixture(redisOptions: ["--rename-command", command, ""])
    let machine = try Machine(fleet.directory.appendingPathComponent("1"), fleet.tier())
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains(reason) == true, "\(machine.lines.all)")
    #expect(machine.lines.all.first?.contains("Use Redis 7.0 or later, or Valkey") == true)
    #expect(!machine.hasLease)
  }

  /// The replies of servers without a feature to a script or its loading.
  static let oldServers = [
    // Redis 6.2.
    "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'",
    "FEATURE redis.acl_check_cmd in scripts, since Redis 7.0",
    "ERR unknown command `SCRIPT`, with args beginning with: `LOAD`,",
  ]

  @Test("A server that cannot run the scripts is refused, and the feature is named", arguments: oldServers)
  func oldServer(_ reply: String) async throws {
    let listener = try SocketListener { bytes in
      let text = String(decoding: bytes, as: UTF8.self)
      return Array((text.contains("INFO") ? "$8\r\nrun_id:a\r\n" : "-\(reply)\r\n").utf8)
    }
    let console = try FleetConsole(url: "unix://" + listener.path)
    let error = #expect(throws: RedisTierError.self) { try console.status() }
    #expect(error?.code == .missingFeature, "\(error?.description ?? "")")
    #expect(["'#!lua', since Redis 7.0", "acl_check_cmd", "`SCRIPT`"].contains { error?.reason.contains($0) == true })
  }

  @Test("A replica is refused, and a machine gets its lease when the server accepts writes again")
  func replica() async throws {
    let fleet = try FleetFixture()
    try fleet.redis.command("REPLICAOF", "127.0.0.1", "1")
    let machine = try Machine(fleet.directory.appendingPathComponent("1"), fleet.tier())
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains("is a replica") == true)
    #expect(!machine.hasLease)
    try fleet.redis.command("REPLICAOF", "NO", "ONE")
    await wait { machine.hasLease }
  }

  @Test("With a wrong password a machine gets no lease, and the line in its log does not contain the password")
  func wrongPassword() async throws {
    let fleet = try FleetFixture(redisOptions: ["--requirepass", "right-word"])
    let tier = try RedisTier(
      url: "unix://:wrong-word@" + fleet.redis.socketPath, secret: testSecret, configuration: fleet.configuration)
    let machine = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    await wait { !machine.lines.all.isEmpty }
    #expect(machine.lines.all.first?.contains("refused") == true)
    #expect(!machine.lines.all.contains { $0.contains("-word") })
    #expect(!machine.hasLease)
    let error = await #expect(throws: RedisTierError.self) { try await machine.cache.purge(.all) }
    #expect(error?.code == .accessDenied)
  }

  @Test(
    "Control keys of another type begin a new epoch",
    arguments: ["ctl", "seen", "wait"])
  func foreignControlKey(_ name: String) async throws {
    let fleet = try FleetFixture { $0.lease = .milliseconds(1200) }
    let machine = try await fleet.machine("1")
    let epoch = machine.membership.file.tag >> 48
    try fleet.redis.command("SET", "lmuc:{default}:\(name)", "of another program")
    // It is posted, because the purge, or a renewal before, removes the key; but the new epoch is young.
    let error = await #expect(throws: RedisTierError.self) {
      try await machine.cache.purge(.all, timeout: .seconds(1))
    }
    #expect(error?.code == .unconfirmed && error?.reason.contains("did not reply") == false)
    await wait { machine.membership.file.tag >> 48 != epoch && machine.hasLease }
    try await machine.cache.purge(.all)
  }

  @Test("A log with an entry of another program begins a new epoch")
  func foreignEntry() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let machine = try await fleet.machine("1")
    let url = fleet.origin.url("/a")
    let before = try await machine.get(url)
    let epoch = machine.membership.file.tag >> 48
    try fleet.redis.command("XADD", "lmuc:{default}:log", "1-0", "x", "y")
    await wait { machine.membership.file.tag >> 48 != epoch }
    #expect(machine.hasLease)
    #expect(try await machine.get(url) == before)
  }

  /// Changes of a shared response that another version of this library, or another program, could have made.
  static let changes: [(field: String, change: @Sendable ([UInt8]) -> [UInt8])] = [
    ("m", { [$0[0] + 1] + $0.dropFirst() }),  // another version
    ("m", { $0.dropLast() }),
    ("m", { $0 + [0] }),
    ("m", { _ in [] }),
    ("h", { $0.dropLast() }),
    ("h", { [255, 255, 255, 255] + $0.dropFirst(4) }),
    ("b", { $0 + [0] }),
    ("k", { $0 + [0] }),
    ("e", { _ in [] }),
    ("s", { _ in Array("-1".utf8) }),
    ("s", { _ in Array("99999999999999999999".utf8) }),
  ]

  @Test("A shared response of another version, or with any part that does not fit, is a miss", arguments: 0..<11)
  func foreignObject(_ index: Int) async throws {
    let (field, change) = Self.changes[index]
    let fleet = try FleetFixture()
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let before = try await one.get(url)
    try await fleet.waitForObjects(1)
    let key = Array(try #require(try fleet.objectKeys().first).utf8)
    let connection = try fleet.redis.connect()
    let value = try connection.command([Array("HGET".utf8), key, Array(field.utf8)]).asBytes()
    try connection.command([Array("HSET".utf8), key, Array(field.utf8), change(value)])
    #expect(try await other.get(url) != before)
    #expect(other.counts.refusedObjects == 1)
    #expect(other.counts.sharedHits == 0)
  }
}
