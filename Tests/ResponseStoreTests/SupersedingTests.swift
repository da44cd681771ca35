import Foundation
import Glibc
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("A pending write that a newer one of the same variant supersedes")
struct SupersedingTests {
  static let url = "http://a.example/"

  private func vary(_ number: Int) -> VarySelection {
    VarySelection(selectors: [.init(name: "x-number", value: "\(number)")])
  }

  // Issue 14, item 10.
  @Test("Of many writes of one key only the newest waits, and only it is committed")
  func hotKey() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    store.store(fixture.response(Self.url, body: Data("body 1000".utf8)))
    let byteCount = store.statistics.queuedByteCount
    for number in 1001...4000 {
      store.store(fixture.response(Self.url, body: Data("body \(number)".utf8)))
      #expect(store.statistics.queuedByteCount == byteCount)
    }
    #expect(fixture.body(Self.url) == Data("body 4000".utf8))
    try store.flush()
    #expect(fixture.body(Self.url) == Data("body 4000".utf8))
    let statistics = store.statistics
    #expect(statistics.stores == 1 && statistics.supersededStores == 3000 && statistics.droppedStores == 0)
    #expect(statistics.queuedByteCount == 0 && store.staging.isEmpty)
  }

  @Test("A key that is stored all the time is committed all the time, and a flush returns")
  func hotKeyInBackground() throws {
    let fixture = try StoreFixture(background: true)
    defer { fixture.finish() }
    for number in 0..<4000 { fixture.store.store(fixture.response(Self.url, body: Data("body \(number)".utf8))) }
    try fixture.store.flush()
    #expect(fixture.body(Self.url) == Data("body 3999".utf8))
    let statistics = fixture.store.statistics
    #expect(statistics.stores + statistics.supersededStores == 4000 && statistics.droppedStores == 0)
  }

  @Test("Memory and place in the queue are those of the newest; a flush for the older one waits for it")
  func queue() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    func staged(_ url: String, _ byteCount: Int) -> StagedResponse {
      let response = fixture.response(url, body: Data(repeating: 1, count: byteCount))
      return StagedResponse(response, storedAt: fixture.clock.now, snapshot: 0, inlineByteCount: 100)
    }
    var queue = WriteQueue()
    let (first, second) = (staged(Self.url, 1000), staged("http://b.example/", 2000))
    queue.add(first, inPlaceOf: nil)
    queue.add(second, inPlaceOf: nil)
    let limit = first.byteCount + second.byteCount
    let larger = staged(Self.url, 3000)
    #expect(!queue.hasRoom(for: larger, inPlaceOf: first, limit: limit))
    #expect(queue.hasRoom(for: larger, inPlaceOf: first, limit: limit + 2000))
    queue.add(larger, inPlaceOf: first)
    #expect(queue.storeByteCount == limit + 2000 && queue.queuedCount == 2)
    #expect(queue.isQueued(larger) && queue.isQueued(second))
    // The newer one goes first, as the older one would have.
    var batch = queue.takeStores(byteLimit: 1, countLimit: 1)
    #expect(batch.count == 1 && batch.first === larger && !queue.isQueued(larger) && queue.isQueued(second))
    let newest = staged(Self.url, 10)
    queue.add(newest, inPlaceOf: nil)
    #expect(queue.heldByteCount == limit + 2000 + newest.byteCount)
    queue.finish(&batch, byteCount: larger.byteCount)
    #expect(queue.doneCount == 1 && queue.queuedCount == 3)
    batch = queue.takeStores(byteLimit: .max, countLimit: .max)
    #expect(batch.map(ObjectIdentifier.init) == [second, newest].map(ObjectIdentifier.init))
    queue.finish(&batch, byteCount: second.byteCount + newest.byteCount)
    #expect(queue.doneCount == 3 && queue.heldByteCount == 0)
  }

  @Test("An update of a response that still waits takes its place, and one record is written")
  func update() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    store.store(fixture.response(Self.url))
    for number in 1...3 {
      let stored = try #require(store.lookup(fixture.key(Self.url)))
      store.update(stored, fields: HTTPFields([("X-Number", "\(number)")]), facts: fixture.facts(lifetime: 100))
    }
    #expect(store.lookup(fixture.key(Self.url))?.fields["X-Number"] == "3")
    fixture.drain()
    #expect(store.statistics.stores == 1 && store.statistics.updates == 0 && store.statistics.supersededStores == 3)
    // The same once it is committed.
    for number in 4...6 {
      let stored = try #require(store.lookup(fixture.key(Self.url)))
      store.update(stored, fields: HTTPFields([("X-Number", "\(number)")]), facts: fixture.facts(lifetime: 100))
    }
    fixture.drain()
    #expect(store.statistics.stores == 1 && store.statistics.updates == 1 && store.statistics.supersededStores == 5)
    try fixture.reopen()
    let stored = try #require(fixture.store.lookup(fixture.key(Self.url)))
    #expect(stored.fields["X-Number"] == "6" && stored.body == Data("body".utf8))
    #expect(fixture.store.entryCount == 1)
  }

  @Test("An update does not bring back a waiting response that was removed by a group that only the old fields name")
  func removedBeforeUpdate() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    let fields = HTTPFields([("Cache-Groups", "\"g\"")])
    store.store(fixture.response(Self.url, fields: fields))
    let stored = try #require(store.lookup(fixture.key(Self.url)))
    let scope = try #require(RemovalScope.group("g", ofOrigin: URL(string: Self.url)!))
    // As another process removes: the writer of this one does nothing yet.
    try store.removalLog.append(scope, timeout: .seconds(10)) {}
    store.update(stored, fields: HTTPFields(), facts: fixture.facts())
    #expect(fixture.body(Self.url) == nil)
    fixture.drain()
    #expect(fixture.body(Self.url) == nil && store.statistics.droppedStores == 2)
  }

  @Test("No more variants of one key wait than a key may have, and the latest are kept")
  func variants() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    let most = StorageFormat.mostVariantsOfOneKey
    for number in 0..<(2 * most + 10) {
      store.store(fixture.response(Self.url, vary: vary(number)))
      if number % most == 0 { #expect(store.staging.variants(of: fixture.key(Self.url)).count <= most) }
    }
    fixture.drain()
    var found: Set<VarySelection> = []
    store.forEachVariant(of: fixture.key(Self.url)) { found.insert($0) }
    #expect(found == Set((most + 10..<2 * most + 10).map { vary($0) }))
    #expect(store.statistics.stores == 2 * most + 10 && store.statistics.removals[.tooManyVariants] == most + 10)
  }
}
