import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import Synchronization

/// How long a purge among many entries takes while another thread stores as fast as it can; and what readers, and a thread that
/// stores a thousand times a second, wait while the space comes back.
enum PurgeBench {
  static let hostCount = 64
  private static let body = Data(repeating: 7, count: 64)

  private static func response(_ number: Int, host: Int, at date: Date) -> NewResponse {
    NewResponse(
      key: key(number, host: host), status: 200,
      fields: HTTPFields([("Cache-Groups", "\"g\(number % 3)\"")]), body: body, facts: Content.facts(at: date),
      vary: VarySelection(selectors: []))
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

    let stalls = Stalls()
    // The writer's host is never purged but by date, so that what others purge stays gone.
    startThread {
      let timer = CallTimer(stalls)
      var number = 0
      while !stalls.isOver {
        number += 1
        tick.advance()
        // At full speed the queue is full, and a store waits for the disk whatever else goes on.
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
        // As long again without the store: the machine keeps the thread from its processor then as often as in a read.
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
      // A little apart, as people purge; the work behind one goes on beside the next.
      usleep(20_000)
    }
    for round in 0..<roundCount {
      let host = round % (hostCount - 1)
      timed("prefix") { store.removeResponses(withPrefix: URL(string: "http://h\(host).example/p1/")!) }
      timed("group") { store.removeResponses(inGroup: "g2", origin: URL(string: "http://h\(host).example/")!) }
      timed("host") { store.removeResponses(forHost: "h\(host).example") }
      timed("since") { store.removeResponses(since: Ledger.date(tick.now - min(tick.now, 5000))) }
      if store.lookup(key(host, host: host)) != nil { fail("a purged response is there") }
    }
    timed("all") { store.removeAll() }
    stalls.isPaced = true
    _ = stalls.take()
    // What was queued before is written first, and a store that finds the queue full waits for that.
    while store.statistics.queuedByteCount > 1 << 20 { usleep(10_000) }
    stalls.forget(\.store)
    let before = store.entryCount
    let began = now()
    let (least, end) = leastSeen { store.entryCount }
    let deleted = Double(before - least) / max(0.001, end - began)
    let full = store.diskByteCount
    let (kept, _) = leastSeen { store.diskByteCount }
    let busy = stalls.take()
    let givenBack = (full - kept) >> 20
    stalls.end()
    usleep(50_000)
    let all = times.values.flatMap { $0 }.sorted()
    let kinds = times.sorted { $0.key < $1.key }.map { name, values in
      "\(name) \(text(percentile(values.sorted(), 0.5)))"
    }
    say(
      "\(filled) entries, \(all.count) purges beside a writer: median \(text(percentile(all, 0.5))) ms, "
        + "p99 \(text(percentile(all, 0.99))) ms (medians: \(kinds.joined(separator: ", "))); then \(Int(deleted)) entries "
        + "a second are deleted and \(givenBack) MiB given back. Meanwhile: \(text(busy)). Before: \(text(quiet))")
    let complaints = store.checkInvariants()
    if !complaints.isEmpty { fail("\(complaints)") }
  }

  /// Waits until a figure has not come down for three seconds; returns it, and when it came down last.
  private static func leastSeen(_ figure: () -> Int) -> (Int, Double) {
    var least = figure()
    var seenAt = now()
    while now() - seenAt < 3 {
      usleep(50_000)
      let value = figure()
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

  private static func text(_ longest: Stalls.Kinds) -> String {
    func text(_ longest: Stalls.Longest) -> String {
      "\(self.text(longest.call * 1000)) ms (asleep \(self.text(longest.wait * 1000)))"
    }
    return "longest read \(text(longest.read)), longest of 1,000 stores a second \(text(longest.store)), the reading "
      + "thread kept for \(self.text(longest.pause.call * 1000)) ms between reads"
  }
}

/// A clock that goes by one with each response.
final class Tick: Sendable {
  private let value = Atomic<UInt64>(1)
  var now: UInt64 { value.load(ordering: .relaxed) }
  func advance() { value.wrappingAdd(1, ordering: .relaxed) }
}

extension Tick {
  /// A number that threads share.
  final class Stored: Sendable {
    private let bits = Atomic<UInt64>(0)
    var value: UInt64 {
      get { bits.load(ordering: .relaxed) }
      set { bits.store(newValue, ordering: .relaxed) }
    }
  }
}
