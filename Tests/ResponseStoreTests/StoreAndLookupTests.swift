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
}
