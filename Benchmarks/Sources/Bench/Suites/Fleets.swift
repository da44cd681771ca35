import CRawHiredis
import Foundation
import LMDBURLCache
import Origin
import RedisTier
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// A fleet of machines on one Redis server: purges, shared responses, misses, and hits with and without the tier.
///
/// All machines are on this one, each with a directory of its own. Redis listens on a Unix socket.
struct Fleets {
  let report: Report
  let scratch: Scratch

  private static let suite = "fleet"
  private static let own = "LMDBURLCache"

  func run() async throws {
    for isDurable in [false, true] { try await purges(isDurable: isDurable) }
    try await sharedHits()
    try await misses()
    try await coldMachines()
    try await localHits()
  }

  // MARK: Purges

  /// Measures purges among eight machines, which are processes, and then with one of them suspended.
  private func purges(isDurable: Bool) async throws {
    let folder = try scratch.folder("fleet-purges")
    let redis = try FleetRedis(
      folder: folder, options: isDurable ? ["--appendonly", "yes", "--appendfsync", "always"] : [])
    defer { redis.end() }
    let lease = Duration.seconds(report.isQuick ? 2 : 10)
    let cache = try FleetMachine.open("\(folder)/0", redis.url, lease: lease)
    let machines = try (1..<8).map { try FleetMachine("\(folder)/\($0)", redis.url, lease: lease) }
    defer { for machine in machines { machine.end() } }
    // Until all have joined, and no lease of an earlier epoch can be valid.
    while try await cache.purge(.all)?.confirmedCount != 8 {}
    guard let url = URL(string: "http://example.com/a") else { throw BenchError("no URL") }
    func purge() async throws -> Double {
      let start = now()
      try await cache.purge(.url(url))
      return Double(now() - start) / 1e6
    }
    var times: [Double] = []
    for _ in 0..<(report.isQuick ? 200 : 2000) { times.append(try await purge()) }
    times.sort()
    let scenario = isDurable ? "8 machines, appendfsync always" : "8 machines"
    report.add(Self.suite, "purge, p50", scenario, Self.own, unit: "ms", [percentile(times, 0.5)])
    report.add(Self.suite, "purge, p99", scenario, Self.own, unit: "ms", [percentile(times, 0.99)])
    guard !isDurable else { return }
    machines[0].suspend()
    defer { machines[0].resume() }
    let first = try await purge()
    let wait = 1.25 * (lease / .milliseconds(1)) + 250
    report.add(
      Self.suite, "first purge, beyond the wait", "1 of 8 machines suspended", Self.own, unit: "ms", [first - wait])
    times = []
    for _ in 0..<(report.isQuick ? 100 : 500) { times.append(try await purge()) }
    times.sort()
    report.add(
      Self.suite, "purge, p50", "1 of 8 machines suspended", Self.own, unit: "ms", [percentile(times, 0.5)])
    report.add(
      Self.suite, "purge, p99", "1 of 8 machines suspended", Self.own, unit: "ms", [percentile(times, 0.99)])
  }

  // MARK: Shared responses

  /// Measures hits of another machine's responses, compared with reading as many bytes by hiredis alone.
  func sharedHits() async throws {
    let folder = try scratch.folder("fleet-shared")
    let redis = try FleetRedis(folder: folder)
    defer { redis.end() }
    let body = Data(repeating: 7, count: 16 << 10)
    let origin = try LoopbackOrigin(recordsRequests: false) { _ in
      Reply(200, [("Cache-Control", "max-age=3600")], body: body)
    }
    defer { origin.stop() }
    let count = report.isQuick ? 200 : 1000
    let urls = (0..<count).map { origin.url("/\($0)") }
    let first = try FleetMachine.open(folder + "/first", redis.url)
    try await untilValid(first, origin)
    for url in urls { _ = try await first.data(from: url) }
    let connection = try redis.connect()
    defer { redisFree(connection) }
    // Responses are shared after they have been returned. On a busy machine a few are not.
    let fewCount = count / 20
    try await until { redis.objectCount(connection) >= count - fewCount }
    // As many values, so that they are as far from the processor as the responses.
    for index in 0..<count where !redis.set(connection, "bare:\(index)", body) { throw BenchError("Redis failed") }
    var (shared, bare): ([Double], [Double]) = ([], [])
    for round in 0..<(report.isQuick ? 1 : 5) {
      let second = try FleetMachine.open("\(folder)/second.\(round)", redis.url)
      try await untilValid(second, origin)
      let before = origin.requestCount
      for url in urls {
        let start = now()
        _ = try await second.data(from: url)
        shared.append(Double(now() - start) / 1000)
      }
      guard origin.requestCount - before <= fewCount else { throw BenchError("responses were not shared") }
      for index in 0..<count {
        let start = now()
        guard redis.get(connection, "bare:\(index)") == body.count else { throw BenchError("Redis failed") }
        bare.append(Double(now() - start) / 1000)
      }
    }
    addMedian("shared hit", "16 KB", Self.own, shared)
    addMedian("shared hit", "16 KB", "hiredis, GET", bare)
  }

  // MARK: Misses

  /// Measures misses with a fleet, without, and with a Redis that does not reply.
  private func misses() async throws {
    let folder = try scratch.folder("fleet-misses")
    let redis = try FleetRedis(folder: folder)
    defer { redis.end() }
    let origin = try LoopbackOrigin(recordsRequests: false) { _ in
      Reply(200, [("Cache-Control", "max-age=3600")], body: Data(repeating: 7, count: 1 << 10))
    }
    defer { origin.stop() }
    let alone = try FleetMachine.open(folder + "/alone", nil)
    let member = try FleetMachine.open(folder + "/member", redis.url, lease: .seconds(3600))
    try await untilValid(member, origin)
    func miss(_ cache: LMDBURLCache, _ path: String) async throws -> Double {
      let start = now()
      _ = try await cache.data(from: origin.url(path))
      return Double(now() - start) / 1000
    }
    var times: [[Double]] = [[], []]
    for index in 0..<(report.isQuick ? 300 : 3000) {
      for (cache, peer) in [(alone, 0), (member, 1)] { times[peer].append(try await miss(cache, "/\(peer)/\(index)")) }
    }
    addMedian("miss", "1 KB", Self.own + ", in a fleet", times[1])
    addMedian("miss", "1 KB", Self.own, times[0])
    redis.suspend()
    defer { redis.resume() }
    var suspended: [Double] = []
    for index in 0..<100 { suspended.append(try await miss(member, "/suspended/\(index)")) }
    report.add(
      Self.suite, "one of the first 3 misses", "1 KB, Redis suspended", Self.own + ", in a fleet", unit: "us",
      [suspended[..<3].max() ?? 0])
    addMedian("later miss", "1 KB, Redis suspended", Self.own + ", in a fleet", Array(suspended[3...]))
  }

  /// Counts the fetches when many machines miss one URL at once.
  private func coldMachines() async throws {
    let folder = try scratch.folder("fleet-cold")
    let redis = try FleetRedis(folder: folder)
    defer { redis.end() }
    let origin = try LoopbackOrigin(recordsRequests: false) { request in
      if request.path == "/cold" { usleep(200_000) }
      return Reply(200, [("Cache-Control", "max-age=3600")], body: Data(repeating: 7, count: 16 << 10))
    }
    defer { origin.stop() }
    var caches: [LMDBURLCache] = []
    for number in 0..<50 { caches.append(try FleetMachine.open("\(folder)/\(number)", redis.url)) }
    for cache in caches { try await untilValid(cache, origin) }
    let before = origin.requestCount
    try await withThrowingTaskGroup(of: Void.self) { group in
      for cache in caches { group.addTask { _ = try await cache.data(from: origin.url("/cold")) } }
      try await group.waitForAll()
    }
    report.add(
      Self.suite, "fetches of one URL", "50 machines, at once", Self.own, unit: "requests",
      [Double(origin.requestCount - before)])
  }

  // MARK: Local hits

  private func localHits() async throws {
    let folder = try scratch.folder("fleet-local")
    let redis = try FleetRedis(folder: folder)
    defer { redis.end() }
    let origin = try LoopbackOrigin(recordsRequests: false) { _ in
      Reply(200, [("Cache-Control", "max-age=86400")], body: Data(repeating: 7, count: 1 << 10))
    }
    defer { origin.stop() }
    let alone = try FleetMachine.open(folder + "/alone", nil)
    let member = try FleetMachine.open(folder + "/member", redis.url, lease: .seconds(3600))
    try await untilValid(member, origin)
    let request = URLRequest(url: origin.url("/hit"))
    for cache in [alone, member] { _ = try await cache.data(for: request) }
    let operations = report.isQuick ? 20_000 : 200_000
    let samples = Harness.compare(
      [(Self.own, alone), (Self.own + ", in a fleet", member)].map { name, cache in
        BenchmarkCase(name: name, operations: operations) { _, _ in
          for _ in 0..<operations where cache.cachedResponse(for: request) == nil { fatalError("missed") }
        }
      }, rounds: report.isQuick ? 5 : 15)
    for name in samples.keys.sorted() {
      report.add(Self.suite, "cachedResponse", "1 KB, memory", name, unit: "ns", samples[name] ?? [])
    }
  }

  // MARK: Helpers

  private func addMedian(_ measure: String, _ scenario: String, _ peer: String, _ samples: [Double]) {
    let sorted = samples.sorted()
    report.add(Self.suite, measure, scenario, peer, unit: "us", [percentile(sorted, 0.5)])
    report.add(Self.suite, measure + ", p99", scenario, peer, unit: "us", [percentile(sorted, 0.99)])
  }

  /// Waits until a machine serves a stored response, which it does with a valid lease only.
  private func untilValid(_ cache: LMDBURLCache, _ origin: LoopbackOrigin) async throws {
    let url = origin.url("/valid")
    try await until {
      _ = try await cache.data(from: url)
      return cache.cachedResponse(for: URLRequest(url: url)) != nil
    }
  }

  private func until(_ condition: () async throws -> Bool) async throws {
    for _ in 0..<10_000 {
      if try await condition() { return }
      try await Task.sleep(for: .milliseconds(5))
    }
    throw BenchError("the fleet did not get ready")
  }
}

/// A process that represents a machine: it keeps a cache open until its input ends.
final class FleetMachine {
  static let command = "fleet-machine"
  private let process = Process()
  private let input = Pipe()

  init(_ folder: String, _ url: String, lease: Duration) throws {
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
    process.arguments = [Self.command, folder, url, "\(Int(lease / .milliseconds(1)))"]
    process.standardInput = input
    try process.run()
  }

  /// The work of the process.
  static func work(_ words: [String]) throws {
    guard words.count == 3, let milliseconds = Int(words[2]) else { throw BenchError("\(command) lacks arguments") }
    let cache = try open(words[0], words[1], lease: .milliseconds(milliseconds))
    while readLine() != nil {}
    withExtendedLifetime(cache) {}
  }

  static func open(_ folder: String, _ url: String?, lease: Duration = .seconds(10)) throws -> LMDBURLCache {
    var options = LMDBURLCache.Options()
    if let url {
      var configuration = RedisTier.Configuration()
      configuration.lease = lease
      options.fleet = try RedisTier(url: url, secret: Data(repeating: 7, count: 32), configuration: configuration)
    }
    return try LMDBURLCache(
      directory: URL(fileURLWithPath: folder), memoryCapacity: 32 << 20, diskCapacity: 64 << 20, options: options)
  }

  func suspend() { kill(process.processIdentifier, SIGSTOP) }
  func resume() { kill(process.processIdentifier, SIGCONT) }

  func end() {
    resume()
    endProcess(process)
  }
}

/// The Redis server of the suite, on a Unix socket.
private final class FleetRedis {
  private let process = Process()
  private let socket: String
  var url: String { "unix://" + socket }

  init(folder: String, options: [String] = []) throws {
    socket = folder + "/s"
    process.executableURL = URL(fileURLWithPath: "/usr/bin/redis-server")
    process.arguments = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder] + options
    process.standardOutput = FileHandle.nullDevice
    process.standardError = FileHandle.nullDevice
    try process.run()
    let deadline = now() + 30_000_000_000
    while true {
      if let connection = redisConnectUnix(socket) {
        defer { redisFree(connection) }
        if connection.pointee.err == 0 { return }
      }
      guard now() < deadline else { throw BenchError("the Redis server does not reply") }
      usleep(20_000)
    }
  }

  func suspend() { kill(process.processIdentifier, SIGSTOP) }
  func resume() { kill(process.processIdentifier, SIGCONT) }

  func end() {
    resume()
    endProcess(process)
  }

  func connect() throws -> UnsafeMutablePointer<redisContext> {
    guard let connection = redisConnectUnix(socket), connection.pointee.err == 0 else {
      throw BenchError("no connection to Redis")
    }
    return connection
  }

  private func command<Result>(
    _ connection: UnsafeMutablePointer<redisContext>, _ words: [Data], _ body: (redisReply) -> Result
  ) -> Result? {
    var lengths = words.map(\.count)
    let bytes = Array(words.joined())
    let reply = bytes.withUnsafeBytes { buffer -> UnsafeMutableRawPointer? in
      var offset = 0
      var pointers = lengths.map { count -> UnsafePointer<CChar>? in
        defer { offset += count }
        return buffer.baseAddress.map { ($0 + offset).assumingMemoryBound(to: CChar.self) }
      }
      return redisCommandArgv(connection, CInt(lengths.count), &pointers, &lengths)
    }
    guard let reply else { return nil }
    defer { freeReplyObject(reply) }
    return body(reply.assumingMemoryBound(to: redisReply.self).pointee)
  }

  func set(_ connection: UnsafeMutablePointer<redisContext>, _ key: String, _ value: Data) -> Bool {
    command(connection, [Data("SET".utf8), Data(key.utf8), value]) { $0.type == REDIS_REPLY_STATUS } ?? false
  }

  /// Returns the length of a value.
  func get(_ connection: UnsafeMutablePointer<redisContext>, _ key: String) -> Int? {
    command(connection, [Data("GET".utf8), Data(key.utf8)]) { $0.len }
  }

  /// The number of shared responses.
  func objectCount(_ connection: UnsafeMutablePointer<redisContext>) -> Int {
    command(connection, [Data("KEYS".utf8), Data("lmuc:*:o:*".utf8)]) { $0.elements } ?? 0
  }
}
