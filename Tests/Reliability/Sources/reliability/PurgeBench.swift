import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import StoreContract
import Synchronization

/// Measures the latency of purges among many entries while another thread stores as fast as possible.
///
/// Afterwards it measures the maximum latencies of reads, and of 1,000 writes per second, while purged rows are deleted
/// and their space is released.
enum PurgeBench {
  static let hostCount = 64
  private static let body = Data(repeating: 7, count: 64)

  private static func response(_ number: Int, host: Int, at date: Date) -> KeyedResponse {
    KeyedResponse(
      key: key(number, host: host),
      response: CacheableResponse(
        status: 200, fields: HeaderFields([("Cache-Groups", "\"g\(number % 3)\""), ("ETag", "\"1\"")]), body: body,
        freshness: Content.freshness(at: date), vary: VaryKey(fields: [])))
  }

  private static func key(_ number: Int, host: Int) -> RequestKey {
    RequestKey(urlString: "http://h\(host).example/p\(number % 4)/\(number)")!
  }

  static func run(_ directory: String, entryCount: Int, roundCount: Int) throws(StoreError) {
    var options = ResponseStore.Options(capacityByteCount: max(64 << 20, entryCount * 1200))
    options.fullQueueTimeout = .seconds(60)
    let tick = Tick()
    options.clock = { Ledger.date(tick.now) }
    let store = try ResponseStore.open(directory: directory, options: options)
    for number in 0..<entryCount {
      tick.advance()
      store.store(response(number, host: number % (hostCount - 1), at: Ledger.date(tick.now)))
    }
    try store.flush()
    let filled = store.entryCount

    let stalls = LatencyRecorder()
    // The writer stores only responses of its own host, so purged responses of other hosts are not stored again.
    startThread {
      let timer = CallTimer(stalls)
      var number = 0
      while !stalls.isOver {
        number += 1
        tick.advance()
        // At full speed the write queue is full, and every write waits for the disk.
        if stalls.isPaced { usleep(1000) }
        let response = response(number, host: hostCount - 1, at: Ledger.date(tick.now))
        timer.time(\.store) { store.store(response) }
      }
    }
    startThread {
      let timer = CallTimer(stalls)
      var random = SeededRandom(1)
      while !stalls.isOver {
        let number = random.below(entryCount)
        let key = key(number, host: number % (hostCount - 1))
        let seconds = timer.time(\.read) { _ = store.lookup(key) }
        // Spin for as long as the read took, to measure how long the system delays the thread without the store.
        timer.spin(\.pause, seconds: min(seconds, 50e-6))
      }
    }
    stalls.isPaced = true
    usleep(1_000_000)
    let quiet = stalls.take()
    stalls.isPaced = false
    usleep(300_000)
    var times: [String: [Double]] = [:]
    func timed(_ name: String, _ body: () -> Void) {
      let began = now()
      body()
      times[name, default: []].append((now() - began) * 1000)
      // Leave some time between purges, as in practice. The deletion after a purge continues during the next one.
      usleep(20_000)
    }
    let soft = softPurges(of: store, entryCount: entryCount, roundCount: roundCount, tick, stalls)
    for round in 0..<roundCount {
      let host = round % (hostCount - 1)
      timed("prefix") { store.remove(.urlPrefix(URL(string: "http://h\(host).example/p1/")!)!) }
      timed("group") { store.remove(.group("g2", ofOrigin: URL(string: "http://h\(host).example/")!)!) }
      timed("tag") { store.remove(.tag("other", in: ["Cache-Groups"])!) }
      timed("host") { store.remove(.host("h\(host).example")) }
      timed("since") { store.remove(.since(Ledger.date(tick.now - min(tick.now, 5000)))) }
      if store.lookup(key(host, host: host)) != nil { fail("a purged response was found") }
    }
    timed("all") { store.remove(.everything) }
    stalls.isPaced = true
    _ = stalls.take()
    // Wait until the queue is almost empty, because a write waits while the queue is full.
    while store.statistics.queuedByteCount > 1 << 20 { usleep(10_000) }
    stalls.forget(\.store)
    let before = store.entryCount
    let began = now()
    let (least, end) = minimum { store.entryCount }
    let deleted = Double(before - least) / max(0.001, end - began)
    let full = store.diskByteCount
    let (kept, _) = minimum { store.diskByteCount }
    let busy = stalls.take()
    let released = (full - kept) >> 20
    stalls.end()
    usleep(50_000)
    let all = times.values.flatMap { $0 }.sorted()
    let kinds = times.sorted { $0.key < $1.key }.map { name, values in
      "\(name) \(text(percentile(values.sorted(), 0.5)))"
    }
    say(
      "\(filled) entries, \(all.count) purges during writes: median \(text(percentile(all, 0.5))) ms, "
        + "p99 \(text(percentile(all, 0.99))) ms (medians: \(kinds.joined(separator: ", "))); "
        + "then \(Int(deleted)) entries per second are deleted and \(released) MiB released. "
        + "During deletion: \(text(busy)). Before: \(text(quiet)). \(soft)")
    let violations = store.checkInvariants()
    if !violations.isEmpty { fail("\(violations)") }
  }

  /// Measures soft purges during writes, and the marking of all entries after the last one.
  private static func softPurges(
    of store: ResponseStore, entryCount: Int, roundCount: Int, _ tick: Tick, _ stalls: LatencyRecorder
  ) -> String {
    var times: [Double] = []
    func timed(_ scope: RemovalScope?) {
      guard let scope else { fail("no scope") }
      let began = now()
      store.softPurge(scope)
      times.append((now() - began) * 1000)
      usleep(20_000)
    }
    for round in 0..<roundCount {
      let host = round % (hostCount - 1)
      timed(.urlPrefix(URL(string: "http://h\(host).example/p1/")!))
      timed(.group("g2", ofOrigin: URL(string: "http://h\(host).example/")!))
      timed(.host("h\(host).example"))
      timed(.since(Ledger.date(tick.now - min(tick.now, 5000))))
      guard let found = store.lookup(key(host, host: host)) else { continue }
      if !found.freshness.flags.contains(.softPurged) { fail("a fresh response was found after a soft purge") }
    }
    timed(.everything)
    stalls.isPaced = true
    _ = stalls.take()
    let began = now()
    // A write waits while the queue is full.
    while store.statistics.queuedByteCount > 1 << 20 { usleep(10_000) }
    stalls.forget(\.store)
    while store.pendingRemovalCount > 0, now() - began < 300 { usleep(10_000) }
    let marking = now() - began
    let busy = stalls.take()
    // The writes have evicted some of the entries.
    let remaining = (0..<entryCount).reversed().lazy.map { key($0, host: $0 % (hostCount - 1)) }
      .filter { store.lookup($0) != nil }
    let validations = Validations.count(in: store, tick, urls: remaining.prefix(2000).map(\.urlString))
    stalls.isPaced = false
    times.sort()
    return "Before these, \(times.count) soft purges during writes: median \(text(percentile(times, 0.5))) ms, "
      + "p99 \(text(percentile(times, 0.99))) ms; then all \(store.entryCount) entries were marked in "
      + "\(text(marking)) s. During marking: \(text(busy)). \(validations)"
  }

  /// Waits until a value has not decreased for three seconds; returns its minimum and the time of its last decrease.
  private static func minimum(of currentValue: () -> Int) -> (Int, Double) {
    var least = currentValue()
    var seenAt = now()
    while now() - seenAt < 3 {
      usleep(50_000)
      let value = currentValue()
      guard value < least else { continue }
      least = value
      seenAt = now()
    }
    return (least, seenAt)
  }

  private static func percentile(_ sorted: [Double], _ share: Double) -> Double {
    sorted[min(sorted.count - 1, Int(Double(sorted.count) * share))]
  }

  private static func text(_ number: Double) -> String { "\((number * 100).rounded() / 100)" }

  private static func text(_ longest: LatencyRecorder.Kinds) -> String {
    func text(_ longest: LatencyRecorder.Longest) -> String {
      "\(self.text(longest.call * 1000)) ms (of it blocked: \(self.text(longest.wait * 1000)) ms)"
    }
    return "maximum read latency \(text(longest.read)), "
      + "maximum write latency at 1,000 writes per second \(text(longest.store)), "
      + "scheduling delay without the store \(self.text(longest.pause.call * 1000)) ms"
  }
}

/// A clock that advances by one for each response.
final class Tick: Sendable {
  private let value = Atomic<UInt64>(1)
  var now: UInt64 { value.load(ordering: .relaxed) }
  func advance() { value.wrappingAdd(1, ordering: .relaxed) }
}

extension Tick {
  /// A number shared by threads.
  final class Stored: Sendable {
    private let bits = Atomic<UInt64>(0)
    var value: UInt64 {
      get { bits.load(ordering: .relaxed) }
      set { bits.store(newValue, ordering: .relaxed) }
    }
  }
}
