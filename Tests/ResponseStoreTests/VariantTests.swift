import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Testing

@Suite("Variants and updates", .endsFixtures)
struct VariantTests {
  static let url = "http://a.example/"

  private func vary(_ language: String) -> VaryKey {
    VaryKey(fields: [VaryKey.Field(name: "accept-language", value: language)])
  }

  @Test("Of the matching variants the newest by Date is found, not the one stored last", arguments: [false, true])
  func newestByDate(isCommitted: Bool) throws {
    let fixture = try StoreFixture()
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

  @Test("A key keeps at most 128 variants, and the oldest are removed")
  func maximum() throws {
    let fixture = try StoreFixture()
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

  // MARK: Updates

  @Test("An update does not restore a pending write that was removed by a group that only the old fields name")
  func removedBeforeUpdate() throws {
    let fixture = try StoreFixture()
    let store = fixture.store
    let fields = HeaderFields([("Cache-Groups", "\"g\"")])
    store.store(fixture.response(Self.url, fields: fields))
    let stored = try #require(store.lookup(fixture.key(Self.url)))
    let scope = try #require(RemovalScope.group("g", ofOrigin: URL(string: Self.url)!))
    try store.logOnly(Removal(scope))
    store.update(stored, fields: HeaderFields(), freshness: fixture.freshness())
    #expect(fixture.body(Self.url) == nil)
    fixture.drain()
    #expect(fixture.body(Self.url) == nil && store.statistics.droppedWrites == 2)
  }

  /// Fields of a record header that exceeds a leaf page, so that a small body moves out of the record.
  private let largeFields = HeaderFields([("X-Version", "2"), ("X-Long", String(repeating: "l", count: 3000))])

  @Test("An update of a large body writes only the record header")
  func largeBody() throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
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
