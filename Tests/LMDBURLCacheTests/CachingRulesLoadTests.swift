import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Rules as data over the ways to load, and over the methods of `URLCache`.
@Suite("Loads with caching rules", .endsFixtures, .timeLimit(.minutes(1)))
struct CachingRulesLoadTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      switch request.path {
      case "/img/1": Reply(200, [("Cache-Control", "no-cache"), ("Content-Type", "image/png")], "image")
      case "/tenant": Reply(200, [("Cache-Control", "max-age=600")], "for \(request["X-Tenant"] ?? "none")")
      default: Reply(200, [("Cache-Control", "max-age=600"), ("Content-Type", "text/html")], "page")
      }
    }
  }

  private static let rules = [
    CachingRule(name: "other", hosts: ["other.test"], lifetime: 1),
    CachingRule(name: "loopback", hosts: ["127.0.0.*"], ignoredQueryParameters: ["token"]),
    CachingRule(name: "images", mediaTypes: ["image/*"], lifetime: 600),
    CachingRule(name: "accounts", paths: ["/account/*"], allowsStoring: false),
    CachingRule(name: "tenants", paths: ["/tenant"], partitionField: "X-Tenant"),
  ]

  private func fixture(_ overrides: (@Sendable (URLRequest) -> RequestOverrides)? = nil) throws -> CacheFixture {
    try CacheFixture {
      $0.rules = (try? CachingRules(Self.rules)) ?? CachingRules()
      $0.overrides = overrides
    }
  }

  @Test("Rules decide over loads, and a load names those that apply")
  func names() async throws {
    let fixture = try fixture()
    let origin = try origin()
    defer { origin.stop() }
    let cache = fixture.cache
    let image = try await cache.load(URLRequest(url: origin.url("/img/1?token=a")))
    #expect(image.cachingRules == ["loopback", "images"])
    #expect(image.timeToLive == 600)
    #expect(try await cache.load(URLRequest(url: origin.url("/img/1?token=b"))).source == .hit)
    #expect(cache.isCached(origin.url("/img/1?token=c")))
    let page = try await cache.load(URLRequest(url: origin.url("/page")))
    #expect(page.cachingRules == ["loopback"] && page.storageRefusal == nil)
    let account = try await cache.load(URLRequest(url: origin.url("/account/7")))
    #expect(account.cachingRules == ["loopback", "accounts"])
    #expect(account.storageRefusal?.id == "storing-disallowed" && account.timeToLive == nil)
    #expect(cache.statistics.directory?.storageRefusals["storing-disallowed"] == 1)
    try await cache.purge(.url(origin.url("/img/1?token=d")))
    #expect(!cache.isCached(origin.url("/img/1?token=a")))
  }

  @Test("The closure for overrides has the last word, and keeps what it does not set")
  func closure() async throws {
    let fixture = try fixture { _ in RequestOverrides(lifetime: 5) }
    let origin = try origin()
    defer { origin.stop() }
    let image = try await fixture.cache.load(URLRequest(url: origin.url("/img/1?token=a")))
    #expect(image.timeToLive == 5)
    #expect(try await fixture.cache.load(URLRequest(url: origin.url("/img/1"))).source == .hit)
  }

  @Test("A partition field separates the requests of sessions, of loads and of the methods of URLCache")
  func partitions() async throws {
    let fixture = try fixture()
    let origin = try origin()
    defer { origin.stop() }
    func request(_ tenant: String?) -> URLRequest {
      var request = URLRequest(url: origin.url("/tenant"))
      request.setValue(tenant, forHTTPHeaderField: "x-tenant")
      return request
    }
    for tenant in ["a", "b", "", nil] {
      let expected = "for \(tenant ?? "none")"
      let (data, _) = try await fixture.cache.data(for: request(tenant))
      #expect(String(decoding: data, as: UTF8.self) == expected)
      let stored = fixture.cache.cachedResponse(for: request(tenant))
      #expect(stored.map { String(decoding: $0.data, as: UTF8.self) } == expected)
      // The field can come from the session, too.
      let session = fixture.session { $0.httpAdditionalHeaders = tenant.map { ["X-Tenant": $0] } }
      let (again, _) = try await session.data(from: origin.url("/tenant"))
      #expect(String(decoding: again, as: UTF8.self) == expected)
      session.invalidateAndCancel()
    }
    #expect(origin.requestCount == 4)
    #expect(fixture.cache.cachedResponse(for: request("c")) == nil)
    #expect(try await fixture.cache.load(request("a")).cachingRules == ["loopback", "tenants"])
    fixture.cache.flush()
    #expect(Set(fixture.cache.entries().map(\.partition)).isSuperset(of: ["{x-tenant=a}", "{x-tenant}"]))
  }

  @Test("A response that the program stores itself is not stored if a rule forbids it")
  func storedByHand() async throws {
    let fixture = try fixture()
    for path in ["/account/7", "/page"] {
      let url = try #require(URL(string: "http://127.0.0.1\(path)"))
      let response = try #require(
        HTTPURLResponse(url: url, statusCode: 200, httpVersion: nil, headerFields: ["Cache-Control": "max-age=600"]))
      fixture.cache.storeCachedResponse(
        CachedURLResponse(response: response, data: Data("body".utf8)), for: URLRequest(url: url))
      #expect(fixture.cache.isCached(url) == (path == "/page"))
    }
  }
}
