import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// The contract of `URLCache` for responses that callers store and look up themselves.
@Suite("Manually stored responses", .endsFixtures)
struct ManualStorageTests {
  let url = URL(string: "http://example.com/a?q=1")!

  @Test("A stored response is equal after reopening")
  func reopened() async throws {
    let fixture = try CacheFixture()
    let fields = [
      "Content-Type": "text/html; charset=iso-8859-1", "Content-Length": "4", "Cache-Control": "max-age=600",
      "X-Mixed-Case": "v", "ETag": "\"1\"", "Date": "Tue, 15 Nov 1994 08:12:31 GMT",
    ]
    let info: [AnyHashable: Any] = ["n": 1, "s": "text", "d": Data([1, 2]), "a": ["x", "y"]]
    let original = CachedURLResponse(
      response: httpResponse(url, fields), data: Data("body".utf8), userInfo: info, storagePolicy: .allowed)
    let request = URLRequest(url: url)
    fixture.cache.storeCachedResponse(original, for: request)

    let inMemory = try #require(fixture.cache.cachedResponse(for: request))
    #expect(inMemory.response === original.response)
    #expect(inMemory == original)
    #expect(inMemory.hash == original.hash)
    #expect(inMemory.copy() as AnyObject === inMemory)

    try fixture.reopen()
    let found = try #require(fixture.cache.cachedResponse(for: request))
    #expect(found.data == original.data)
    #expect(found.storagePolicy == .allowed)
    let response = try #require(found.response as? HTTPURLResponse)
    #expect(response.url == url)
    #expect(response.statusCode == 200)
    #expect(response.mimeType == "text/html")
    #expect(response.textEncodingName == "iso-8859-1")
    #expect(response.expectedContentLength == 4)
    #expect(response.suggestedFilename == original.response.suggestedFilename)
    #expect(
      response.allHeaderFields as? [String: String] == (original.response as? HTTPURLResponse)?.allHeaderFields
        as? [String: String])
    #expect(found.userInfo?["n"] as? Int == 1)
    #expect(found.userInfo?["s"] as? String == "text")
    #expect(found.userInfo?["d"] as? Data == Data([1, 2]))
    #expect(found.userInfo?["a"] as? [String] == ["x", "y"])
    #expect(found == fixture.cache.cachedResponse(for: request))
  }

  @Test("A userInfo that is no property list stays in memory, while the response is stored on disk")
  func userInfoOfObjects() async throws {
    let fixture = try CacheFixture()
    let request = URLRequest(url: url)
    let object = NSObject()
    fixture.cache.storeCachedResponse(
      CachedURLResponse(
        response: httpResponse(url, ["ETag": "\"1\""]), data: Data("body".utf8), userInfo: ["o": object],
        storagePolicy: .allowed), for: request)
    #expect(fixture.cache.cachedResponse(for: request)?.userInfo?["o"] as AnyObject === object)
    try fixture.reopen()
    let found = try #require(fixture.cache.cachedResponse(for: request))
    #expect(found.data.text == "body")
    #expect(found.userInfo == nil)
  }

  @Test(
    "Responses of other schemes than HTTP are stored",
    arguments: ["ftp://example.com/file", "file:///tmp/a", "data:text/plain,x", "custom:thing"])
  func notHTTP(_ text: String) async throws {
    let fixture = try CacheFixture()
    let url = try #require(URL(string: text))
    let request = URLRequest(url: url)
    let plain = URLResponse(url: url, mimeType: "text/x", expectedContentLength: 77, textEncodingName: "utf-8")
    fixture.cache.storeCachedResponse(CachedURLResponse(response: plain, data: Data("body".utf8)), for: request)
    #expect(fixture.cache.cachedResponse(for: request)?.response === plain)
    try fixture.reopen()
    let found = try #require(fixture.cache.cachedResponse(for: request))
    #expect(found.data.text == "body")
    #expect(!(found.response is HTTPURLResponse))
    #expect(found.response.url == url)
    #expect(found.response.mimeType == "text/x")
    #expect(found.response.expectedContentLength == 77)
    #expect(found.response.textEncodingName == "utf-8")
  }

  @Test("The response's own URL is stored if it differs from the request's")
  func otherURL() async throws {
    let fixture = try CacheFixture()
    let other = URL(string: "http://example.com/other#part")!
    fixture.cache.storeCachedResponse(cached(other), for: URLRequest(url: url))
    try fixture.reopen()
    #expect(fixture.cache.cachedResponse(for: URLRequest(url: url))?.response.url == other)
    #expect(fixture.cache.cachedResponse(for: URLRequest(url: other)) == nil)
  }

  @Test("The storage policy selects the tiers")
  func storagePolicies() async throws {
    let fixture = try CacheFixture()
    func store(_ path: String, _ policy: URLCache.StoragePolicy) -> URLRequest {
      let url = URL(string: "http://example.com\(path)")!
      let request = URLRequest(url: url)
      fixture.cache.storeCachedResponse(
        CachedURLResponse(
          response: httpResponse(url, ["Cache-Control": "max-age=600"]), data: Data("b".utf8), userInfo: nil,
          storagePolicy: policy), for: request)
      return request
    }
    let allowed = store("/1", .allowed)
    let memory = store("/2", .allowedInMemoryOnly)
    let refused = store("/3", .notAllowed)
    #expect(fixture.cache.cachedResponse(for: allowed)?.storagePolicy == .allowed)
    #expect(fixture.cache.cachedResponse(for: memory)?.storagePolicy == .allowedInMemoryOnly)
    #expect(fixture.cache.cachedResponse(for: refused) == nil)
    fixture.cache.ignoreMemoryOnlyStoragePolicy = true
    let ignored = store("/4", .allowedInMemoryOnly)
    try fixture.reopen()
    #expect(fixture.cache.cachedResponse(for: allowed) != nil)
    #expect(fixture.cache.cachedResponse(for: memory) == nil)
    #expect(fixture.cache.cachedResponse(for: ignored) != nil)
  }

  @Test(
    "Lifetime, validators and no-store decide whether a response reaches the disk",
    arguments: [
      (["Cache-Control": "max-age=299"], false), (["Cache-Control": "max-age=300"], true),
      (["Cache-Control": "max-age=0"], false), (["Cache-Control": "max-age=0", "ETag": "\"1\""], true),
      (["Cache-Control": "no-store, max-age=600", "ETag": "\"1\""], false), ([:], true),
      (["Cache-Control": "no-cache", "Last-Modified": "Tue, 15 Nov 1994 08:12:31 GMT"], true),
    ])
  func minimumInterval(_ fields: [String: String], reachesDisk: Bool) async throws {
    let fixture = try CacheFixture()
    let request = URLRequest(url: url)
    fixture.cache.storeCachedResponse(cached(url, "body", fields), for: request)
    #expect(fixture.cache.cachedResponse(for: request)?.data.text == "body")
    try fixture.reopen()
    #expect((fixture.cache.cachedResponse(for: request) != nil) == reachesDisk)
  }

  @Test("A newer response for memory only replaces the older one on disk")
  func memoryOnlyReplacesDisk() async throws {
    let fixture = try CacheFixture()
    let request = URLRequest(url: url)
    fixture.cache.storeCachedResponse(cached(url, "old"), for: request)
    fixture.cache.flush()
    fixture.cache.storeCachedResponse(cached(url, "new", ["Cache-Control": "max-age=10"]), for: request)
    #expect(fixture.cache.cachedResponse(for: request)?.data.text == "new")
    try fixture.reopen()
    #expect(fixture.cache.cachedResponse(for: request) == nil)
  }

  @Test("Responses differ by query, scheme, port and user, but not by fragment or the case of the host")
  func keys() async throws {
    let fixture = try CacheFixture()
    let texts = [
      "http://example.com/a", "http://example.com/a?user=1", "http://example.com/a?user=2", "https://example.com/a",
      "http://example.com:8080/a", "http://me@example.com/a", "http://example.com/A",
    ]
    for text in texts {
      let url = URL(string: text)!
      fixture.cache.storeCachedResponse(cached(url, text), for: URLRequest(url: url))
    }
    for text in texts {
      #expect(fixture.cache.cachedResponse(for: URLRequest(url: URL(string: text)!))?.data.text == text)
    }
    let same = URL(string: "HTTP://EXAMPLE.com:80/a#part")!
    #expect(fixture.cache.cachedResponse(for: URLRequest(url: same))?.data.text == "http://example.com/a")
    #expect(fixture.cache.isCached(same))
    fixture.cache.removeCachedResponse(for: URLRequest(url: same))
    #expect(!fixture.cache.isCached(URL(string: "http://example.com/a")!))
    #expect(fixture.cache.isCached(URL(string: "http://example.com/a?user=1")!))
  }

  @Test("Vary and Authorization select the variant, and a variant with Vary is preferred")
  func variants() async throws {
    for usesDisk in [false, true] {
      let fixture = try CacheFixture()
      func store(_ text: String, _ fields: [String: String], for requestFields: [String: String]) {
        fixture.cache.storeCachedResponse(
          cached(url, text, fields.merging(["Cache-Control": "max-age=600"]) { $1 }),
          for: URLRequest(url, requestFields))
      }
      func found(_ fields: [String: String]) -> String? {
        fixture.cache.cachedResponse(for: URLRequest(url, fields))?.data.text
      }
      store("de", ["Vary": "Accept-Language"], for: ["Accept-Language": "de"])
      store("en", ["Vary": "Accept-Language"], for: ["Accept-Language": "en"])
      store("secret", [:], for: ["Authorization": "Bearer 1"])
      fixture.clock.advance(by: 5)
      store("plain", [:], for: [:])
      if usesDisk { try fixture.reopen(memory: 0) }
      #expect(found(["Accept-Language": "de"]) == "de")
      #expect(found(["Accept-Language": "en"]) == "en")
      #expect(found(["Accept-Language": "fr"]) == "plain")
      #expect(found(["Authorization": "Bearer 1"]) == "secret")
      #expect(found(["Authorization": "Bearer 2"]) == nil)
      let key = try #require(RequestKey(url: url))
      #expect(fixture.cache.core.variantCount(key) == 3, "The response for one user has a key of its own.")
      fixture.cache.removeCachedResponse(for: URLRequest(url: url))
      #expect(fixture.cache.core.variantCount(key) == 0)
      #expect(found(["Authorization": "Bearer 1"]) == nil)
    }
  }

  @Test("Responses are never returned across partitions")
  func partitions() async throws {
    let fixture = try CacheFixture { options in
      options.partition = { $0.value(forHTTPHeaderField: "X-User") ?? "" }
    }
    fixture.cache.storeCachedResponse(cached(url, "one"), for: URLRequest(url, ["X-User": "1"]))
    #expect(fixture.cache.cachedResponse(for: URLRequest(url, ["X-User": "1"]))?.data.text == "one")
    #expect(fixture.cache.cachedResponse(for: URLRequest(url, ["X-User": "2"])) == nil)
    #expect(fixture.cache.cachedResponse(for: URLRequest(url: url)) == nil)
  }

  @Test("Invalid requests and responses are not stored, and other responses are kept")
  func badInput() async throws {
    let fixture = try CacheFixture()
    let good = URLRequest(url: url)
    fixture.cache.storeCachedResponse(cached(url), for: good)
    var none = good
    none.url = nil
    fixture.cache.storeCachedResponse(cached(url), for: none)
    #expect(fixture.cache.cachedResponse(for: none) == nil)
    fixture.cache.removeCachedResponse(for: none)
    let hostless = URLRequest(url: URL(string: "http:///path")!)
    fixture.cache.storeCachedResponse(cached(url), for: hostless)
    #expect(fixture.cache.cachedResponse(for: hostless) == nil)
    let long = URL(string: "http://example.com/" + String(repeating: "a", count: 100_000))!
    fixture.cache.storeCachedResponse(cached(long, "long"), for: URLRequest(url: long))
    let huge = URL(string: "http://example.com/huge")!
    fixture.cache.storeCachedResponse(
      CachedURLResponse(response: httpResponse(huge), data: Data(count: 40 << 20)), for: URLRequest(url: huge))
    try fixture.reopen()
    #expect(fixture.cache.cachedResponse(for: good)?.data.text == "body")
    #expect(fixture.cache.cachedResponse(for: URLRequest(url: long))?.data.text == "long")
    #expect(fixture.cache.cachedResponse(for: URLRequest(url: huge)) == nil)
  }
}
