import Foundation
import HTTPCaching
import ResponseStore
import Testing

@Suite("Storing and lookup", .endsFixtures)
struct StoreAndLookupTests {
  @Test("A stored response is readable at once, after the commit, and after reopening")
  func readYourWrite() throws {
    let fixture = try StoreFixture()
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
    "Bodies of all sizes around the layout limits are stored, and read or borrowed",
    arguments: [0, 1, 700, 750, 800, 1800, 1900, 2022, 3800, 3850, 4080, 4096, 16367, 16368, 16369, 65520, 300_000])
  func bodySizes(size: Int) throws {
    let fixture = try StoreFixture()
    let body = pseudorandomData(size, seed: UInt64(size))
    fixture.store.store(fixture.response("http://a.example/", body: body))
    #expect(fixture.body("http://a.example/") == body)
    // A pending write, then the first read from disk, then a read with verified checksums.
    for round in 0..<3 {
      var pieces = Data()
      let status = fixture.store.withResponse(fixture.key("http://a.example/")) { response in
        response.forEachPiece { piece in piece.withUnsafeBytes { pieces.append(contentsOf: $0) } }
        return response.bodyByteCount == size ? response.status : 0
      }
      #expect(status == 200 && pieces == body)
      #expect(fixture.body("http://a.example/") == body)
      if round == 0 { fixture.drain() }
    }
    #expect(fixture.store.withResponse(fixture.key("http://a.example/absent"), { _ in true }) == nil)
  }

  @Test("Of many writes of one key only the newest waits, and only it is committed")
  func supersededWrites() throws {
    let fixture = try StoreFixture()
    let (store, url) = (fixture.store, "http://a.example/")
    store.store(fixture.response(url, body: Data("body 1000".utf8)))
    let byteCount = store.statistics.queuedByteCount
    for number in 1001...2000 { store.store(fixture.response(url, body: Data("body \(number)".utf8))) }
    #expect(store.statistics.queuedByteCount == byteCount)
    #expect(fixture.body(url) == Data("body 2000".utf8))
    try store.flush()
    #expect(fixture.body(url) == Data("body 2000".utf8))
    let statistics = store.statistics
    #expect(statistics.writes == 1 && statistics.supersededWrites == 1000 && statistics.droppedWrites == 0)
    #expect(statistics.queuedByteCount == 0)
  }
}
