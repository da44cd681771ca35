import CacheActivity
import Foundation
import FoundationNetworking
import Glibc
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

@testable import FleetSharing
@testable import LMDBURLCache
@testable import RedisTier

/// A machine of a test's fleet: a cache with its own directory.
final class Machine: Sendable {
  let cache: LMDBURLCache
  let lines = LogLines()

  init(
    _ directory: URL, _ tier: RedisTier, _ configure: (inout LMDBURLCache.Options) -> Void = { _ in }
  ) throws {
    var options = LMDBURLCache.Options()
    configure(&options)
    options.fleet = tier
    // A cookie of one test must not be in the requests of the next.
    options.usesProcessCookies = false
    options.log = { [lines] in lines.append($0) }
    cache = try LMDBURLCache(directory: directory, memoryCapacity: 4 << 20, diskCapacity: 16 << 20, options: options)
  }

  var membership: Membership { cache.core.membership as! Membership }
  /// The counts of its directory. Tests open a store for each machine, so there are some.
  var counts: FleetActivity { cache.statistics.directory!.fleet }
  var hasLease: Bool { !cache.core.isCutOff }

  func get(_ url: URL) async throws -> String {
    String(decoding: try await cache.data(from: url).0, as: UTF8.self)
  }
}

final class LogLines: Sendable {
  private let lines = Mutex<[String]>([])
  var all: [String] { lines.withLock { $0 } }
  func append(_ line: String) { lines.withLock { $0.append(line) } }
}

/// A redis-server, an origin whose responses count up, and directories for machines.
final class FleetFixture: Sendable {
  let redis: RedisServerProcess
  let origin: LoopbackOrigin
  let directory: URL
  let configuration: RedisTier.Configuration

  init(
    _ configure: (inout RedisTier.Configuration) -> Void = { _ in }, redisOptions: [String] = [],
    handler: LoopbackOrigin.Handler? = nil
  ) throws {
    redis = try RedisServerProcess(redisOptions)
    var configuration = RedisTier.Configuration()
    configuration.lease = .seconds(1)
    configuration.lookupTimeout = .seconds(5)
    configure(&configuration)
    self.configuration = configuration
    let number = Mutex(0)
    origin = try LoopbackOrigin(
      handler: handler ?? { _ in
        let body = number.withLock { number -> Int in
          number += 1
          return number
        }
        return Reply(
          200, [("Cache-Control", "max-age=600"), ("Cache-Groups", "\"g\""), ("ETag", "\"\(body)\"")], "\(body)")
      })
    directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
  }

  deinit {
    origin.stop()
    try? FileManager.default.removeItem(at: directory)
  }

  func tier(_ configure: (inout RedisTier.Configuration) -> Void = { _ in }) throws -> RedisTier {
    var configuration = configuration
    configure(&configuration)
    return try RedisTier(url: redis.url, secret: testSecret, configuration: configuration)
  }

  /// Opens a machine and waits until it has a lease. Its purges wait for no lease of an earlier epoch.
  ///
  /// - Parameter proxy: The machine's way to Redis; nil for a direct one.
  func machine(
    _ name: String, over proxy: SocketProxy? = nil, _ configure: (inout LMDBURLCache.Options) -> Void = { _ in }
  ) async throws -> Machine {
    let tier = try RedisTier(url: proxy?.url ?? redis.url, secret: testSecret, configuration: configuration)
    let machine = try Machine(directory.appendingPathComponent(name), tier, configure)
    await wait { machine.hasLease }
    try mature()
    return machine
  }

  /// Records in Redis that no lease of an earlier epoch can be valid, so that purges need not wait for one.
  ///
  /// The fleet is new, so there was none. Otherwise Redis would know only after more than a lease.
  func mature() throws {
    try redis.command("HSET", "lmuc:{default}:ctl", "mature", "1")
  }

  // MARK: Directories

  /// Creates the directory of a machine and returns its path.
  func makeDirectory(_ name: String) throws -> String {
    let url = directory.appendingPathComponent(name)
    try FileManager.default.createDirectory(at: url, withIntermediateDirectories: true)
    return url.path
  }

  /// Copies the directory of a machine, as a power cut would leave it.
  func copyDirectory(_ name: String, to copy: String) {
    do {
      try FileManager.default.copyItem(
        at: directory.appendingPathComponent(name), to: directory.appendingPathComponent(copy))
    } catch {
      Issue.record(error)
    }
  }

  private func fleetFile(_ name: String) -> URL {
    directory.appendingPathComponent(name).appendingPathComponent(FleetFileLayout.fileName)
  }

  func copyFleetFile(of name: String, to other: String) throws {
    try FileManager.default.removeItem(at: fleetFile(other))
    try FileManager.default.copyItem(at: fleetFile(name), to: fleetFile(other))
  }

  /// Makes the next process that opens a fleet file take the machine for one that has restarted.
  ///
  /// A copy of a directory is then what a power cut has left on the disk, and not a copy of a machine.
  func forgetBoot(of name: String) throws {
    try write(Data(count: 40), at: 32, ofFleetFile: name)
    var status = stat()
    guard stat(fleetFile(name).path, &status) == 0 else { throw TestError("no fleet file") }
    let inode = withUnsafeBytes(of: UInt64(status.st_ino)) { Data($0) }
    try write(inode, at: UInt64(FleetFileLayout.Offset.inode), ofFleetFile: name)
  }

  func write(_ bytes: Data, at offset: UInt64, ofFleetFile name: String) throws {
    let file = try FileHandle(forUpdating: fleetFile(name))
    try file.seek(toOffset: offset)
    try file.write(contentsOf: bytes)
    try file.close()
  }

  /// The keys of the shared responses.
  func objectKeys() throws -> [String] {
    try redis.command("KEYS", "lmuc:*:o:*").asElements().map { try $0.asText() }
  }

  /// Makes all shared responses older, as if they had been stored so many seconds earlier.
  func ageObjects(by seconds: Double) throws {
    for key in try objectKeys() {
      let reply = try redis.command("HMGET", key, "k", "e", "s", "m", "h", "b").asElements(atLeast: 6)
      var object = try #require(try SharedObject(reply, key: reply[0].asBytes()))
      object.storedAt -= seconds
      let freshness = object.encodedFreshness(head: try reply[4].asBytes())
      try redis.connect().command(["HSET", key, "m"].map { Array($0.utf8) } + [freshness])
    }
  }

  /// Waits until this many shared responses, markers included, are stored, and no machine holds a fetch lock.
  func waitForObjects(_ count: Int) async throws {
    try await wait {
      try objectKeys().count == count
        && redis.command("KEYS", "lmuc:*:l:*").asElements().allSatisfy { lock in
          let value = try redis.command("GET", lock.asText())
          return value == .null || value == .bytes(Array("pass".utf8))
        }
    }
  }

  /// Everything that Redis keeps of shared responses and locks.
  func redisContent() throws -> String {
    var content = ""
    for key in try redis.command("KEYS", "lmuc:*:[ol]:*").asElements() {
      let name = try key.asText()
      content += name
      let type = try redis.command("TYPE", name).asText()
      let value = try redis.command(type == "hash" ? "HGETALL" : "GET", name)
      for part in type == "hash" ? try value.asElements() : [value] {
        content += String(decoding: try part.asBytes(), as: UTF8.self)
      }
    }
    return content
  }
}

/// Two machines of a fleet that shares no responses. The second one reaches Redis over a proxy, and has stored a page.
struct ProxiedMachine {
  let fleet: FleetFixture
  let url: URL
  let proxy: SocketProxy
  let one, other: Machine
  let body: String

  init() async throws {
    fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    url = fleet.origin.url("/a")
    proxy = try SocketProxy(to: fleet.redis.socketPath)
    one = try await fleet.machine("1")
    other = try await fleet.machine("2", over: proxy)
    body = try await other.get(url)
  }
}
