import CachingClient
import Foundation
import FoundationNetworking
import LoopbackOrigin
import Testing

@testable import LMDBURLCache
@testable import RedisTier

/// The failures of Redis and of machines that the article on fleets lists.
@Suite("Failures in a fleet", .needsRedis, .timeLimit(.minutes(2)))
struct FailureTests {
  /// A way in which Redis loses the log of purges, or parts of its state.
  enum Loss: CaseIterable, Sendable {
    case flushed, noControl, noLog, noAcknowledgements, noCounts, entryDeleted, restartedEmpty
    case garbledNumber, garbledEpoch, otherTypeOfControl, otherTypeOfLog, otherTypeOfWaiting
    /// The server was a replica meanwhile. It could have taken over older data.
    case replicaMeanwhile

    func happen(to redis: RedisServerProcess) throws {
      switch self {
      case .flushed: try redis.command("FLUSHALL")
      case .noControl: try redis.command("DEL", "lmuc:{default}:ctl")
      case .noLog: try redis.command("DEL", "lmuc:{default}:log")
      case .noAcknowledgements: try redis.command("DEL", "lmuc:{default}:acks")
      case .noCounts: try redis.command("DEL", "lmuc:{default}:seen")
      case .entryDeleted: try redis.command("XDEL", "lmuc:{default}:log", "1-0")
      case .restartedEmpty:
        redis.kill()
        try redis.start()
      case .garbledNumber: try redis.command("HSET", "lmuc:{default}:ctl", "seq", "x")
      case .garbledEpoch: try redis.command("HSET", "lmuc:{default}:ctl", "epoch", "x")
      case .otherTypeOfControl: try redis.command("SET", "lmuc:{default}:ctl", "x")
      case .otherTypeOfLog: try redis.command("SET", "lmuc:{default}:log", "x")
      case .otherTypeOfWaiting: try redis.command("SET", "lmuc:{default}:wait", "x")
      case .replicaMeanwhile:
        try redis.command("REPLICAOF", "127.0.0.1", "1")
        try redis.command("REPLICAOF", "NO", "ONE")
      }
    }
  }

  @Test(
    "Data that Redis loses starts a new epoch, and machines with a lease keep their responses", arguments: Loss.allCases
  )
  func lostData(_ loss: Loss) async throws {
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.lease = .seconds(2)
    }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    try await one.cache.purge(.host("example.com"))
    let before = try await other.get(url)
    let epoch = other.membership.file.tag >> 48
    try loss.happen(to: fleet.redis)
    await wait { other.membership.file.tag >> 48 != epoch && one.membership.file.tag >> 48 != epoch }
    #expect(try await other.get(url) == before)
    #expect(other.counts.lostLogs == 0)
    // A purge of the new epoch holds. In one case it waits for leases of the earlier epoch; there is no other machine.
    if loss != .flushed { try fleet.mature() }
    try await one.cache.purge(.url(url))
    #expect(try await other.get(url) != before)
  }

  @Test("A machine follows more epochs than it can count")
  func manyEpochs() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    let file = one.membership.file
    // The follower may begin some of them.
    while file.tag >> 48 < 0xFFFF { _ = file.begin(epoch: Array("e".utf8), cursor: 0, ofStore: 1, replacing: file.tag) }
    // The numbers begin again.
    await wait { file.tag >> 48 < 0xFFFF && one.hasLease }
    let before = try await one.get(url)
    try await one.cache.purge(.url(url))
    #expect(try await one.get(url) != before)
    #expect(file.position(ofTag: file.tag) != nil)
  }

  @Test(
    "A machine whose lease has ended when Redis lost its data validates everything before it uses it, or removes it",
    arguments: RedisTier.LostLogAction.allCases)
  func lostWhileCutOff(_ action: RedisTier.LostLogAction) async throws {
    let isFailing = SharedSwitch()
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.onLostLog = action
    } handler: { request in
      if isFailing.isOn { return Reply(503, [], "failed") }
      let fields = [
        ("Cache-Control", "max-age=600, stale-while-revalidate=600, stale-if-error=600"), ("ETag", "\"1\""),
      ]
      return request["If-None-Match"] == nil ? Reply(200, fields, "\(request.number)") : Reply(304, fields)
    }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    #expect(try await one.get(url) == "0")
    _ = try await one.get(fleet.origin.url("/b"))
    fleet.redis.kill()
    await wait { !one.hasLease }
    #expect(one.cache.isCached(url))
    try fleet.redis.start()
    await wait { one.hasLease }
    guard action == .validate else {
      #expect(!one.cache.isCached(url))
      return #expect(one.lines.all.contains { $0.contains("everything stored was removed") })
    }
    #expect(one.lines.all.contains { $0.contains("is validated before it is used") })
    #expect(one.cache.isCached(url))
    #expect(one.cache.cachedResponse(for: URLRequest(url: url)) == nil)
    // No policy and no stale window permits it, also after the store has marked it and memory was emptied.
    isFailing.set(true)
    #expect(try await one.get(url) == "failed")
    isFailing.set(false)
    #expect(try await one.get(url) == "0")
    #expect(fleet.origin.requests.last?["If-None-Match"] == "\"1\"")
    // After the validation it is used again.
    let count = fleet.origin.requestCount
    #expect(try await one.get(url) == "0")
    #expect(fleet.origin.requestCount == count)
    // The other one is suspect on disk, too, and in another process.
    one.cache.flush()
    await wait { one.cache.statistics.disk?.pendingRemovalCount == 0 }
    let second = try await fleet.machine("1")
    _ = try await second.get(fleet.origin.url("/b"))
    #expect(fleet.origin.requestCount == count + 1)
    #expect(fleet.origin.requests.last?["If-None-Match"] == "\"1\"")
  }

  @Test("A machine that missed more purges than Redis keeps validates everything before it uses it")
  func trimmed() async throws {
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.maximumLogCount = 2
    }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    var other: Machine? = try await fleet.machine("2")
    _ = try await other!.get(url)
    other!.cache.flush()
    other = nil
    for _ in 0..<4 { try await one.cache.purge(.host("example.com")) }
    let returned = try await fleet.machine("2")
    #expect(returned.cache.isCached(url))
    #expect(returned.cache.cachedResponse(for: URLRequest(url: url)) == nil)
    _ = try await returned.get(url)
    #expect(fleet.origin.requests.last?["If-None-Match"] != nil)
    // The machine that missed nothing keeps its responses.
    _ = try await one.get(url)
    try await returned.cache.purge(.host("example.com"))
    #expect(one.cache.isCached(url))
  }

  @Test("Another process of the machine takes over when the one that follows the purges ends")
  func takeover() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    var first: Machine? = try await fleet.machine("2")
    let second = try await fleet.machine("2")
    #expect(second.membership.file.becomeFollower() == false)
    withExtendedLifetime(first) {}
    first = nil
    let before = try await second.get(url)
    try await one.cache.purge(.url(url))
    #expect(try await second.get(url) != before)
    await wait { second.hasLease }
  }

  @Test("A machine whose ID another one uses takes a new ID and loses its lease first")
  func copiedMachine() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let one = try await fleet.machine("1")
    let id = one.membership.file.node
    // A copy of the machine has renewed under its ID.
    try fleet.redis.command("HINCRBY", "lmuc:{default}:seen", id.text, "1")
    await wait { one.membership.file.node != id }
    await wait { one.hasLease }
    #expect(one.lines.all.contains { $0.contains("uses this machine's ID") })
  }

  @Test("Without a lease, a request does not use the response of a fetch that began before it")
  func batches() async throws {
    let gate = Gate()
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
    } handler: { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "\(request.number)")
      return request.number == 1 ? reply.held(at: gate) : reply
    }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    _ = try await one.get(url)
    fleet.redis.kill()
    await wait { !one.hasLease }
    async let early = one.get(url)
    await gate.waitForArrivals()
    async let late = one.get(url)
    await wait { one.cache.statistics.requests.waiting == 1 }
    gate.open()
    #expect(try await early == "1")
    #expect(try await late == "2")
  }

  @Test("Redis may end its connections at any time")
  func killedConnections() async throws {
    let fleet = try FleetFixture()
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let url = fleet.origin.url("/a")
    for _ in 0..<5 {
      let before = try await other.get(url)
      try fleet.redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
      try await one.cache.purge(.url(url))
      #expect(try await other.get(url) != before)
    }
  }

  @Test("The documented permissions suffice, and other commands are refused")
  func permissions() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 1 << 20 }
    let arguments = ["ACL", "SETUSER", "cache"] + PermissionTests.rules.split(separator: " ").map { String($0) }
    try fleet.redis.connect().command(arguments)
    let tier = try RedisTier(
      url: "unix://cache:word@\(fleet.redis.socketPath)", secret: testSecret, configuration: fleet.configuration)
    let one = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    let other = try Machine(fleet.directory.appendingPathComponent("2"), tier)
    await wait { one.hasLease && other.hasLease }
    let url = fleet.origin.url("/a")
    let before = try await one.get(url)
    try await fleet.waitForObjects(1)
    #expect(try await other.get(url) == before)
    try await one.cache.purge(.url(url))
    #expect(try await other.get(url) != before)
    let connection = try connect("unix://cache:word@\(fleet.redis.socketPath)")
    for command in [["FLUSHALL"], ["KEYS", "*"], ["GET", "other"], ["CONFIG", "GET", "*"]] {
      let error = #expect(throws: RedisTierError.self) { try connection.command(command) }
      #expect(error?.code == .accessDenied)
    }
  }
}
