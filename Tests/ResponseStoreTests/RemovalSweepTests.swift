import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Testing

@Suite("Sweeps behind removals", .endsFixtures)
struct RemovalSweepTests {
  private static func url(_ number: Int, host: Int = 0) -> String { "http://host\(host).example/\(number)" }

  /// Stores responses of several hosts, a second apart.
  private func filled(hostCount: Int = 1, count: Int) throws -> StoreFixture {
    let fixture = try StoreFixture()
    for number in 0..<count {
      for host in 0..<hostCount { fixture.store.store(fixture.response(Self.url(number, host: host))) }
      fixture.clock.advance(by: 1)
      if number.isMultiple(of: 100) { fixture.drain() }
    }
    fixture.drain()
    return fixture
  }

  private func isStale(_ fixture: StoreFixture, _ url: String) -> Bool? {
    fixture.store.lookup(fixture.key(url)).map { $0.freshness.flags.contains(.softPurged) }
  }

  @Test("One sweep deletes and marks for removals of all kinds")
  func together() throws {
    let count = 400
    let fixture = try filled(hostCount: 4, count: count)
    let store = fixture.store
    store.remove(.host("host0.example"))
    store.softPurge(.host("host1.example"))
    store.softPurge(.urlPrefix(URL(string: "http://host2.example/1")!)!)
    store.remove(.since(fixture.clock.now - 10.5))
    #expect(store.pendingRemovalCount > 1)
    func expectContent() {
      for number in stride(from: 0, to: count, by: 7) {
        let isNew = number >= count - 10
        #expect(isStale(fixture, Self.url(number, host: 0)) == nil)
        #expect(isStale(fixture, Self.url(number, host: 1)) == (isNew ? nil : true))
        #expect(isStale(fixture, Self.url(number, host: 2)) == (isNew ? nil : String(number).hasPrefix("1")))
        #expect(isStale(fixture, Self.url(number, host: 3)) == (isNew ? nil : false))
      }
    }
    expectContent()
    fixture.drain()
    #expect(store.pendingRemovalCount == 0 && store.sweptEntryCount == 0)
    expectContent()
    #expect(store.entryCount == 3 * (count - 10))
  }

  @Test("A removal that takes effect during a sweep is swept after it, also behind its position", arguments: [0, 1])
  func during(host: Int) throws {
    let fixture = try filled(hostCount: 2, count: 600)
    let store = fixture.store
    store.remove(.since(fixture.clock.now - 400.5))
    while store.sweptEntryCount == 0, store.maintain() {}
    #expect(store.sweptEntryCount > 0)
    // Its first records are before the position of the sweep.
    store.remove(.host("host\(host).example"))
    fixture.drain()
    #expect(store.pendingRemovalCount == 0)
    #expect(store.entryCount == 200)
    for number in 0..<600 { #expect((fixture.body(Self.url(number, host: 1 - host)) != nil) == (number < 200)) }
  }

  @Test("Another process continues a sweep at its position")
  func continued() async throws {
    let fixture = try filled(count: 1000)
    fixture.store.softPurge(.everything)
    while fixture.store.sweptEntryCount == 0, fixture.store.maintain() {}
    let before = fixture.store.sweptEntryCount
    #expect(before > 0 && before < 1000)
    fixture.close()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String, before = before as Int] in
      var options = quietOptions(capacity: 16 << 20)
      options.runsInBackground = false
      let store = try ResponseStore.open(directory: directory, options: options)
      guard store.sweptEntryCount == before else { exit(2) }
      while store.sweptEntryCount == before, store.maintain() {}
      guard store.sweptEntryCount > before, store.pendingRemovalCount == 1 else { exit(3) }
      // Ended without closing, like a killed process.
      _exit(0)
    }
    try fixture.open()
    #expect(fixture.store.sweptEntryCount > before)
    fixture.drain()
    #expect(fixture.store.pendingRemovalCount == 0)
    for number in 0..<1000 { #expect(isStale(fixture, Self.url(number)) == true) }
  }
}
