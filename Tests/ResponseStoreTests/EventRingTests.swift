import CacheActivity
import Dispatch
import Foundation
import Glibc
import ResponseStore
import Synchronization
import Testing

@Suite("Recorded requests", .endsFixtures)
struct EventRingTests {
  private func event(_ number: Int, url: String? = nil) -> RequestEvent {
    RequestEvent(
      time: Date(timeIntervalSince1970: 1_800_000_000.25), processID: getpid(), method: "GET",
      url: url ?? "http://a.example/\(number)", status: 200, outcome: .hit, rule: "fresh", age: number,
      timeToLive: -number, byteCount: 12_345, nanoseconds: 6_789)
  }

  @Test("An event comes back as it was recorded")
  func roundTrip() throws {
    let fixture = try StoreFixture()
    #expect(!fixture.store.activity.isWatched)
    #expect(!fixture.store.activity.takeGrantedEvent())
    let watch = try #require(fixture.store.watchEvents())
    #expect(fixture.store.activity.isWatched)
    #expect(fixture.store.activity.takeGrantedEvent())
    var unknown = event(7)
    unknown.timeToLive = nil
    unknown.status = 0
    unknown.outcome = .failed
    unknown.rule = ""
    fixture.store.activity.record(event(3))
    fixture.store.activity.record(unknown)
    var query = event(4)
    query.method = "QUERY"
    query.content = RequestEvent.Content(digest: String(repeating: "0f", count: 16), byteCount: 1 << 20)
    var empty = query
    empty.content?.byteCount = 0
    for event in [query, empty] { fixture.store.activity.record(event) }
    #expect(watch.next() == [event(3), unknown, query, empty])
    #expect(watch.next() == [])
    #expect(watch.lostCount == 0)
  }

  @Test("A long URL is cut, and says so")
  func longURL() throws {
    let fixture = try StoreFixture()
    let watch = try #require(fixture.store.watchEvents())
    let url = "http://a.example/" + String(repeating: "x", count: 2000)
    fixture.store.activity.record(event(1, url: url))
    let found = try #require(watch.next().first)
    #expect(found.isURLTruncated)
    #expect(url.hasPrefix(found.url) && found.url.count > 380)
  }

  @Test("More events than slots are counted as lost, and the last ones remain")
  func overflow() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    let watch = try #require(fixture.store.watchEvents())
    for number in 0..<1000 { fixture.store.activity.record(event(number)) }
    let events = watch.next()
    #expect(events.last?.age == 999)
    #expect(events.count == 64)
    #expect(watch.lostCount == 936)
    #expect(fixture.store.recentEvents == events)
    #expect(fixture.store.diskByteCount < 4 << 20)
  }

  @Test("Recording ends after the granted events, also if the watching process was killed")
  func ending() async throws {
    let fixture = try StoreFixture()
    let activity = fixture.store.activity
    await #expect(processExitsWith: .signal(SIGKILL)) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      let watch = store.watchEvents()
      kill(getpid(), SIGKILL)
      withExtendedLifetime(watch) {}
    }
    #expect(activity.isWatched)
    let recorded = (0..<10_000).count { _ in activity.takeGrantedEvent() }
    #expect(recorded > 0 && recorded <= 400)
    #expect(!activity.isWatched)
  }

  @Test("Events of 4 processes with 2 threads each arrive whole, each once")
  func processes() async throws {
    let fixture = try StoreFixture(capacity: 256 << 20)
    let watch = try #require(fixture.store.watchEvents())
    let directory = fixture.directory
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<4 {
        group.addTask {
          await #expect(processExitsWith: .success) { [directory = directory as String] in
            var options = quietOptions(capacity: 256 << 20)
            options.openTimeout = .seconds(60)
            let store = try ResponseStore.open(directory: directory, options: options)
            let threads = (0..<2).map { thread in
              BackgroundThread {
                for number in 0..<400 {
                  store.activity.record(
                    RequestEvent(
                      time: Date(), processID: getpid(), method: "GET",
                      url: "http://a.example/" + String(repeating: "\(thread)", count: number % 300), status: number,
                      outcome: .miss, rule: "miss", age: 0, timeToLive: nil, byteCount: 0, nanoseconds: 0))
                }
              }
            }
            for thread in threads { _ = thread?.join { $0.wait { $0 ? true : nil } ?? false } }
            store.close()
          }
        }
      }
    }
    let events = watch.next()
    #expect(watch.lostCount == 0)
    #expect(events.count == 3200)
    #expect(Set(events.map(\.processID)).count == 4)
    #expect(events.allSatisfy { $0.url.utf8.count == 17 + $0.status % 300 })
    for status in 0..<400 { #expect(events.count { $0.status == status } == 8) }
  }

  @Test("A slot that a killed process left unfinished is skipped")
  func unfinished() throws {
    let fixture = try StoreFixture()
    let watch = try #require(fixture.store.watchEvents())
    fixture.store.activity.record(event(1))
    fixture.store.activity.record(event(2))
    // The first slot as its writer was killed after it had taken the number.
    let path = fixture.path(EventWatch.fileName)
    let handle = try FileHandle(forUpdating: URL(fileURLWithPath: path))
    try handle.seek(toOffset: 4096)
    try handle.write(contentsOf: Data([1, 0, 0, 0, 0, 0, 0, 0]))
    try handle.close()
    #expect(watch.next() == [])
    let deadline = ContinuousClock.now + .seconds(30)
    var found: [RequestEvent] = []
    while found.isEmpty, .now < deadline { found = watch.next() }
    #expect(found == [event(2)])
    #expect(watch.lostCount == 1)
  }

  enum Damage: CaseIterable, Sendable { case missing, truncated, ones, badSlots }

  @Test("A damaged file of events is replaced, or its events are lost", arguments: Damage.allCases)
  func damage(_ damage: Damage) throws {
    let fixture = try StoreFixture()
    let path = fixture.path(EventWatch.fileName)
    do {
      let watch = try #require(fixture.store.watchEvents())
      fixture.store.activity.record(event(1))
      #expect(watch.next().count == 1)
    }
    let size = try #require(FileManager.default.contents(atPath: path)).count
    // In another file, because this process has the first one mapped.
    unlink(path)
    switch damage {
    case .missing: break
    case .truncated: try Data(repeating: 0, count: 100).write(to: URL(fileURLWithPath: path))
    case .ones: try Data(repeating: 0xff, count: size).write(to: URL(fileURLWithPath: path))
    case .badSlots:
      var header = [0x3254_5645_4342_4d4c, UInt64((size - 4096) / 512), 99]
      header += [UInt64](repeating: 0, count: 512 - 3)
      header[16] = 8
      let data = header.withUnsafeBytes { Data($0) } + Data(repeating: 0xab, count: size - 4096)
      try data.write(to: URL(fileURLWithPath: path))
    }
    #expect(fixture.store.recentEvents == [])
    let watch = try #require(fixture.store.watchEvents())
    fixture.store.activity.record(event(2))
    #expect(watch.next() == [event(2)])
  }
}
