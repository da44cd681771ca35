import Foundation
import HTTPCaching
import ResponseStore
import Testing

@Suite("Eviction order", .endsFixtures)
struct EvictionOrderTests {
  private func fill(_ fixture: StoreFixture, _ urls: some Sequence<String>, byteCount: Int = 20_000) {
    for url in urls {
      fixture.store.store(fixture.response(url, body: pseudorandomData(byteCount, seed: UInt64(url.utf8.count))))
      fixture.drain()
    }
  }

  @Test("Eviction keeps the records that are looked up")
  func usedStays() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    let favorites = (0..<20).map { "http://a.example/favorite/\($0)" }
    fill(fixture, favorites)
    for _ in 0..<4 { for url in favorites { #expect(fixture.body(url) != nil) } }
    fill(fixture, (0..<300).map { "http://a.example/once/\($0)" })
    #expect(fixture.store.statistics.evictions > 50)
    for url in favorites { #expect(fixture.body(url) != nil) }
  }

  @Test("Records that are no longer looked up are evicted, however often they were used before")
  func aging() throws {
    let fixture = try StoreFixture(capacity: 1 << 20)
    let favorites = (0..<5).map { "http://a.example/favorite/\($0)" }
    fill(fixture, favorites)
    for _ in 0..<3 { for url in favorites { #expect(fixture.body(url) != nil) } }
    var number = 0
    while fixture.store.entries().contains(where: { $0.key.urlString.contains("favorite") }), number < 2000 {
      fill(fixture, ["http://a.example/once/\(number)"])
      number += 1
    }
    #expect(number > 20 && number < 2000)
  }

  @Test(
    "Use counts survive reopening, and a missing or corrupt index is rebuilt", arguments: ["kept", "lost", "corrupt"])
  func restart(_ state: String) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    let favorites = (0..<20).map { "http://a.example/favorite/\($0)" }
    fill(fixture, favorites)
    for _ in 0..<6 { for url in favorites { #expect(fixture.body(url) != nil) } }
    let path = fixture.dataPath("LMDBURLCache.index")
    fixture.close()
    switch state {
    case "lost": try FileManager.default.removeItem(atPath: path)
    case "corrupt": try Data(repeating: 0x5a, count: 40_960).write(to: URL(fileURLWithPath: path))
    default: break
    }
    try fixture.open()
    for url in favorites { #expect(fixture.body(url) != nil, "a small store is complete when it is open") }
    if state != "kept" { for _ in 0..<6 { for url in favorites { #expect(fixture.body(url) != nil) } } }
    fill(fixture, (0..<250).map { "http://a.example/once/\($0)" })
    for url in favorites { #expect(fixture.body(url) != nil) }
  }

  @Test("Records are evicted when the index is full, and the index stays within its share of the capacity")
  func indexShare() throws {
    let fixture = try StoreFixture(capacity: 1 << 20)
    for number in 0..<2000 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: Data()))
      if number % 50 == 0 { fixture.drain() }
    }
    fixture.drain()
    #expect(try fixture.indexByteCount() <= (1 << 20) / 32 + 24 << 10)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.entryCount > 500)
    #expect(fixture.body("http://a.example/1999") != nil)
  }
}
