import Foundation
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("Storing and lookup")
struct StoreAndLookupTests {
  @Test("A stored response is readable at once, after the commit, and after reopening")
  func readYourWrite() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/x?q=1"))
    #expect(fixture.body("http://a.example/x?q=1") == Data("body".utf8))
    #expect(fixture.body("http://a.example/x?q=2") == nil)
    fixture.drain()
    let stored = try #require(fixture.store.lookup(fixture.key("http://a.example/x?q=1")))
    #expect(stored.body == Data("body".utf8))
    #expect(stored.fields["content-type"] == "text/plain")
    #expect(stored.storedAt == fixture.clock.now)
    #expect(stored.freshness == fixture.freshness())
    try fixture.reopen()
    #expect(fixture.body("http://a.example/x?q=1") == Data("body".utf8))
  }

  @Test(
    "Bodies of all sizes around the layout limits are stored and read",
    arguments: [0, 1, 700, 750, 800, 1800, 1900, 2022, 3800, 3850, 4080, 4096, 16367, 16368, 16369, 65520, 300_000])
  func bodySizes(size: Int) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let body = pseudorandomData(size, seed: UInt64(size))
    fixture.store.store(fixture.response("http://a.example/", body: body))
    #expect(fixture.body("http://a.example/") == body)
    fixture.drain()
    #expect(fixture.body("http://a.example/") == body)
  }

  @Test("A second response with the same Vary key replaces the first")
  func replace() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/", body: Data("1".utf8)))
    fixture.drain()
    fixture.store.store(fixture.response("http://a.example/", body: Data("2".utf8)))
    #expect(fixture.body("http://a.example/") == Data("2".utf8))
    fixture.drain()
    #expect(fixture.body("http://a.example/") == Data("2".utf8))
    #expect(fixture.store.entryCount == 1)
    #expect(fixture.store.statistics.removals[.replaced] == 1)
  }

  @Test(
    "Removals of every scope cover pending and committed writes, and stay in effect after reopening",
    arguments: [false, true])
  func removals(committed: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for url in ["http://a.example/1", "http://a.example/2", "https://a.example/1", "http://b.example/1"] {
      fixture.store.store(fixture.response(url))
    }
    if committed { fixture.drain() }
    let store = fixture.store
    store.remove(fixture.key("http://a.example/1"))
    #expect(fixture.body("http://a.example/1") == nil)
    #expect(fixture.body("http://a.example/2") != nil)
    store.remove(.urlPrefix(URL(string: "http://a.example/")!)!)
    #expect(fixture.body("http://a.example/2") == nil)
    #expect(fixture.body("https://a.example/1") != nil)
    store.remove(.host("a.example"))
    #expect(fixture.body("https://a.example/1") == nil)
    #expect(fixture.body("http://b.example/1") != nil)
    fixture.drain()
    try fixture.reopen()
    #expect(fixture.body("http://b.example/1") != nil)
    fixture.store.remove(.everything)
    #expect(fixture.body("http://b.example/1") == nil)
  }

  @Test(
    "A removal of many entries hides them at once and deletes them in the background",
    arguments: [10, 255, 256, 257, 2000])
  func largePurge(count: Int) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/old"))
    let date = fixture.clock.now
    fixture.clock.advance(by: 1e-6)
    for number in 0..<count { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    fixture.store.remove(.since(date))
    for number in 0..<count { #expect(fixture.body("http://a.example/\(number)") == nil) }
    #expect(fixture.body("http://a.example/old") != nil)
    fixture.store.store(fixture.response("http://a.example/5"))
    fixture.drain()
    #expect(fixture.body("http://a.example/5") != nil)
    #expect(fixture.store.entryCount == 2)
  }
}
