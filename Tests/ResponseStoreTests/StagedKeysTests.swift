import FoundationEssentials
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("What tells lookups that something is staged")
struct StagedKeysTests {
  private func key(_ number: Int) throws -> RequestKey {
    try #require(RequestKey(urlString: "http://example.com/\(number)"))
  }

  private func staged(_ number: Int) throws -> StagedResponse {
    let now = Date(timeIntervalSinceReferenceDate: 0)
    let response = NewResponse(
      key: try key(number), status: 200, fields: HTTPFields(), body: Data([1]),
      facts: FreshnessFacts(responseTime: now, initialAge: 0, lifetime: 60, date: now),
      vary: VarySelection(selectors: []))
    return StagedResponse(response, storedAt: now, snapshot: 0, inlineByteCount: 1000)
  }

  @Test("A key that was added may be there until it was taken out as often")
  func counts() throws {
    let keys = StagedKeys()
    let (one, two) = (try key(1).spreadingDigest, try key(2).spreadingDigest)
    #expect(keys.isEmpty && !keys.mayContain(one))
    keys.add(one)
    keys.add(one)
    keys.add(two)
    #expect(keys.mayContain(one) && keys.mayContain(two))
    keys.remove(one)
    #expect(keys.mayContain(one))
    keys.remove(one)
    keys.remove(two)
    #expect(keys.isEmpty && !keys.mayContain(one) && !keys.mayContain(two))
  }

  @Test("Of many keys that were not added, nearly none seems to be there")
  func spread() throws {
    let keys = StagedKeys()
    for number in 0..<1000 { keys.add(try key(number).spreadingDigest) }
    #expect(try (0..<1000).allSatisfy { keys.mayContain(try key($0).spreadingDigest) })
    let seeming = try (1000..<11_000).filter { keys.mayContain(try key($0).spreadingDigest) }
    #expect(seeming.count < 50)
  }

  @Test("A key that was added a thousand times stays until all are taken out, and is gone then")
  func saturated() throws {
    let keys = StagedKeys()
    let (one, two) = (try key(1).spreadingDigest, try key(2).spreadingDigest)
    keys.add(two)
    for _ in 0..<1000 { keys.add(one) }
    for _ in 0..<1000 {
      #expect(keys.mayContain(one))
      keys.remove(one)
    }
    #expect(keys.mayContain(two))
    keys.remove(two)
    #expect(keys.isEmpty && !keys.mayContain(one) && !keys.mayContain(two))
    keys.add(two)
    #expect(keys.mayContain(two) && !keys.mayContain(one))
  }

  @Test("The staging area names a key until what was staged is written, or what was removed is written down")
  func stagingArea() throws {
    let staging = StagingArea()
    let (older, newer, other) = (try staged(1), try staged(1), try staged(2))
    for response in [older, newer, other] { staging.insert(response) }
    #expect(staging.mayContain(older.key) && staging.mayContain(other.key))
    staging.remove([other])
    #expect(staging.mayContain(older.key) && !staging.mayContain(other.key))
    staging.remove([older])
    #expect(staging.mayContain(older.key))
    staging.remove([newer])
    #expect(!staging.mayContain(older.key) && staging.isEmpty)
  }

  @Test("Each of many staged responses is found until it is taken out, in whatever order")
  func manyStaged() throws {
    let staging = StagingArea()
    // More than there are places.
    let responses = try (0..<20_000).map { try staged($0) }
    for response in responses { staging.insert(response) }
    #expect(responses.allSatisfy { staging.newest(of: $0.key, vary: $0.vary) === $0 })
    let (first, last) = (responses[..<10_000], responses[10_000...])
    staging.remove(last.reversed())
    #expect(first.allSatisfy { staging.newest(of: $0.key, vary: $0.vary) === $0 })
    #expect(last.allSatisfy { !staging.concerns($0.key) })
    staging.remove(Array(first))
    #expect(staging.isEmpty && responses.allSatisfy { !staging.concerns($0.key) && !staging.mayContain($0.key) })
  }

  @Test(
    "Whether a URL's text is the one that a key names",
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
