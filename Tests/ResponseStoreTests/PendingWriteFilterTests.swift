import FoundationEssentials
import HTTPCaching
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Filter of pending writes")
struct PendingWriteFilterTests {
  private func key(_ number: Int) throws -> RequestKey {
    try #require(RequestKey(urlString: "http://example.com/\(number)"))
  }

  private func pendingWrite(_ number: Int) throws -> PendingWrite {
    let now = Date(timeIntervalSinceReferenceDate: 0)
    let response = CacheableResponse(
      status: 200, fields: HeaderFields(), body: Data([1]),
      freshness: FreshnessInfo(responseTime: now, initialAge: 0, lifetime: 60, date: now), vary: VaryKey(fields: []))
    return PendingWrite(response, for: try key(number), storedAt: now, removalSequence: 0, inlineByteCount: 1000)
  }

  @Test("The filter contains a key until it was removed as often as it was added")
  func counts() throws {
    let keys = PendingWriteFilter()
    let (one, two) = (try key(1).spreadingDigest, try key(2).spreadingDigest)
    #expect(keys.isEmpty && !keys.mightContain(one))
    keys.add(one)
    keys.add(one)
    keys.add(two)
    #expect(keys.mightContain(one) && keys.mightContain(two))
    keys.remove(one)
    #expect(keys.mightContain(one))
    keys.remove(one)
    keys.remove(two)
    #expect(keys.isEmpty && !keys.mightContain(one) && !keys.mightContain(two))
  }

  @Test("The filter has few false positives")
  func spread() throws {
    let keys = PendingWriteFilter()
    for number in 0..<1000 { keys.add(try key(number).spreadingDigest) }
    #expect(try (0..<1000).allSatisfy { keys.mightContain(try key($0).spreadingDigest) })
    let falsePositives = try (1000..<11_000).filter { keys.mightContain(try key($0).spreadingDigest) }
    #expect(falsePositives.count < 50)
  }

  @Test("A key that was added a thousand times is contained until all are removed")
  func saturated() throws {
    let keys = PendingWriteFilter()
    let (one, two) = (try key(1).spreadingDigest, try key(2).spreadingDigest)
    keys.add(two)
    for _ in 0..<1000 { keys.add(one) }
    for _ in 0..<1000 {
      #expect(keys.mightContain(one))
      keys.remove(one)
    }
    #expect(keys.mightContain(two))
    keys.remove(two)
    #expect(keys.isEmpty && !keys.mightContain(one) && !keys.mightContain(two))
    keys.add(two)
    #expect(keys.mightContain(two) && !keys.mightContain(one))
  }

  @Test("The pending writes contain a key until each of its writes is committed or removed")
  func pendingWrites() throws {
    let pending = PendingWrites()
    let (older, newer, other) = (try pendingWrite(1), try pendingWrite(1), try pendingWrite(2))
    for response in [older, newer, other] { pending.insert(response) }
    #expect(pending.mightContain(older.key) && pending.mightContain(other.key))
    pending.remove([other])
    #expect(pending.mightContain(older.key) && !pending.mightContain(other.key))
    pending.remove([older])
    #expect(pending.mightContain(older.key))
    pending.remove([newer])
    #expect(!pending.mightContain(older.key) && pending.isEmpty)
  }

  @Test("Each of many pending writes is found until it is removed, in any order")
  func manyPendingWrites() throws {
    let pending = PendingWrites()
    // More writes than the table has cells.
    let responses = try (0..<20_000).map { try pendingWrite($0) }
    for response in responses { pending.insert(response) }
    #expect(responses.allSatisfy { pending.newest(of: $0.key, vary: $0.vary) === $0 })
    let (first, last) = (responses[..<10_000], responses[10_000...])
    pending.remove(last.reversed())
    #expect(first.allSatisfy { pending.newest(of: $0.key, vary: $0.vary) === $0 })
    #expect(last.allSatisfy { !pending.contains($0.key) })
    pending.remove(Array(first))
    #expect(pending.isEmpty && responses.allSatisfy { !pending.contains($0.key) && !pending.mightContain($0.key) })
  }

  @Test(
    "A key is compared with the text of a URL",
    arguments: [
      ("http://example.com/a?b", "http://example.com/a?b", true),
      ("http://example.com:80/a", "http://example.com:80/a", false),
      ("http://example.com:8080/a", "http://example.com:8080/a", true),
      ("HTTP://example.com/", "HTTP://example.com/", false),
      ("http://example.com", "http://example.com", false), ("http://example.com/a#f", "http://example.com/a#f", false),
      ("http://u:p@example.com/", "http://u:p@example.com/", false), ("data:text/plain,x", "data:text/plain,x", true),
      ("https://[::1]:8443/x", "https://[::1]:8443/x", true), ("http://example.com/a", "http://example.com/ab", false),
      ("http://example.com/ab", "http://example.com/a", false),
      ("https://example.com:443/", "https://example.com/", true),
    ])
  func names(_ made: String, _ asked: String, _ isSame: Bool) throws {
    let key = try #require(RequestKey(urlString: made))
    #expect(key.isMade(of: asked) == isSame)
    #expect(key.isMade(of: key.urlString))
  }
}
