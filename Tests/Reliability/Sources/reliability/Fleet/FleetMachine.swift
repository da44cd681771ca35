import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import RedisTier
import StoreContract

/// A process that represents a machine: a cache with its own directory, and tasks that load and purge.
final class FleetMachine: Sendable {
  private let number: Int
  private let seed: UInt64
  private let port: Int
  private let ledger: Ledger
  private let start = now()

  init(number: Int, seed: UInt64, port: Int, ledgerPath: String, machineCount: Int) {
    self.number = number
    self.seed = seed
    self.port = port
    ledger = .fleet(path: ledgerPath, machineCount: machineCount)
  }

  static let lease = 0.8
  /// For how long a purge waits for machines that do not confirm.
  static let wait = lease * 1.25 + 0.25

  private static func configuration(logCount: Int, _ certificates: FleetCertificates?) -> RedisTier.Configuration {
    var configuration = RedisTier.Configuration()
    configuration.lease = .milliseconds(Int(lease * 1000))
    configuration.maximumLogCount = logCount
    configuration.objectConnectionCount = 2
    configuration.fetchLockLease = .milliseconds(500)
    configuration.maximumFetchWait = .seconds(1)
    if let certificates {
      // On a busy machine, connecting to Sentinels and a server by TLS takes longer than a lookup may by default.
      // Nothing would be shared.
      configuration.lookupTimeout = configuration.commandTimeout
      configuration.tls.certificateAuthorityFile = certificates.authority
      configuration.tls.clientCertificate = .init(
        certificateFile: certificates.certificate, keyFile: certificates.keyFile)
    }
    return configuration
  }

  /// Works until the scenario is over or the machine is told to leave, and closes the cache.
  ///
  /// - Parameters:
  ///   - certificates: Those of its connections by TLS; nil for connections without.
  ///   - rule: The rule of the protocol that the machine breaks; nil for none.
  func run(
    directory: String, url: String, certificates: FleetCertificates?, logCount: Int, breaking rule: FleetRule?
  ) throws {
    // A connection that a proxy was just accepting when this process started would never end.
    for descriptor in CInt(3)..<256 { close(descriptor) }
    let isDone = DispatchSemaphore(value: 0)
    do {
      var options = LMDBURLCache.Options()
      let tier = try RedisTier(
        url: url, secret: Data(repeating: 7, count: 32),
        configuration: Self.configuration(logCount: logCount, certificates))
      options.fleet = rule.map { TierDouble(tier: tier, rule: $0) } ?? tier
      options.usesProcessCookies = false
      options.log = { say("log: \($0)") }
      let cache = try FleetRule.makeCache(
        directory: URL(fileURLWithPath: directory), options: options, breaking: rule)
      Task.detached { [self] in
        await withTaskGroup(of: Void.self) { group in
          for task in 0..<3 { group.addTask { await self.load(cache, task) } }
          group.addTask { await self.purge(cache) }
        }
        isDone.signal()
      }
      isDone.wait()
    }
    // The cache leaves the fleet when its last reference, which a task may still hold, is released.
    usleep(200_000)
  }

  private var isOver: Bool { ledger.isOver || ledger.isLeaving(number) }

  private func pause(_ milliseconds: Int) async {
    // A task of this process is never cancelled.
    try? await Task.sleep(for: .milliseconds(milliseconds))
  }

  // MARK: Requests

  private func load(_ cache: LMDBURLCache, _ task: Int) async {
    var random = SeededRandom(seed &+ UInt64(number * 100 + task))
    while !isOver {
      let key = random.below(FleetContent.keyCount)
      let request = URLRequest(url: FleetContent.url(key, port: port))
      let facts = ledger.facts(key, by: number)
      if random.below(4) == 0 {
        if let found = cache.cachedResponse(for: request) {
          ledger.count(.hits)
          // As with URLCache, the caller decides whether to use a stale response, such as one that a soft purge covers.
          check(found.data, found.response, facts, mayBeStale: true, "cachedResponse")
        }
      } else {
        do {
          let result = try await cache.load(request)
          if result.source != .miss { ledger.count(.hits) }
          if result.source == .hit { ledger.countServed(by: number) }
          ledger.setSharedCount(cache.statistics.directory?.fleet.sharedHits ?? 0, of: number)
          check(result.data, result.response, facts, mayBeStale: false, "load, \(result.source.rawValue)")
        } catch {
          ledger.count(.failures)
          say("a load failed: \(error)")
        }
      }
      ledger.count(.requests)
      await pause(random.below(8))
    }
  }

  /// Compares a response with the purges that had returned when its request began.
  private func check(
    _ body: Data, _ response: URLResponse, _ facts: Ledger.Facts, mayBeStale: Bool, _ call: String
  ) {
    guard let version = UInt64(String(decoding: body, as: UTF8.self)),
      let field = (response as? HTTPURLResponse)?.value(forHTTPHeaderField: "X-Tick"), let tick = UInt64(field)
    else {
      ledger.count(.failures)
      return say("a response is malformed: \(response)")
    }
    let answer = Ledger.FoundResponse(
      version: version, revision: tick == version ? 0 : tick, isSoftPurged: mayBeStale ? nil : false)
    guard let violation = ledger.violation(answer, after: facts) else { return }
    ledger.count(.violations)
    say("violation after \(String(format: "%.2f", now() - start)) s: \(call) on machine \(number): \(violation)")
  }

  // MARK: Purges

  private func purge(_ cache: LMDBURLCache) async {
    var random = SeededRandom(seed &+ UInt64(number * 100 + 50))
    while !isOver {
      await pause(random.below(500))
      let purge = FleetPurge.random(&random)
      let isSoft = random.below(3) == 0
      let keys = Set(purge.keys)
      let recorded = ledger.beginPurge(by: number, isSoft: isSoft) { keys.contains($0) }
      ledger.end(recorded, tookEffect: await run(purge, isSoft: isSoft, on: cache))
    }
  }

  /// Purges, and returns whether all machines obey.
  private func run(_ purge: FleetPurge, isSoft: Bool, on cache: LMDBURLCache) async -> Bool {
    let began = now()
    do {
      let result = try await cache.purge(purge.scope(port: port), mode: isSoft ? .soft : .hard)
      ledger.count(.purges)
      if result?.expiredLeaseCount ?? 0 > 0 { ledger.count(.purgesByWait) }
      ledger.raise(.longestPurge, to: UInt64((now() - began) * 1000))
      return true
    } catch let error as RedisTierError where error.code == .unconfirmed || error.code == .notPosted {
      // In force on this machine, and perhaps on others: the promise is void.
      ledger.count(error.code == .unconfirmed ? .unconfirmed : .unposted)
    } catch {
      ledger.count(.failures)
      say("a purge failed: \(error)")
    }
    return false
  }
}
