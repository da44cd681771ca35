import CacheActivity
import CacheModel
import Foundation
import FoundationNetworking
import LoopbackOrigin
import ResponseStore
import Testing

@testable import LMDBURLCache
@testable import RedisTier

@Suite("urlcache with a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct FleetToolTests {
  private func tool(_ arguments: String..., environment: [String: String] = [:]) throws -> FleetTool.Result {
    try FleetTool.run(arguments, environment: environment)
  }

  private func tool(_ arguments: [String]) throws -> FleetTool.Result { try FleetTool.run(arguments) }

  @Test("fleet status shows the machines, their leases, their last purge and the purges that wait")
  func status() async throws {
    let fleet = try FleetFixture()
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let tier = try RedisTier(url: proxy.url, secret: testSecret, configuration: fleet.configuration)
    let cut = try Machine(fleet.directory.appendingPathComponent("3"), tier)
    await wait { cut.hasLease }
    proxy.cut()
    one.membership.post([Removal(.everything)]) {}
    await wait { other.counts.receivedPurges == 1 }
    let json = try tool("fleet", "status", fleet.redis.url, "--json").json()
    #expect(json["fleet"] as? String == "default")
    #expect(json["server"] as? String == fleet.redis.url)
    #expect(json["leaseSeconds"] as? Double == 1)
    #expect(json["lastNumber"] as? Int == 1 && json["firstKeptNumber"] as? Int == 1)
    #expect(json["isLost"] as? Bool == false)
    let machines = try #require(json["machines"] as? [[String: Any]])
    #expect(Set(machines.map { $0["id"] as? String }) == Set([one, other, cut].map { $0.membership.file.node.text }))
    let host = try String(contentsOfFile: "/proc/sys/kernel/hostname", encoding: .utf8)
    for machine in machines {
      #expect(machine["host"] as? String == host.trimmingCharacters(in: .newlines))
      let isCut = machine["id"] as? String == cut.membership.file.node.text
      let left = try #require(machine["leaseSecondsLeft"] as? Double)
      #expect(left <= 1)
      if isCut { #expect(machine["number"] as? Int == 0 && machine["lag"] as? Int == 1) }
    }
    let waiting = try #require(json["waiting"] as? [[String: Any]])
    #expect(waiting.count == 1 && waiting[0]["number"] as? Int == 1)
    await wait { !cut.hasLease }
    let text = try tool("fleet", "status", fleet.redis.url).output
    #expect(text.contains("default at \(fleet.redis.url)\n"))
    #expect(text.contains("\nPurges   1, the last 1 in the log\n"))
    #expect(text.contains("  ended"))
    #expect(text.contains("HOST") && text.contains(cut.membership.file.node.text))
    fleet.redis.kill()
    let gone = try tool("fleet", "status", fleet.redis.url)
    #expect(gone.status == 1 && gone.errors.contains("no connection to Redis"))
  }

  @Test("purge --fleet purges on all machines, of each kind, and counts them", arguments: [false, true])
  func purge(_ isSoft: Bool) async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/dir/a").absoluteString
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    try fleet.mature()
    for scope in [
      ["--all"], ["--since", "1m"], ["--host", "127.0.0.1"], ["--prefix", url],
      ["--group", "g", "--origin", url], ["--tag", "g"],
    ] {
      let before = try await other.get(fleet.origin.url("/dir/a"))
      let count = fleet.origin.requestCount
      let arguments = ["purge", "--fleet", fleet.redis.url, "--json"] + scope + (isSoft ? ["--soft"] : [])
      let result = try tool(arguments)
      #expect(result.status == 0)
      let json = try result.json()
      #expect(json["confirmedCount"] as? Int == 2 && json["expiredLeaseCount"] as? Int == 0)
      #expect(other.cache.isCached(fleet.origin.url("/dir/a")) == isSoft)
      #expect(try await other.get(fleet.origin.url("/dir/a")) != before)
      #expect(fleet.origin.requestCount == count + 1)
      #expect((fleet.origin.requests.last?["If-None-Match"] != nil) == isSoft)
    }
    let text = try tool("purge", "--fleet", fleet.redis.url, "--host", "example.com")
    #expect(text.output == "Removed on all machines responses stored for example.com. 2 machines confirmed.\n")
    withExtendedLifetime(one) {}
  }

  @Test("purge --fleet waits for the lease of a machine that does not respond, and says so")
  func expiredLease() async throws {
    let fleet = try FleetFixture()
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    let one = try await fleet.machine("1")
    let tier = try RedisTier(url: proxy.url, secret: testSecret, configuration: fleet.configuration)
    let cut = try Machine(fleet.directory.appendingPathComponent("2"), tier)
    await wait { cut.hasLease }
    try fleet.mature()
    proxy.cut()
    let result = try tool("purge", "--fleet", fleet.redis.url, "--all")
    #expect(!cut.hasLease)
    #expect(
      result.output
        == "Removed on all machines everything. 1 machine confirmed, 1 lease ended without a confirmation.\n")
    withExtendedLifetime(one) {}
  }

  @Test("Passwords come from a file or the environment, and never from the command line")
  func passwords() async throws {
    let fleet = try FleetFixture(redisOptions: ["--requirepass", "secret-word"])
    let tier = try RedisTier(
      url: "unix://:secret-word@" + fleet.redis.socketPath, secret: testSecret, configuration: fleet.configuration)
    let one = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    await wait { one.hasLease }
    let file = fleet.directory.appendingPathComponent("password").path
    try Data("secret-word\n".utf8).write(to: URL(fileURLWithPath: file))
    #expect(try tool("fleet", "status", fleet.redis.url, "--password-file", file).status == 0)
    let named = "unix://default@" + fleet.redis.socketPath
    #expect(try tool("fleet", "status", named, "--password-file", file).status == 0)
    let variable = ["URLCACHE_REDIS_PASSWORD": "secret-word"]
    #expect(try tool("purge", "--all", "--fleet", fleet.redis.url, environment: variable).status == 0)
    let wrong = try tool("fleet", "status", fleet.redis.url, environment: ["URLCACHE_REDIS_PASSWORD": "wrong-word"])
    #expect(wrong.status == 1 && wrong.errors.contains("refused the") && !wrong.errors.contains("-word"))
    #expect(try tool("fleet", "status", fleet.redis.url).status == 1)
    let onLine = try tool("fleet", "status", "unix://:secret-word@" + fleet.redis.socketPath)
    #expect(onLine.status == 2 && onLine.errors.contains("--password-file") && !onLine.errors.contains("secret-word"))
  }

  @Test("A Redis without the fleet, and wrong arguments, are errors")
  func errors() throws {
    let server = try RedisServerProcess()
    for arguments in [["fleet", "status", server.url], ["purge", "--fleet", server.url, "--all"]] {
      let result = try tool(arguments)
      #expect(result.status == 1 && result.errors.contains("no fleet with the name 'default'"))
    }
    #expect(try server.command("KEYS", "*") == .array([]))
    for arguments in [
      ["fleet", "show", server.url], ["fleet", "status"], ["fleet", "status", "rediss+unix:///h"],
      ["fleet", "status", server.url, "--name", "a}b"], ["purge", "--all"], ["purge", "--all", "/x", "--name", "a"],
      ["purge", "/x", "--all", "--fleet", server.url], ["purge", "--all", "--dry-run", "--fleet", server.url],
    ] {
      #expect(try tool(arguments).status == 2)
    }
  }

  @Test("stats shows the tier's counters as text, JSON and for Prometheus, and log the rule of shared hits")
  func statistics() async throws {
    let fleet = try FleetFixture()
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let directory = fleet.directory.appendingPathComponent("2").path
    let inspected = try CacheDirectory(existingAt: URL(fileURLWithPath: directory))
    let watch = try #require(inspected.watchEvents())
    _ = try await one.get(url)
    try await fleet.waitForObjects(1)
    _ = try await other.get(url)
    #expect(watch.next().map(\.rule) == ["fleet"])
    try await one.cache.purge(.url(url))
    _ = try await other.get(url)
    await wait { other.counts.sharedStores == 1 }
    try await other.cache.purge(.all)
    let json = try tool("stats", directory, "--json").json()
    let counts = try #require((json["activity"] as? [String: Any])?["fleet"] as? [String: Any])
    for (name, count) in [
      "lookups": 2, "sharedHits": 1, "sharedMisses": 1, "sharedStores": 1, "refusedObjects": 1, "failedLookups": 0,
      "fetchWaits": 0, "postedPurges": 1, "receivedPurges": 2, "reconnects": 0, "lostLogs": 0,
    ] {
      #expect(counts[name] as? Int == count, "\(name)")
    }
    #expect(try #require(counts["leaseRenewals"] as? Int) > 0)
    #expect(counts["cutOffSeconds"] as? Double == 0)
    let text = try tool("stats", directory).output
    #expect(text.contains("1 hits, 1 misses, 0 failed, 0 waited, 1 refused, 1 stored\n"))
    #expect(text.contains("1 purges posted, 2 received, "))
    let metrics = try tool("stats", directory, "--prometheus").output
    #expect(metrics.contains("urlcache_fleet_requests_total{directory=\"\(directory)\",result=\"hit\"} 1\n"))
    #expect(metrics.contains("urlcache_fleet_purges_total{directory=\"\(directory)\",direction=\"received\"} 2\n"))
    withExtendedLifetime(inspected) {}
  }

  @Test("The time without a lease is counted")
  func cutOffTime() async throws {
    let fleet = try FleetFixture { $0.lease = .milliseconds(200) }
    let machine = try await fleet.machine("1")
    func counts() -> FleetActivity? { machine.cache.statistics.directory?.fleet }
    fleet.redis.kill()
    await wait { !machine.hasLease }
    try fleet.redis.start()
    await wait { machine.hasLease }
    #expect(try #require(counts()).cutOffMilliseconds > 0)
    #expect(try #require(counts()).reconnects > 0)
  }

  @Test("A purge of a machine's directory says that it is local")
  func localPurge() async throws {
    let fleet = try FleetFixture()
    let one = try await fleet.machine("1")
    let result = try tool("purge", fleet.directory.appendingPathComponent("1").path, "--all")
    #expect(result.status == 0 && result.errors.contains("this machine only. Use --fleet"))
    withExtendedLifetime(one) {}
  }
}
