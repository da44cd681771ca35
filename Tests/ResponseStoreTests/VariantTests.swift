import Foundation
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("Variants and updates")
struct VariantTests {
  static let url = "http://a.example/"

  private func vary(_ language: String) -> VaryKey {
    VaryKey(fields: [VaryKey.Field(name: "accept-language", value: language)])
  }

  @Test("Of the matching variants the newest by Date is found, not the one stored last", arguments: [false, true])
  func newestByDate(isCommitted: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for (age, language) in [(30.0, "de"), (10, "en"), (20, "fr")] {
      var response = fixture.response(Self.url, body: Data(language.utf8), vary: vary(language))
      response.freshness.date = fixture.clock.now - age
      fixture.store.store(response)
      if isCommitted { fixture.drain() }
    }
    #expect(fixture.body(Self.url) == Data("en".utf8))
    let french = fixture.store.lookup(fixture.key(Self.url)) { $0 == vary("fr") }
    #expect(french?.body == Data("fr".utf8))
    #expect(fixture.store.lookup(fixture.key(Self.url)) { _ in false } == nil)
  }

  @Test("A lookup reports whether there are other variants, committed or pending")
  func others() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    func find(_ language: String) -> StoredResponse? {
      fixture.store.lookup(fixture.key(Self.url)) { $0 == vary(language) }
    }
    fixture.store.store(fixture.response(Self.url, vary: vary("de")))
    fixture.drain()
    #expect(find("de")?.hasOtherVariants == false)
    fixture.store.store(fixture.response(Self.url, vary: vary("en")))
    #expect(find("de")?.hasOtherVariants == true && find("en")?.hasOtherVariants == true)
    fixture.drain()
    #expect(find("de")?.hasOtherVariants == true && find("en")?.hasOtherVariants == true)
  }

  @Test("A variant with Vary fields is preferred to a newer one without", arguments: [false, true])
  func varyingFirst(isCommitted: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    var old = fixture.response(Self.url, body: Data("varying".utf8), vary: vary("de"))
    old.freshness.date = fixture.clock.now - 100
    fixture.store.store(old)
    fixture.store.store(fixture.response(Self.url))
    if isCommitted { fixture.drain() }
    #expect(fixture.body(Self.url) == Data("varying".utf8))
  }

  @Test("A response of the earliest date is found")
  func earliestDate() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    var response = fixture.response(Self.url)
    response.freshness.date = .distantPast
    fixture.store.store(response)
    fixture.drain()
    #expect(fixture.body(Self.url) != nil)
  }

  @Test("A key keeps at most 128 variants, and the oldest are removed")
  func maximum() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<140 {
      fixture.store.store(fixture.response(Self.url, body: Data("\(number)".utf8), vary: vary("\(number)")))
    }
    fixture.drain()
    #expect(fixture.store.entryCount == 128)
    #expect(fixture.store.statistics.removals[.tooManyVariants] == 12)
    #expect(fixture.store.statistics.evictions == 12)
    #expect(fixture.store.lookup(fixture.key(Self.url)) { $0 == vary("11") } == nil)
    #expect(fixture.store.lookup(fixture.key(Self.url)) { $0 == vary("12") } != nil)
    fixture.store.remove(fixture.key(Self.url))
    #expect(fixture.store.lookup(fixture.key(Self.url)) == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("`Vary: *` is stored as a variant that matches no request")
  func star() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let star = VaryKey(fields: [VaryKey.Field(name: "*", value: nil)])
    fixture.store.store(fixture.response(Self.url, vary: star))
    fixture.drain()
    #expect(
      fixture.store.lookup(fixture.key(Self.url)) { $0.matches(RequestHead(url: URL(string: Self.url)!)) { $0 } } == nil
    )
    #expect(fixture.store.lookup(fixture.key(Self.url))?.vary == star)
  }

  // MARK: Updates

  /// Fields of a record header that exceeds a leaf page, so that a small body moves out of the record.
  private let largeFields = HeaderFields([("X-Version", "2"), ("X-Long", String(repeating: "l", count: 3000))])

  @Test(
    "An update replaces the fields and keeps the body and the stored time",
    arguments: [0, 10, 1500, 5000, 300_000], [false, true])
  func update(size: Int, isCommitted: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let body = pseudorandomData(size, seed: 1)
    fixture.store.store(fixture.response(Self.url, body: body))
    if isCommitted { fixture.drain() }
    let storedAt = fixture.clock.now
    for fields in [largeFields, HeaderFields([("X-Version", "3")]), largeFields] {
      let stored = try #require(fixture.store.lookup(fixture.key(Self.url)))
      fixture.clock.advance(by: 10)
      fixture.store.update(stored, fields: fields, freshness: fixture.freshness(lifetime: 5))
      for _ in 0..<2 {
        let updated = try #require(fixture.store.lookup(fixture.key(Self.url)))
        #expect(updated.fields == fields)
        #expect(updated.freshness.lifetime == 5)
        #expect(updated.body == body)
        #expect(updated.storedAt == storedAt)
        if isCommitted { fixture.drain() }
      }
    }
    fixture.drain()
    #expect(fixture.store.entryCount == 1)
    // Each update of a pending write has superseded the previous one.
    #expect(fixture.store.statistics.updates == (isCommitted ? 3 : 0))
    #expect(fixture.store.statistics.supersededWrites == (isCommitted ? 0 : 3))
    #expect(fixture.store.statistics.writes == 1)
    try fixture.reopen()
    #expect(fixture.body(Self.url) == body)
  }

  @Test(
    "An update does not restore a response that was removed or replaced since", arguments: [false, true], [false, true])
  func updateAfterRemoval(isCommitted: Bool, isReplaced: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: Data("old".utf8)))
    if isCommitted { fixture.drain() }
    let stored = try #require(fixture.store.lookup(fixture.key(Self.url)))
    if isReplaced {
      fixture.store.store(fixture.response(Self.url, body: Data("new".utf8)))
    } else {
      fixture.store.remove(fixture.key(Self.url))
    }
    let expected = isReplaced ? Data("new".utf8) : nil
    fixture.store.update(stored, fields: largeFields, freshness: fixture.freshness())
    #expect(fixture.body(Self.url) == expected)
    fixture.drain()
    #expect(fixture.body(Self.url) == expected)
    fixture.store.update(stored, fields: largeFields, freshness: fixture.freshness())
    fixture.drain()
    #expect(fixture.body(Self.url) == expected)
    #expect(fixture.store.entryCount == (isReplaced ? 1 : 0))
  }

  @Test("An update of a large body writes only the record header")
  func largeBody() throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    let body = pseudorandomData(2 << 20, seed: 2)
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.drain()
    let commits = fixture.store.statistics.commits
    let stored = try #require(fixture.store.lookup(fixture.key(Self.url)))
    fixture.store.update(stored, fields: largeFields, freshness: fixture.freshness())
    fixture.drain()
    #expect(fixture.store.statistics.commits - commits <= 2)
    #expect(fixture.body(Self.url) == body)
  }
}
