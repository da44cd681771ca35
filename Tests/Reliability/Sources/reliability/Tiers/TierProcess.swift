import CacheModel
import CachingClient
import Foundation
import FoundationNetworking
import Glibc
import HTTPCaching
import LMDBURLCache
import ResponseStore
import StoreContract
import Synchronization

/// A process of a scenario, with its caches and the threads and tasks that use them until the time has passed.
final class TierProcess: Sendable {
  let scenario: TierScenario
  let content: TierContent
  let ledger: Ledger
  let checks: TierChecks
  let number: Int
  let seed: UInt64
  let directory: String
  let caches: [LMDBURLCache]
  let store: ResponseStore
  private let deadline: Double
  private let start: Double
  private let running = Atomic<Int>(0)
  private let counts = Mutex(Counts())

  struct Counts {
    var lookups = 0
    var hits = 0
    var stores = 0
    var loads = 0
    var purges = 0
    var longestPurge = 0.0
    var longestLookup = 0.0
    var longestStore = 0.0
    var violations: [Ledger.Violation.Kind: Int] = [:]
  }

  init(
    _ scenario: TierScenario, directory: String, ledgerPath: String, number: Int, seconds: Double, seed: UInt64,
    port: Int
  ) throws {
    self.scenario = scenario
    self.number = number
    self.seed = seed
    self.directory = directory
    content = TierContent(
      storedKeyCount: scenario.storedKeyCount, fetchedKeyCount: scenario.fetchedKeyCount, sizes: scenario.sizes,
      port: port)
    let ledger = scenario.ledger(path: ledgerPath)
    self.ledger = ledger
    checks = TierChecks(ledger: ledger, content: content)
    var options = LMDBURLCache.Options()
    options.clock = { Ledger.date(ledger.position) }
    options.log = { say("log: \($0)") }
    var storeOptions = ResponseStore.Options(capacityByteCount: scenario.diskCapacity)
    storeOptions.clock = options.clock
    storeOptions.log = options.log
    caches = try scenario.memoryCapacities.map { capacity in
      try Self.retryingOnce {
        try LMDBURLCache(
          directory: URL(fileURLWithPath: directory), memoryCapacity: capacity, diskCapacity: scenario.diskCapacity,
          options: options)
      }
    }
    // Opening the directory again returns the store of the caches.
    store = try Self.retryingOnce { try ResponseStore.open(directory: directory, options: storeOptions) }
    start = now()
    deadline = start + seconds
  }

  /// Opens a cache or store. In the scenario of a failing disk, the one operation that fails may be part of the
  /// opening.
  private static func retryingOnce<Opened>(_ open: () throws -> Opened) throws -> Opened {
    do {
      return try open()
    } catch {
      say("log: \(error)")
      return try open()
    }
  }

  var isOver: Bool { now() > deadline }

  /// Works until the time has passed, prints the counts and exits.
  func run() -> Never {
    alarm(UInt32(deadline - start) + 120)
    spawn(scenario.lookupThreadCount, "lookups") { self.lookUp(&$0, cache: $1) }
    spawn(scenario.storeThreadCount, "stores") { self.storeByHand(&$0, cache: $1) }
    spawn(scenario.pieceThreadCount, "pieces") { random, _ in self.storeInPieces(&random) }
    spawn(scenario.purgeThreadCount, "purges") { random, _ in self.purge(&random) }
    for task in 0..<scenario.fetchTaskCount {
      running.add(1, ordering: .relaxed)
      Task.detached {
        var random = SeededRandom(self.seed &+ UInt64(self.number * 1000 + 500 + task))
        while !self.isOver {
          let cache = task % self.caches.count
          await self.scenario.streams ? self.stream(&random, cache: cache) : self.fetch(&random, cache: cache)
        }
        self.running.subtract(1, ordering: .releasing)
      }
    }
    while running.load(ordering: .acquiring) > 0 { usleep(1000) }
    for cache in caches where !cache.flush() { say("log: a flush failed") }
    let counts = counts.withLock { $0 }
    let longest = [counts.longestLookup, counts.longestStore, counts.longestPurge].map { "\(Int($0 * 1000))" }
    let kinds = Ledger.Violation.Kind.allCases.map { "\(counts.violations[$0] ?? 0)" }
    say("longest \(longest.joined(separator: " "))")
    say("numbers \(counts.lookups) \(counts.hits) \(counts.stores) \(counts.loads) \(counts.purges)")
    say("violations \(kinds.joined(separator: " "))")
    exit(counts.violations.isEmpty ? 0 : 1)
  }

  private func spawn(
    _ count: Int, _ name: String, _ body: @escaping @Sendable (inout SeededRandom, Int) -> Void
  ) {
    for thread in 0..<count {
      running.add(1, ordering: .relaxed)
      startThread {
        var random = SeededRandom(self.seed &* 31 &+ UInt64(self.number * 1000 + thread) &+ UInt64(name.count) << 32)
        while !self.isOver { body(&random, thread % self.caches.count) }
        self.running.subtract(1, ordering: .releasing)
      }
    }
  }

  // MARK: Work

  private func lookUp(_ random: inout SeededRandom, cache: Int) {
    let key = random.below(content.keyCount)
    let request = URLRequest(url: content.url(key))
    var hitCount = 0
    var longest = 0.0
    for round in 0..<16 {
      let before = ledger.facts(key, by: number)
      let began = now()
      let found = caches[cache].cachedResponse(for: request)
      longest = max(longest, now() - began)
      guard let found else { continue }
      hitCount += 1
      // The beginning of a body that the origin has cut.
      if (found.response as? HTTPURLResponse)?.statusCode == 206 { continue }
      check(found.data, url: round == 0 ? found.response.url : nil, before, source: nil, "lookup", cache: cache)
      // Checking large bodies takes long.
      if found.data.count > 100_000 { break }
    }
    counts.withLock { counts in
      counts.lookups += 16
      counts.hits += hitCount
      counts.longestLookup = max(counts.longestLookup, longest)
    }
  }

  private func storeByHand(_ random: inout SeededRandom, cache: Int) {
    let key = random.below(content.storedKeyCount)
    if scenario.storesAfterPurges, !ledger.isPurged(key, by: number) {
      usleep(50)
      return
    }
    let version = ledger.beginWrite(to: key, by: number)
    let identity = TierContent.Identity(
      key: key, version: version, process: number, began: version, time: UInt64(now() * 1e6))
    let url = content.url(key)
    guard
      let response = HTTPURLResponse(
        url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: content.fields(identity))
    else { fail("no response") }
    let policy = random.below(16) == 0 ? URLCache.StoragePolicy.allowedInMemoryOnly : .allowed
    let cached = CachedURLResponse(
      response: response, data: content.body(identity), userInfo: nil, storagePolicy: policy)
    let began = now()
    caches[cache].storeCachedResponse(cached, for: URLRequest(url: url))
    let taken = now() - began
    // From now on, no cache of the process may return an older one.
    ledger.endWrite(version, to: key, by: number)
    counts.withLock { counts in
      counts.stores += 1
      counts.longestStore = max(counts.longestStore, taken)
    }
    // Pause so that the writer can keep up, because dropped writes are not checked.
    usleep(UInt32(random.below(scenario.storePause)))
  }

  /// Stores a body that arrives in pieces, past the caching client. Its store permits would hide that the store ignores
  /// a purge in between.
  private func storeInPieces(_ random: inout SeededRandom) {
    let key = random.below(content.storedKeyCount)
    let before = ledger.takePosition()
    let token = store.removalToken
    let basis = Ledger.Basis.token(after: before, before: ledger.takePosition())
    let version = ledger.beginWrite(to: key, by: number, basis: basis)
    let identity = TierContent.Identity(
      key: key, version: version, process: number, began: version, time: UInt64(now() * 1e6))
    let body = store.makeIncomingBody()
    var rest = content.body(identity)[...]
    var isAccepted = true
    while isAccepted, !rest.isEmpty {
      isAccepted = body.write([rest.prefix(200_000)])
      rest = rest.dropFirst(200_000)
      usleep(UInt32(random.below(40_000)))
    }
    isAccepted = isAccepted && body.complete()
    if isAccepted {
      let date = Ledger.date(version)
      let head = CacheableResponse(
        status: 200, fields: HeaderFields(content.fields(identity).map { ($0.key, $0.value) }), body: Data(),
        freshness: FreshnessInfo(responseTime: date, initialAge: 0, lifetime: 1e9, date: date),
        vary: VaryKey(fields: []))
      guard let requestKey = RequestKey(urlString: content.url(key).absoluteString) else { fail("no key") }
      isAccepted = body.store(head, for: requestKey, attachment: nil, askedAt: token, by: nil) == .stored
    }
    ledger.endWrite(version, to: key, by: number, isAccepted: isAccepted)
    counts.withLock { $0.stores += 1 }
    usleep(UInt32(random.below(scenario.storePause)))
  }

  private func fetch(_ random: inout SeededRandom, cache: Int) async {
    let key = content.storedKeyCount + random.below(content.fetchedKeyCount)
    var request = URLRequest(url: content.url(key))
    if random.below(8) == 0 { request.cachePolicy = .reloadIgnoringLocalCacheData }
    let before = ledger.facts(key, by: number)
    request.setValue("\(max(1, before.position)) \(number)", forHTTPHeaderField: "X-Began")
    counts.withLock { $0.loads += 1 }
    do {
      let result = try await caches[cache].load(request)
      let isOwn = result.source == .miss
      if isOwn, result.storageRefusal == nil, let identity = content.identity(of: result.data, for: key) {
        ledger.endWrite(identity.version, to: key, by: number)
      }
      check(result.data, url: result.response.url, before, source: result.source.rawValue, "load", cache: cache)
    } catch {
      say("a load failed: \(error)")
    }
    // Pause so that purges and lookups happen between loads.
    do { try await Task.sleep(for: .milliseconds(random.below(20))) } catch { return }
  }

  /// Reads a body while it arrives. One of four readers leaves before the end.
  private func stream(_ random: inout SeededRandom, cache: Int) async {
    let key = content.storedKeyCount + random.below(content.fetchedKeyCount)
    var request = URLRequest(url: content.url(key))
    if random.below(8) == 0 { request.cachePolicy = .reloadIgnoringLocalCacheData }
    let limit = random.below(4) == 0 ? random.below(3_000_000) : .max
    let before = ledger.facts(key, by: number)
    request.setValue("\(max(1, before.position)) \(number)", forHTTPHeaderField: "X-Began")
    counts.withLock { $0.loads += 1 }
    do {
      let (chunks, response) = try await caches[cache].bytes(for: request)
      var body = Data()
      for try await chunk in chunks {
        body.append(chunk)
        if body.count > limit { return }
      }
      check(body, url: response.url, before, source: nil, "stream", cache: cache)
    } catch {
      // The origin cuts bodies, and purges end those that are read from the disk.
      say("a stream failed: \(error)")
    }
    // Pause so that purges and lookups happen between streams.
    do { try await Task.sleep(for: .milliseconds(random.below(20))) } catch { return }
  }

  private func purge(_ random: inout SeededRandom) {
    let cache = random.below(caches.count)
    usleep(UInt32(random.below(scenario.purgePause) + 1))
    let purge = TierPurge.random(&random, content, tick: ledger.position, isWide: scenario.purgesWidely)
    let isSoft = random.below(3) == 0
    let began = now()
    purge.run(isSoft: isSoft, of: content, by: number, ledger) {
      if isSoft {
        purge.runSoftly(on: caches[cache], store: store, content)
      } else {
        purge.run(on: caches[cache], store: store, content)
      }
      // A store that is used without a cache is not reopened after a failure, so its removal had no effect.
      switch (purge, isSoft) {
      case (.url, false), (.key, true): return !store.hasFailed
      default: return true
      }
    }
    let taken = now() - began
    counts.withLock { counts in
      counts.purges += 1
      counts.longestPurge = max(counts.longestPurge, taken)
    }
  }

  private func check(
    _ body: Data, url: URL?, _ before: Ledger.Facts, source: String?, _ call: String, cache: Int
  ) {
    guard let violation = checks.violation(body, url: url, before, source: source) else { return }
    let count = counts.withLock { counts -> Int in
      counts.violations[violation.kind, default: 0] += 1
      return counts.violations[violation.kind, default: 0]
    }
    if count <= 3 {
      let time = String(format: "%.2f", now() - start)
      say(
        "violation after \(time) s: \(call)\(source.map { " (\($0))" } ?? "") in process \(number), cache \(cache), "
          + "\(content.url(before.slot).path), \(body.count) bytes: \(violation)")
    }
  }
}
