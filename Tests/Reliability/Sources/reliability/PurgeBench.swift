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
      var number = 0
      while !stalls.isOver {
        number += 1
        tick.advance()
        // At full speed the queue is full, and a store waits for the disk whatever else goes on.
        if stalls.isPaced { usleep(1000) }
        stalls.time(\.store) { store.store(response(number, host: hostCount - 1, at: Ledger.date(tick.now))) }
      }
    }
    startThread {
      var random = SeededRandom(1)
      while !stalls.isOver {
        let number = random.below(entryCount)
        stalls.time(\.read) { _ = store.lookup(key(number, host: number % (hostCount - 1))) }
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
    // What was queued before is written first.
    while store.statistics.queuedByteCount > 1 << 20 { usleep(10_000) }
    _ = stalls.take()
    let before = store.entryCount
    let began = now()
    waitUntilLeast { store.entryCount }
    let deleted = Double(before - store.entryCount) / (now() - began)
    let full = store.diskByteCount
    waitUntilLeast { store.diskByteCount }
    let busy = stalls.take()
    let givenBack = (full - store.diskByteCount) >> 20
    stalls.end()
    usleep(50_000)
    let all = times.values.flatMap { $0 }.sorted()
    let kinds = times.sorted { $0.key < $1.key }.map { name, values in
      "\(name) \(text(percentile(values.sorted(), 0.5)))"
    }
    say(
      "\(filled) entries, \(all.count) purges beside a writer: median \(text(percentile(all, 0.5))) ms, "
        + "p99 \(text(percentile(all, 0.99))) ms (medians: \(kinds.joined(separator: ", "))); then \(Int(deleted)) entries "
        + "a second are deleted and \(givenBack) MiB given back, beside which the longest read takes \(text(busy.read * 1000)) ms (without "
        + "\(text(quiet.read * 1000))), the longest of 1,000 stores a second \(text(busy.store * 1000)) ms (without "
        + "\(text(quiet.store * 1000)))")
    let complaints = store.checkInvariants()
    if !complaints.isEmpty { fail("\(complaints)") }
  }

  /// Returns when a figure has not come down for a second.
  private static func waitUntilLeast(_ figure: () -> Int) {
    var least = figure()
    var seenAt = now()
    while now() - seenAt < 1 {
      usleep(50_000)
      let value = figure()
      guard value < least else { continue }
      least = value
      seenAt = now()
    }
  }

  private static func percentile(_ sorted: [Double], _ share: Double) -> Double {
    sorted[min(sorted.count - 1, Int(Double(sorted.count) * share))]
  }

  private static func text(_ number: Double) -> String { "\((number * 100).rounded() / 100)" }
}

/// A clock that goes by one with each response.
final class Tick: Sendable {
  private let value = Atomic<UInt64>(1)
  var now: UInt64 { value.load(ordering: .relaxed) }
  func advance() { value.wrappingAdd(1, ordering: .relaxed) }
}

/// The longest that a call took, by kind.
final class Stalls: Sendable {
  struct Longest {
    var read = 0.0
    var store = 0.0
  }

  private let longest = Mutex(Longest())
  private let over = Atomic<Bool>(false)

  private let paced = Atomic<Bool>(false)

  /// Whether the storing thread takes its time.
  var isPaced: Bool {
    get { paced.load(ordering: .relaxed) }
    set { paced.store(newValue, ordering: .relaxed) }
  }
  var isOver: Bool { over.load(ordering: .relaxed) }
  func end() { over.store(true, ordering: .relaxed) }

  func time(_ kind: WritableKeyPath<Longest, Double>, _ body: () -> Void) {
    let began = now()
    body()
    let duration = now() - began
    if duration > 0.0005 { longest.withLock { $0[keyPath: kind] = max($0[keyPath: kind], duration) } }
  }

  /// The longest since the last time this was asked.
  func take() -> Longest {
    longest.withLock { longest in
      defer { longest = Longest() }
      return longest
    }
  }
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
