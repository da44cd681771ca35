import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Synchronization
import Testing

@Suite("Threads", .endsFixtures)
struct ThreadTests {
  /// Runs `count` threads and waits for all.
  private func concurrently(_ count: Int, _ body: @escaping @Sendable (Int) -> Void) {
    let group = DispatchGroup()
    for index in 0..<count {
      group.enter()
      Thread {
        body(index)
        group.leave()
      }.start()
    }
    group.wait()
  }

  /// Returns a body that begins with its URL, so that a reader can detect a wrong one.
  private func body(_ url: String, _ size: Int) -> Data {
    Data("\(url) ".utf8) + pseudorandomData(size, seed: UInt64(url.utf8.count))
  }

  @Test("Concurrent lookups, writes, updates and removals return no wrong response, and writes are readable at once")
  func everything() throws {
    let fixture = try StoreFixture(capacity: 8 << 20, background: true)
    let store = fixture.store
    let wrong = Atomic<Int>(0)
    let missed = Atomic<Int>(0)
    concurrently(8) { [self] index in
      var random = SeededGenerator(seed: UInt64(index))
      for step in 0..<150 {
        let url = "http://h\(Int.random(in: 0..<4, using: &random)).example/\(Int.random(in: 0..<50, using: &random))"
        let key = RequestKey(urlString: url)!
        switch index {
        case 0..<3:
          if let found = store.lookup(key), !found.body.starts(with: Data("\(url) ".utf8)) {
            wrong.add(1, ordering: .relaxed)
          }
        case 3..<6:
          let size = [100, 3000, 60_000][step % 3]
          store.store(childResponse(url, body: body(url, size)))
          // No other thread stores or removes this URL.
          let own = "http://own\(index).example/\(step)"
          store.store(childResponse(own, body: body(own, 200)))
          if store.lookup(RequestKey(urlString: own)!)?.body != body(own, 200) { missed.add(1, ordering: .relaxed) }
        case 6:
          if let found = store.lookup(key) {
            store.update(found, fields: HeaderFields([("X", "\(step)")]), freshness: found.freshness)
          }
        default:
          if step % 10 == 0 { store.remove(.host("h0.example")) }
          if step % 10 == 5 { store.remove(key) }
        }
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
    #expect(missed.load(ordering: .relaxed) == 0)
    try store.flush()
    let statistics = store.statistics
    #expect(statistics.queuedByteCount == 0)
    #expect(statistics.corruptRecords == 0)
    let written = statistics.writes + statistics.updates
    #expect(written + statistics.droppedWrites + statistics.supersededWrites >= 2 * 3 * 150)
    #expect(statistics.writes - statistics.removals.values.reduce(0, +) == store.entryCount)
  }

  @Test("A held response keeps its body while other threads look up and release responses of its size")
  func heldResponses() throws {
    let fixture = try StoreFixture()
    let store = fixture.store
    let entries = (0..<32).map { number in
      let url = "http://a.example/\(number)"
      return (key: RequestKey(urlString: url)!, url: url, body: pseudorandomData(1000 + 100 * number, seed: 7))
    }
    for entry in entries { store.store(fixture.response(entry.url, body: entry.body)) }
    fixture.drain()
    let wrongCount = Atomic<Int>(0)
    concurrently(4) { thread in
      var held: [(body: Data, expected: Data)] = []
      for step in 0..<400 {
        let entry = entries[(step * (2 * thread + 1)) % entries.count]
        guard let response = store.lookup(entry.key) else { continue }
        held.append((response.body, entry.body))
        if held.count > step % 5 {
          for (body, expected) in held where body != expected { wrongCount.add(1, ordering: .relaxed) }
          held.removeFirst(held.count / 2 + 1)
        }
      }
    }
    #expect(wrongCount.load(ordering: .relaxed) == 0)
    #expect(store.statistics.hits == 4 * 400)
  }

  @Test("Closing commits the queued writes", arguments: [false, true])
  func close(byDeinit: Bool) throws {
    let fixture = try StoreFixture(background: true) { $0.commitDelay = .seconds(60) }
    for number in 0..<300 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(5000, seed: 1)))
    }
    if byDeinit { fixture.forget() } else { fixture.close() }
    try fixture.open()
    for number in 0..<300 { #expect(fixture.body("http://a.example/\(number)") != nil) }
    // A background thread may have kept the store alive; then this is the same store.
    try fixture.store.flush()
    #expect(fixture.store.entryCount == 300)
  }

  @Test("Opening waits for a store that another thread releases, and finds all of its queued writes")
  func openWhileDeinitialized() throws {
    let fixture = try StoreFixture()
    let count = 500
    for number in 0..<count {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(5000, seed: 1)))
    }
    weak let old = fixture.store
    nonisolated(unsafe) let unsafeFixture = fixture
    let forgotten = DispatchSemaphore(value: 0)
    Thread {
      unsafeFixture.forget()
      forgotten.signal()
    }.start()
    while old != nil { sched_yield() }
    let store = try ResponseStore.open(directory: fixture.directory, options: fixture.options)
    defer { store.close() }
    #expect((0..<count).filter { store.lookup(fixture.key("http://a.example/\($0)")) == nil } == [])
    forgotten.wait()
  }

  @Test("A full queue makes writers wait, and drops writes after the timeout")
  func fullQueue() throws {
    let fixture = try StoreFixture(background: true) {
      $0.queueByteCount = 50_000
      $0.fullQueueTimeout = .zero
    }
    let store = fixture.store
    try store.environment.write { _ in
      // The writer cannot commit meanwhile.
      for number in 0..<20 {
        store.store(childResponse("http://a.example/\(number)", body: pseudorandomData(10_000, seed: 1)))
      }
    }
    try store.flush()
    #expect(store.statistics.droppedWrites > 10)
    #expect(store.statistics.droppedWrites + store.statistics.writes == 20)
  }

  @Test("Opening and closing in many threads gives one store at a time")
  func openAndClose() throws {
    let fixture = try StoreFixture(background: true)
    let directory = fixture.directory
    fixture.close()
    let failures = Monitor<[String]>([])
    let options = fixture.options
    concurrently(4) { index in
      for step in 0..<20 {
        do {
          let store = try ResponseStore.open(directory: directory, options: options)
          store.store(childResponse("http://a.example/\(index)/\(step)"))
          store.close()
        } catch {
          failures.withLock { $0.append("\(error)") }
        }
      }
    }
    #expect(failures.withLock { $0 } == [])
    try fixture.open()
    #expect(fixture.store.entryCount == 80)
  }
}
