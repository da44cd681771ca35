import Foundation
import HTTPCaching
import Synchronization
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Threads")
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

  @Test("Threads that are not joined free their stacks when they end")
  func stacks() throws {
    /// The size of the mapped memory, in bytes.
    func mappedByteCount() throws -> Int {
      let sizes = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8).split(separator: " ")
      return try #require(Int(sizes[0])) * sysconf(Int32(_SC_PAGESIZE))
    }
    let before = try mappedByteCount()
    for _ in 0..<500 {
      let hasRun = DispatchSemaphore(value: 0)
      #expect(BackgroundThread { hasRun.signal() } != nil)
      hasRun.wait()
    }
    // Each stack takes 8 MiB by default. glibc keeps up to 40 MiB of them for the next threads.
    #expect(try mappedByteCount() - before < 1 << 30)
  }

  @Test("Concurrent lookups, writes, updates and removals return no wrong response, and writes are readable at once")
  func everything() throws {
    let fixture = try StoreFixture(capacity: 8 << 20, background: true)
    defer { fixture.finish() }
    let store = fixture.store
    let wrong = Atomic<Int>(0)
    let missed = Atomic<Int>(0)
    concurrently(8) { [self] index in
      var random = SeededGenerator(seed: UInt64(index))
      for step in 0..<300 {
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
    #expect(written + statistics.droppedWrites + statistics.supersededWrites >= 2 * 3 * 300)
    #expect(statistics.writes - statistics.removals.values.reduce(0, +) == store.entryCount)
  }

  @Test("A removal that has returned is not undone by earlier writes")
  func removalsUnderLoad() throws {
    let fixture = try StoreFixture(background: true)
    defer { fixture.finish() }
    let store = fixture.store
    let seen = Atomic<Int>(0)
    concurrently(4) { index in
      for step in 0..<60 {
        let url = "http://h\(index).example/\(step)"
        let key = RequestKey(urlString: url)!
        store.store(childResponse(url))
        if step % 2 == 0 { store.remove(key) } else { store.remove(.host("h\(index).example")) }
        for _ in 0..<20 where store.lookup(key) != nil { seen.add(1, ordering: .relaxed) }
      }
    }
    #expect(seen.load(ordering: .relaxed) == 0)
    try store.flush()
    #expect(store.entryCount == 0)
  }

  @Test("A held response keeps its body while other threads look up and release responses of its size")
  func heldResponses() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
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
      for step in 0..<2000 {
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
    #expect(store.statistics.hits == 4 * 2000)
  }

  @Test("A flush returns after all earlier writes are committed")
  func flush() throws {
    let fixture = try StoreFixture(background: true) { $0.commitDelay = .seconds(60) }
    defer { fixture.finish() }
    for number in 0..<100 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    try fixture.store.flush()
    #expect(fixture.store.entryCount == 100)
    #expect(fixture.store.statistics.queuedByteCount == 0)
  }

  @Test("Closing commits the queued writes", arguments: [false, true])
  func close(byDeinit: Bool) throws {
    let fixture = try StoreFixture(background: true) { $0.commitDelay = .seconds(60) }
    defer { fixture.finish() }
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
    defer { fixture.finish() }
    let count = 1500
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

  @Test("Writes are committed in the background, and the eviction thread stays within the page budget")
  func background() throws {
    let fixture = try StoreFixture(capacity: 4 << 20, background: true)
    defer { fixture.finish() }
    for number in 0..<400 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(30_000, seed: 1)))
    }
    try fixture.store.flush()
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.statistics.evictions > 200)
    #expect(fixture.body("http://a.example/399") != nil)
  }

  @Test("A full queue makes writers wait, and drops writes after the timeout")
  func fullQueue() throws {
    let fixture = try StoreFixture(background: true) {
      $0.queueByteCount = 50_000
      $0.fullQueueTimeout = .zero
    }
    defer { fixture.finish() }
    let store = fixture.store
    try store.context.database.environment.write { _ in
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
    defer { fixture.finish() }
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
