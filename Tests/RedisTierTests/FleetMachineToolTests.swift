import Foundation
import FoundationNetworking
import LoopbackOrigin
import ResponseStore
import Testing

@testable import LMDBURLCache
@testable import RedisTier

/// The tool on the directory of a fleet's machine.
@Suite("urlcache on a machine of a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct FleetMachineToolTests {
  private let fleet: FleetFixture

  init() throws {
    fleet = try FleetFixture { $0.lease = .seconds(2) }
  }

  private func path(_ name: String) -> String { fleet.directory.appendingPathComponent(name).path }

  /// Writes the secret of the fleet to a file with a line feed at its end.
  private func secretFile() throws -> String {
    let file = fleet.directory.appendingPathComponent("secret")
    try FileManager.default.createDirectory(at: fleet.directory, withIntermediateDirectories: true)
    try (testSecret + Data("\n".utf8)).write(to: file)
    return file.path
  }

  @Test("While a machine has no lease, explain, stats, log and the text for Prometheus say so, and time goes on")
  func cutOff() async throws {
    let machine = try await fleet.machine("1")
    let url = fleet.origin.url("/a")
    _ = try await machine.get(url)
    #expect(machine.cache.flush())
    let directory = path("1")
    func fleetCounts() throws -> [String: Any] {
      let json = try FleetTool.run(["stats", directory, "--json"]).json()
      return try #require((json["activity"] as? [String: Any])?["fleet"] as? [String: Any])
    }
    func gauge(_ name: String) throws -> Double? {
      let text = try FleetTool.run(["stats", directory, "--prometheus"]).output
      #expect(text.contains("\n# TYPE \(name) gauge\n"))
      #expect(machine.cache.prometheusText().contains("\n\(name){"))
      return text.split(separator: "\n").first { $0.hasPrefix("\(name){") }
        .flatMap { $0.split(separator: " ").last }.flatMap { Double($0) }
    }
    let explain = ["explain", directory, url.absoluteString]
    await wait { machine.hasLease }
    #expect(try fleetCounts()["isLeaseValid"] as? Bool == true)
    let before = try #require(try fleetCounts()["cutOffSeconds"] as? Double)
    #expect(try gauge("urlcache_fleet_lease_valid") == 1)
    #expect(try FleetTool.run(["stats", directory]).output.contains(#/\nLease +valid for [0-2]\.[0-9] s\n/#))
    #expect(try FleetTool.run(explain).output.contains(#/\nLease +valid for [0-2]\.[0-9] s\n/#))
    #expect(try FleetTool.run(explain + ["--json"]).json()["outcome"] as? String == "hit")
    #expect(try FleetTool.run(["log", directory]).errors == "")

    fleet.redis.kill()
    await wait { !machine.hasLease }
    let first = try #require(try gauge("urlcache_fleet_cut_off_seconds"))
    #expect(first > before)
    #expect(try gauge("urlcache_fleet_lease_valid") == 0)
    let counts = try fleetCounts()
    #expect(counts["isLeaseValid"] as? Bool == false)
    #expect(try #require(counts["cutOffSeconds"] as? Double) > first)
    #expect(machine.counts.isLeaseValid == false)
    let text = "ago, so each stored response is validated before it is used"
    #expect(try FleetTool.run(["stats", directory]).output.contains(text))
    let explained = try FleetTool.run(explain).output
    #expect(explained.contains("\nResult    the origin is asked whether the stored response is still valid\n"))
    #expect(explained.contains("\nRule      suspect ") && explained.contains(text))
    let json = try FleetTool.run(explain + ["--json"]).json()
    #expect(json["outcome"] as? String == "validate" && json["isLeaseValid"] as? Bool == false)
    let log = try FleetTool.run(["log", directory])
    #expect(log.status == 0)
    #expect(log.errors.hasPrefix("urlcache log: This machine has no valid lease in its fleet: ended at "))
    let watched = try FleetTool.run(["stats", directory, "--watch", "0.1", "--count", "1"])
    #expect(watched.errors.hasPrefix("urlcache stats: This machine has no valid lease in its fleet: ended at "))

    try fleet.redis.start()
    await wait { machine.hasLease }
    #expect(try #require(try gauge("urlcache_fleet_cut_off_seconds")) > first)
    #expect(try FleetTool.run(explain + ["--json"]).json()["isLeaseValid"] as? Bool == true)
  }

  @Test("A machine that has left its fleet has no lease, and explain says so")
  func left() async throws {
    let url = fleet.origin.url("/a")
    do {
      let machine = try await fleet.machine("1")
      _ = try await machine.get(url)
      #expect(machine.cache.flush())
    }
    let text = try FleetTool.run(["explain", path("1"), url.absoluteString]).output
    #expect(text.contains("\nLease     none, so each stored response is validated before it is used\n"))
    let outside = fleet.directory.appendingPathComponent("outside")
    _ = try LMDBURLCache(directory: outside, memoryCapacity: 0, diskCapacity: 16 << 20)
    #expect(try !FleetTool.run(["explain", outside.path, url.absoluteString]).output.contains("Lease"))
    #expect(try !FleetTool.run(["stats", outside.path, "--prometheus"]).output.contains("urlcache_fleet"))
  }

  @Test("purge --fleet says for whom it waits, and ends at its time limit with those that have not confirmed")
  func timeLimit() async throws {
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    let one = try await fleet.machine("1")
    let cut = try await fleet.machine("2", over: proxy)
    proxy.cut()
    let host = try String(contentsOfFile: "/proc/sys/kernel/hostname", encoding: .utf8)
      .trimmingCharacters(in: .newlines)
    let name = "\(host) (\(cut.membership.file.node.text))"
    let arguments = ["purge", "--fleet", fleet.redis.url, "--all"]
    let short = try FleetTool.run(arguments + ["--timeout", "1"])
    #expect(short.status == 1 && short.output == "")
    #expect(short.errors.contains("not all machines have confirmed the purge in time"))
    #expect(short.errors.hasSuffix(" Not confirmed by \(name).\n"))
    let long = try FleetTool.run(arguments + ["--timeout", "30"])
    #expect(long.status == 0)
    #expect(long.errors.contains(#/^urlcache purge: Waiting for 1 of 2 machines, at most [0-9]\.[0-9] s more:/#))
    #expect(long.errors.contains(": \(name).\n"))
    #expect(long.output.hasSuffix(" 1 machine confirmed, 1 lease ended without a confirmation.\n"))
    for wrong in ["0", "-1", "x", "3601", "nan"] {
      #expect(try FleetTool.run(arguments + ["--timeout=\(wrong)"]).status == 2)
    }
    #expect(
      try FleetTool.run(["purge", path("1"), "--all", "--timeout", "1"]).errors.contains("--timeout needs --fleet"))
    withExtendedLifetime(one) {}
  }

  @Test("A purge by status with a directory and --fleet purges what matches in it on all machines")
  func purgeBySelection() async throws {
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let urls = ["/a/1", "/a/2", "/b"].map { fleet.origin.url($0) }
    for url in urls { _ = try await (one.get(url), other.get(url)) }
    #expect(one.cache.flush() && other.cache.flush())
    let options = ["--fleet", fleet.redis.url, "--path", "/a/*"]
    let result = try FleetTool.run(["purge", path("1")] + options)
    #expect(result.output == "Removed on all machines responses with path /a/*: 2 requests. 2 machines confirmed.\n")
    #expect(urls.map { one.cache.isCached($0) } == [false, false, true])
    #expect(urls.map { other.cache.isCached($0) } == [false, false, true])
    let none = try FleetTool.run(["purge", path("1"), "--json"] + options).json()
    #expect(none["requestCount"] as? Int == 0)
    #expect(try FleetTool.run(["purge"] + options).errors.contains("need a directory"))
    // Without --fleet it is local, and says so.
    let local = try FleetTool.run(["purge", path("1"), "--path", "/b"])
    #expect(local.errors.contains("this machine only"))
    #expect(urls.map { other.cache.isCached($0) } == [false, false, true])
  }

  @Test("get and warm work on a directory of a fleet with the URL of Redis and the secret")
  func loads() async throws {
    let (secret, url) = (try secretFile(), fleet.origin.url("/a").absoluteString)
    let options = ["--fleet", fleet.redis.url, "--secret-file", secret]
    let one = try await fleet.machine("1")
    let shared = try await one.get(fleet.origin.url("/a"))
    try await fleet.waitForObjects(1)
    // The machine's own directory, while its program runs.
    let hit = try FleetTool.run(["get", url, "--directory", path("1")] + options)
    #expect(hit.output == shared && hit.errors.hasPrefix("200  hit "))
    // A new directory joins the fleet, and finds what another machine has shared.
    let new = try FleetTool.run(["get", url, "--directory", path("new")] + options)
    #expect(new.output == shared && new.errors.contains("  fleet "))
    #expect(fleet.origin.requestCount == 1)
    let again = try FleetTool.run(["get", url, "--directory", path("new")] + options)
    #expect(again.errors.hasPrefix("200  hit "))
    let list = fleet.directory.appendingPathComponent("list")
    try Data("\(url)\n\(fleet.origin.url("/b"))\n".utf8).write(to: list)
    let warm = try FleetTool.run(["warm", list.path, "--directory", path("new"), "--json"] + options)
    #expect(warm.status == 0 && warm.errors == "")
    // Purges of the fleet reach the directory while the tool uses it, and it does not stay registered.
    let status = try FleetTool.run(["fleet", "status", fleet.redis.url, "--json"]).json()
    #expect((status["machines"] as? [Any])?.count == 1)
    withExtendedLifetime(one) {}
  }

  @Test("get finds a shared response although Redis is slow")
  func slowRedis() async throws {
    let one = try await fleet.machine("1")
    let shared = try await one.get(fleet.origin.url("/a"))
    try await fleet.waitForObjects(1)
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    proxy.delayReplies(by: .milliseconds(60))
    let arguments = ["get", fleet.origin.url("/a").absoluteString, "--directory", path("new")]
    let new = try FleetTool.run(arguments + ["--fleet", proxy.url, "--secret-file", secretFile()])
    #expect(new.output == shared && new.errors.contains("  fleet "))
    #expect(fleet.origin.requestCount == 1)
    withExtendedLifetime(one) {}
  }

  @Test("get and warm say what is missing for a directory of a fleet, and join none by mistake")
  func wrongFleet() async throws {
    let (secret, url) = (try secretFile(), fleet.origin.url("/a").absoluteString)
    let options = ["--fleet", fleet.redis.url, "--secret-file", secret]
    let get = ["get", url, "--directory"]
    #expect(try FleetTool.run(get + [path("x")] + options).errors.contains("knows no fleet"))
    let one = try await fleet.machine("1")
    let plain = try FleetTool.run(get + [path("1")])
    #expect(plain.status == 1 && plain.errors.contains("Give the URL of its Redis with --fleet"))
    let outside = fleet.directory.appendingPathComponent("outside")
    _ = try LMDBURLCache(directory: outside, memoryCapacity: 0, diskCapacity: 16 << 20)
    let joined = try FleetTool.run(get + [outside.path] + options)
    #expect(joined.status == 1 && joined.errors.contains("belongs to no fleet"))
    #expect(!FleetMachineState.isInFleet(directory: outside.path))
    #expect(try FleetTool.run(get + [path("1"), "--fleet", fleet.redis.url]).errors.contains("--secret-file FILE"))
    #expect(
      try FleetTool.run(get + [path("1"), "--secret-file", secret]).errors.contains("--secret-file needs --fleet"))
    #expect(try FleetTool.run(get + [path("1")] + options.dropLast() + [path("none")]).status == 1)
    let short = fleet.directory.appendingPathComponent("short")
    try Data("short".utf8).write(to: short)
    let tooShort = try FleetTool.run(get + [path("1")] + options.dropLast() + [short.path])
    #expect(tooShort.status == 2 && tooShort.errors.contains("fewer than 32 bytes"))
    fleet.redis.kill()
    #expect(try FleetTool.run(get + [path("1")] + options).status == 1)
    withExtendedLifetime(one) {}
  }

  @Test("fleet status prints no control character that comes from Redis")
  func controlCharacters() async throws {
    let machine = try await fleet.machine("1")
    let lease = try #require(
      try fleet.redis.command("HGET", "lmuc:{default}:ctl", "epoch").asText().split(separator: "@").last)
    try fleet.redis.command("HSET", "lmuc:{default}:ctl", "epoch", "\u{1b}[2J\u{9b}1m\u{202e}@\(lease)")
    try fleet.redis.command("ZADD", "lmuc:{default}:acks", "0", "\u{1b}]0;id\u{7}")
    try fleet.redis.command("HSET", "lmuc:{default}:ctl", "at:\u{1b}]0;id\u{7}", "1 1 host\u{1b}c\n")
    for arguments in [["fleet", "status", fleet.redis.url], ["fleet", "status", fleet.redis.url, "--json"]] {
      let result = try FleetTool.run(arguments)
      #expect(result.status == 0)
      let isSafe = (result.output + result.errors).unicodeScalars.allSatisfy {
        $0 == "\n" || $0.value >= 0x20 && !(0x7f...0x9f).contains($0.value) && $0.value != 0x202e
      }
      #expect(isSafe, "\(arguments)")
    }
    withExtendedLifetime(machine) {}
  }
}
