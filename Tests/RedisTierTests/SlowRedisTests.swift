import CacheActivity
import CacheModel
import CachingClient
import Foundation
import Glibc
import ResponseStore
import Synchronization
import Testing

@testable import FleetSharing
@testable import LMDBURLCache
@testable import RedisTier

@Suite("A slow Redis", .needsRedis, .timeLimit(.minutes(1)))
struct SlowRedisTests {
  @Test(
    "A purge ends at its time limit while each reply is late, before or after it was posted",
    arguments: [(.seconds(3), .notPosted), (.milliseconds(300), .unconfirmed)]
      as [(Duration, RedisTierError.Code)])
  func lateReplies(_ delay: Duration, _ code: RedisTierError.Code) async throws {
    // Without the time limit the purge would wait for longer than this test may take.
    let fleet = try FleetFixture {
      $0.lease = .seconds(600)
      $0.commandTimeout = .seconds(600)
    }
    let (way, silentWay) = (try SocketProxy(to: fleet.redis.socketPath), try SocketProxy(to: fleet.redis.socketPath))
    let one = try await fleet.machine("1", over: way)
    let silent = try await fleet.machine("2", over: silentWay)
    silentWay.hold()
    way.delayReplies(by: delay)
    let error = await #expect(throws: RedisTierError.self) { try await one.cache.purge(.all, timeout: .seconds(2)) }
    // On a busy machine the time limit can pass before the reply to the post.
    #expect(error?.code == code || error?.code == .notPosted)
    way.delayReplies(by: .zero)
    silentWay.release()
    withExtendedLifetime((one, silent)) {}
  }

  @Test("Shared responses are found while each reply takes longer than polling")
  func laterThanPolling() async throws {
    let fleet = try FleetFixture {
      $0.lookupTimeout = .seconds(600)
      $0.lease = .seconds(600)
    }
    let way = try SocketProxy(to: fleet.redis.socketPath)
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2", over: way))
    let urls = (0..<10).map { fleet.origin.url("/\($0)") }
    var bodies: [String] = []
    for url in urls { bodies.append(try await one.get(url)) }
    try await fleet.waitForObjects(urls.count)
    way.delayReplies(by: .milliseconds(3))
    for (url, body) in zip(urls, bodies) { #expect(try await other.get(url) == body) }
    #expect(fleet.origin.requestCount == urls.count)
    #expect(other.cache.statistics.directory?.fleet.sharedHits == urls.count)
  }

  @Test("A burst of lookups that wait for a connection does not switch sharing off")
  func burst() async throws {
    let redis = try RedisServerProcess()
    let way = try SocketProxy(to: redis.socketPath)
    let settings = try RedisTier(url: way.url, secret: testSecret).settings
    let workers = SharingWorkers(settings.fleet, settings.configuration)
    defer { workers.close() }
    // Redis replies in time to each lookup that is sent, but there is time for few of them.
    way.delayReplies(by: .milliseconds(50))
    let ping = [[Array("PING".utf8)]]
    let replyCount = await withTaskGroup(of: Bool.self) { group in
      for _ in 0..<1000 { group.addTask { await workers.commands(ping, within: .milliseconds(400)) != nil } }
      return await group.reduce(0) { $0 + ($1 ? 1 : 0) }
    }
    #expect((1..<100).contains(replyCount))
    way.delayReplies(by: .zero)
    #expect(await workers.commands(ping, within: .seconds(600)) != nil)
  }

  @Test("Lookups poll one at a time, and rarely after they have polled in vain")
  func polling() {
    var polling = ReplyPolling()
    func pollCount(among lookupCount: Int, isSuccess: Bool) -> Int {
      (0..<lookupCount).count { _ in
        guard polling.begin() else { return false }
        polling.end(isSuccess: isSuccess)
        return true
      }
    }
    #expect(polling.begin() && !polling.begin())
    polling.end(isSuccess: true)
    #expect(pollCount(among: 100, isSuccess: true) == 100)
    // Each failure doubles the pause, up to the maximum.
    #expect(pollCount(among: 1000, isSuccess: false) < 12)
    let maximum = ReplyPolling.maximumPauseCount
    #expect(pollCount(among: 10 * (maximum + 1), isSuccess: false) == 10)
    // A success ends the pause.
    #expect(pollCount(among: maximum + 1, isSuccess: true) >= 1)
    #expect(pollCount(among: 100, isSuccess: true) == 100)
  }

  @Test("A machine knows an epoch from the reply to its renewal, which may have been under way for long")
  func lateRenewal() async throws {
    // The lease is 1 s, so purges in a young epoch wait for 1.5 s.
    let minimum = 1_500_000_000 as UInt64
    let renewals = Mutex<[(isMature: Bool, time: UInt64)]>([])
    let firstReply = Atomic<UInt64>(0)
    let listener = try SocketListener { bytes in
      let lines = String(decoding: bytes, as: UTF8.self).components(separatedBy: "\r\n")
      func argument(_ index: Int) -> String { lines[2 + 2 * index] }
      switch (lines[0], argument(0)) {
      case (_, "INFO"): return Array("$8\r\nrun_id:a\r\n".utf8)
      case (_, "SCRIPT"): return Array("$1\r\nd\r\n".utf8)
      case ("*18", "EVALSHA"):
        let count = renewals.withLock { renewals in
          renewals.append((argument(16) == "1", BootClock.now))
          return renewals.count
        }
        if count == 1 {
          // A server that replies late.
          usleep(UInt32(minimum / 1000) + 100_000)
          firstReply.store(BootClock.now, ordering: .relaxed)
        }
        let state = count == 1 ? "$5\r\nother" : "$5\r\nknown"
        let rest = "*2\r\n:0\r\n:0\r\n*0\r\n:\(count)\r\n:0\r\n:0\r\n"
        return Array("*9\r\n$3\r\n1@a\r\n:0\r\n:0\r\n\(state)\r\n\(rest)".utf8)
      default:
        // A server without new entries replies after a pause.
        usleep(10_000)
        return Array("*0\r\n".utf8)
      }
    }
    let fleet = try FleetFixture()
    var configuration = fleet.configuration
    configuration.commandTimeout = .seconds(30)
    let settings = try RedisTier(
      url: "unix://" + listener.path, secret: testSecret, configuration: configuration
    ).settings
    let file = try FleetFile(directory: try fleet.makeDirectory("1"), settings: settings)
    let node = FleetNode(storeID: { 7 }, remove: { _ in true }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: settings, file: file, node: node)
    #expect(follower.start())
    defer { follower.stop() }
    await wait { renewals.withLock { $0.contains { $0.isMature } } }
    let first = try #require(renewals.withLock { $0.first { $0.isMature } })
    #expect(first.time > firstReply.load(ordering: .relaxed) + minimum)
  }
}
