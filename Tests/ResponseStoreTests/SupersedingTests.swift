import Foundation
import Glibc
import HTTPCaching
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Superseded pending writes")
struct SupersedingTests {
  static let url = "http://a.example/"

  private func vary(_ number: Int) -> VaryKey {
    VaryKey(fields: [.init(name: "x-number", value: "\(number)")])
  }

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
    #expect(statistics.writes == 1 && statistics.supersededWrites == 3000 && statistics.droppedWrites == 0)
    #expect(statistics.queuedByteCount == 0 && store.context.pendingWrites.isEmpty)
  }

  @Test("A key that is written continuously is committed, and a flush returns")
  func hotKeyInBackground() throws {
    let fixture = try StoreFixture(background: true)
    defer { fixture.finish() }
    for number in 0..<4000 { fixture.store.store(fixture.response(Self.url, body: Data("body \(number)".utf8))) }
    try fixture.store.flush()
    #expect(fixture.body(Self.url) == Data("body 3999".utf8))
    let statistics = fixture.store.statistics
    #expect(statistics.writes + statistics.supersededWrites == 4000 && statistics.droppedWrites == 0)
  }

  @Test("The newest write takes the queue position of the superseded one; a flush for the older one waits for it")
  func queue() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    func pendingWrite(_ url: String, _ byteCount: Int) -> PendingWrite {
      let response = fixture.response(url, body: Data(repeating: 1, count: byteCount))
      return PendingWrite(
        response.response, for: response.key, storedAt: fixture.clock.now, removalSequence: 0, inlineByteCount: 100)
    }
    var queue = WriteQueue()
    let (first, second) = (pendingWrite(Self.url, 1000), pendingWrite("http://b.example/", 2000))
    queue.add(first, inPlaceOf: nil)
    queue.add(second, inPlaceOf: nil)
    let limit = first.byteCount + second.byteCount
    let larger = pendingWrite(Self.url, 3000)
    #expect(!queue.hasSpace(for: larger, inPlaceOf: first, limit: limit))
    #expect(queue.hasSpace(for: larger, inPlaceOf: first, limit: limit + 2000))
    queue.add(larger, inPlaceOf: first)
    #expect(queue.queuedByteCount == limit + 2000 && queue.queuedCount == 2)
    #expect(queue.isQueued(larger) && queue.isQueued(second))
    // The newer write is taken first, as the older one would have been.
    var batch = queue.takeWrites(byteLimit: 1, countLimit: 1)
    #expect(batch.count == 1 && batch.first === larger && !queue.isQueued(larger) && queue.isQueued(second))
    let newest = pendingWrite(Self.url, 10)
    queue.add(newest, inPlaceOf: nil)
    #expect(queue.heldByteCount == limit + 2000 + newest.byteCount)
    queue.finish(&batch, byteCount: larger.byteCount)
    #expect(queue.doneCount == 1 && queue.queuedCount == 3)
    batch = queue.takeWrites(byteLimit: .max, countLimit: .max)
    #expect(batch.map(ObjectIdentifier.init) == [second, newest].map(ObjectIdentifier.init))
    queue.finish(&batch, byteCount: second.byteCount + newest.byteCount)
    #expect(queue.doneCount == 3 && queue.heldByteCount == 0)
  }

  @Test("After a discard was retried, the writer has no time to wake up at")
  func retriedDiscard() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let response = fixture.response(Self.url)
    let failed = PendingWrite(
      response.response, for: response.key, storedAt: fixture.clock.now, removalSequence: 0, inlineByteCount: 100)
    let discard = PendingWrite(
      discarding: failed.vary, of: failed.key, freshness: failed.freshness, storedAt: failed.storedAt,
      removalSequence: 0)
    var queue = WriteQueue()
    queue.add(discard, insteadOf: failed, pause: .zero)
    #expect(queue.retriesAt != nil && queue.mayWrite)
    var batch = queue.takeWrites(byteLimit: .max, countLimit: .max)
    queue.finish(&batch, byteCount: discard.byteCount)
    // With a time in the past, the writer thread would not sleep.
    #expect(queue.retriesAt == nil && queue.isEmpty)
  }

  @Test("An update of a pending write supersedes it, and one record is written")
  func update() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    store.store(fixture.response(Self.url))
    for number in 1...3 {
      let stored = try #require(store.lookup(fixture.key(Self.url)))
      store.update(
        stored, fields: HeaderFields([("X-Number", "\(number)")]), freshness: fixture.freshness(lifetime: 100))
    }
    #expect(store.lookup(fixture.key(Self.url))?.fields["X-Number"] == "3")
    fixture.drain()
    #expect(store.statistics.writes == 1 && store.statistics.updates == 0 && store.statistics.supersededWrites == 3)
    // The same after the commit.
    for number in 4...6 {
      let stored = try #require(store.lookup(fixture.key(Self.url)))
      store.update(
        stored, fields: HeaderFields([("X-Number", "\(number)")]), freshness: fixture.freshness(lifetime: 100))
    }
    fixture.drain()
    #expect(store.statistics.writes == 1 && store.statistics.updates == 1 && store.statistics.supersededWrites == 5)
    try fixture.reopen()
    let stored = try #require(fixture.store.lookup(fixture.key(Self.url)))
    #expect(stored.fields["X-Number"] == "6" && stored.body == Data("body".utf8))
    #expect(fixture.store.entryCount == 1)
  }

  @Test("An update does not restore a pending write that was removed by a group that only the old fields name")
  func removedBeforeUpdate() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    let fields = HeaderFields([("Cache-Groups", "\"g\"")])
    store.store(fixture.response(Self.url, fields: fields))
    let stored = try #require(store.lookup(fixture.key(Self.url)))
    let scope = try #require(RemovalScope.group("g", ofOrigin: URL(string: Self.url)!))
    // Like a removal by another process, which this process's writer has not applied.
    try store.context.removalLog.append(scope, timeout: .seconds(10)) {}
    store.update(stored, fields: HeaderFields(), freshness: fixture.freshness())
    #expect(fixture.body(Self.url) == nil)
    fixture.drain()
    #expect(fixture.body(Self.url) == nil && store.statistics.droppedWrites == 2)
  }

  @Test("Of one key at most the maximum number of variants is pending, and the latest are kept")
  func variants() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    let maximum = StorageFormat.maximumVariantCountPerKey
    for number in 0..<(2 * maximum + 10) {
      store.store(fixture.response(Self.url, vary: vary(number)))
      if number % maximum == 0 {
        #expect(store.context.pendingWrites.variants(of: fixture.key(Self.url)).count <= maximum)
      }
    }
    fixture.drain()
    var found: Set<VaryKey> = []
    store.forEachVariant(of: fixture.key(Self.url)) { found.insert($0) }
    #expect(found == Set((maximum + 10..<2 * maximum + 10).map { vary($0) }))
    #expect(store.statistics.writes == 2 * maximum + 10 && store.statistics.removals[.tooManyVariants] == maximum + 10)
  }
}
