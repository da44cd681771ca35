import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import StoreContract

/// Tests of unusual sizes, variants, clocks, hosts and keys.
enum BadInput {
  static func response(
    _ url: String, body: Data, at date: Date, language: String? = nil
  ) -> KeyedResponse {
    KeyedResponse(
      key: RequestKey(urlString: url)!,
      response: CacheableResponse(
        status: 200, fields: HeaderFields([("Content-Type", "text/plain")]), body: body,
        freshness: Content.freshness(at: date),
        vary: VaryKey(fields: language.map { [VaryKey.Field(name: "accept-language", value: $0)] } ?? [])))
  }

  static func bytes(_ count: Int, seed: UInt64) -> Data {
    var random = SeededRandom(seed)
    let words = (0..<((count + 7) / 8)).map { _ in random.next() }
    return words.withUnsafeBytes { Data($0.prefix(count)) }
  }

  static func open(_ directory: String, _ capacity: Int, clock: Tick) throws(StoreError) -> ResponseStore {
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.clock = { Ledger.date(clock.now) }
    options.fullQueueTimeout = .seconds(60)
    options.log = { say("log: \($0)") }
    return try ResponseStore.open(directory: directory, options: options)
  }

  private static func expect(_ condition: Bool, _ text: String) {
    if !condition { fail(text) }
  }

  static func sizes(_ directory: String, largest: Int) throws(StoreError) {
    var count = 0
    for capacity in [16 << 20, 512 << 20] {
      let path = directory + ".\(capacity)"
      let clock = Tick()
      let store = try open(path, capacity, clock: clock)
      var sizes = [0, 1, 7, 8]
      for chunk in [16_368, 65_520] { sizes += [chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1] }
      sizes += Array(1600..<2060)
      if capacity > 16 << 20 { sizes.append(largest) }
      for size in sizes { store.store(response("http://a.example/\(size)", body: bytes(size, seed: 1), at: .now)) }
      try store.flush()
      for size in sizes {
        let found = store.lookup(RequestKey(urlString: "http://a.example/\(size)")!)
        expect(found?.body == bytes(size, seed: 1), "a body of \(size) bytes is not found in \(capacity)")
      }
      count += sizes.count
      let dropped = store.statistics.droppedWrites
      for size in [store.maximumBodyByteCount + 1, capacity + 1] {
        store.store(response("http://a.example/too/\(size)", body: Data(count: size), at: .now))
        expect(store.lookup(RequestKey(urlString: "http://a.example/too/\(size)")!) == nil, "\(size) bytes were stored")
      }
      expect(store.statistics.droppedWrites == dropped + 2, "bodies that are too large are not counted")
      expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
      store.close()
    }
    say("\(count) sizes from 0 to \(largest) bytes; bodies above the maximum size are dropped and counted")
  }

  static func variants(_ directory: String, count: Int) throws(StoreError) {
    let store = try open(directory, 64 << 20, clock: Tick())
    let url = "http://a.example/varied"
    let began = now()
    for number in 0..<count {
      store.store(
        response(
          url, body: bytes(200, seed: UInt64(number)), at: Ledger.date(UInt64(number)), language: "l\(number)"))
    }
    try store.flush()
    let seconds = now() - began
    let key = RequestKey(urlString: url)!
    let newest = store.lookup(key) { $0.fields.first?.value == "l\(count - 1)" }
    expect(newest?.body == bytes(200, seed: UInt64(count - 1)), "the newest variant is not found")
    expect(store.lookup(key) { $0.fields.first?.value == "l0" } == nil, "the oldest of too many variants was kept")
    let start = now()
    for _ in 0..<1000 { _ = store.lookup(key) { _ in false } }
    let microseconds = Int((now() - start) * 1000)
    expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
    say(
      "\(count) variants of one URL stored in \(Int(seconds * 1000)) ms, \(store.entryCount) kept; "
        + "a lookup without a match takes \(microseconds) µs")
  }

  static func clocks(_ directory: String) throws(StoreError) {
    let clock = TickingDate()
    var options = ResponseStore.Options(capacityByteCount: 16 << 20)
    options.clock = { clock.now }
    let store = try ResponseStore.open(directory: directory, options: options)
    let start = Date(timeIntervalSinceReferenceDate: 800_000_000)
    let year = 365.25 * 86_400
    for (name, date) in [
      ("now", start), ("backwards", start - 3600), ("ahead", start + year), ("again", start + 1),
      ("early", start - 40 * year),
      ("past", .distantPast), ("future", .distantFuture),
    ] {
      clock.now = date
      store.store(response("http://a.example/\(name)", body: bytes(100, seed: 9), at: date))
      try store.flush()
      expect(store.lookup(RequestKey(urlString: "http://a.example/\(name)")!)?.storedAt == date, "\(name) is not found")
    }
    expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
    clock.now = start + 2
    store.remove(.since(start))
    let left = ["now", "backwards", "ahead", "again", "early", "past", "future"].filter {
      store.lookup(RequestKey(urlString: "http://a.example/\($0)")!) != nil
    }
    expect(left == ["now", "backwards", "early", "past"], "a purge since a date left \(left)")
    // Store far more than fits in the capacity, while the clock runs backward.
    for number in 0..<2000 {
      clock.now = start - Double(number)
      store.store(response("http://b.example/\(number)", body: bytes(20_000, seed: 3), at: clock.now))
    }
    try store.flush()
    expect(store.diskByteCount < 18 << 20, "\(store.diskByteCount) bytes on disk")
    expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
    say(
      "clocks that jump back an hour, jump ahead a year and run backward: "
        + "lookups, purges by date and eviction are correct")
  }

  static func oneHost(_ directory: String, count: Int) throws(StoreError) {
    let store = try open(directory, max(64 << 20, count * 1200), clock: Tick())
    let began = now()
    for number in 0..<count {
      store.store(
        response("http://a.example/item/\(number)?page=\(number % 7)", body: bytes(64, seed: UInt64(number)), at: .now))
    }
    try store.flush()
    let storing = now() - began
    expect(store.entryCount == count, "\(store.entryCount) of \(count) responses are stored")
    var random = SeededRandom(5)
    let start = now()
    for _ in 0..<20_000 {
      let number = random.below(count)
      let found = store.lookup(RequestKey(urlString: "http://a.example/item/\(number)?page=\(number % 7)")!)
      expect(found?.body == bytes(64, seed: UInt64(number)), "\(number) is not found")
    }
    let reading = (now() - start) / 20_000 * 1e6
    let removing = now()
    store.remove(.host("a.example"))
    let removed = now() - removing
    expect(store.lookup(RequestKey(urlString: "http://a.example/item/1?page=1")!) == nil, "a purged response was found")
    say(
      "\(count) URLs of one host stored in \(Int(storing * 1000)) ms; a lookup takes \(Int(reading)) µs, "
        + "a purge of the host returns after \(Int(removed * 1e6)) µs")
  }

  /// Compares storing one URL repeatedly with storing as many different URLs.
  static func hotKey(_ directory: String, count: Int) throws(StoreError) {
    func storing(_ urls: some Sequence<String>, in store: ResponseStore) throws(StoreError) -> Double {
      let began = now()
      var number: UInt64 = 0
      for url in urls {
        store.store(response(url, body: bytes(64, seed: number), at: .now))
        number += 1
      }
      try store.flush()
      return now() - began
    }
    let store = try open(directory, max(64 << 20, count * 1200), clock: Tick())
    let url = "http://a.example/hot"
    let oneKey = try storing(repeatElement(url, count: count), in: store)
    let found = store.lookup(RequestKey(urlString: url)!)
    expect(found?.body == bytes(64, seed: UInt64(count - 1)), "the newest response of the hot key is not found")
    let statistics = store.statistics
    expect(statistics.droppedWrites == 0, "\(statistics.droppedWrites) writes of the hot key were dropped")
    expect(
      statistics.writes + statistics.supersededWrites == UInt64(count), "not every write of the hot key is counted")
    let manyKeys = try storing((0..<count).lazy.map { "http://a.example/\($0)" }, in: store)
    expect(store.entryCount == UInt64(count) + 1, "\(store.entryCount) of \(count + 1) responses are stored")
    expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
    say(
      "\(count) writes of one URL and a flush take \(Int(oneKey * 1000)) ms, \(statistics.writes) of them committed; "
        + "writes of as many URLs take \(Int(manyKeys * 1000)) ms")
  }
}

/// A clock with a settable time.
final class TickingDate: Sendable {
  private let seconds = Tick.Stored()
  var now: Date {
    get { Date(timeIntervalSinceReferenceDate: Double(bitPattern: seconds.value)) }
    set { seconds.value = newValue.timeIntervalSinceReferenceDate.bitPattern }
  }
}
