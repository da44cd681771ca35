import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Rules as data: which requests they match, how they combine, and what they do to requests and responses.
@Suite("Caching rules", .timeLimit(.minutes(1)))
struct CachingRulesTests {
  private func request(
    _ url: String, _ rules: [CachingRule], _ fields: HeaderFields = HeaderFields(), partition: String = "",
    overrides: RequestOverrides? = nil
  ) throws -> CachingClientRequest {
    CachingClientRequest(
      head: RequestHead(method: "GET", url: try #require(URL(string: url)), fields: fields), partition: partition,
      overrides: overrides, rules: try CachingRules(rules))
  }

  private func matches(_ url: String, hosts: [String] = [], paths: [String] = []) throws -> Bool {
    let rule = CachingRule(name: "rule", hosts: hosts, paths: paths, lifetime: 7)
    return try request(url, [rule]).overrides.lifetime == 7
  }

  // MARK: Patterns

  @Test("A star matches any characters, and everything else itself")
  func wildcards() {
    func matches(_ pattern: String, _ text: String) -> Bool { Wildcards(pattern).matches(text) }
    for (pattern, text) in [
      ("", ""), ("*", ""), ("*", "abc"), ("a*", "a"), ("*a", "ba"), ("a*a", "aa"), ("a**c", "abc"), ("*b*", "abc"),
      ("a*b*c*d", "axbxcxd"), ("*ab*ab", "abab"), ("*aab*", "aaab"), ("*a*a*", "aa"), ("[a].b?", "[a].b?"),
    ] {
      #expect(matches(pattern, text), "\(pattern) \(text)")
    }
    for (pattern, text) in [
      ("", "a"), ("a", ""), ("a*a", "a"), ("ab*ba", "aba"), ("*b", "bc"), ("a*c", "abd"), ("*ab*ab", "ab"),
      ("*a*a*", "a"), ("a.c", "abc"), ("A", "a"),
    ] {
      #expect(!matches(pattern, text), "\(pattern) \(text)")
    }
  }

  @Test(
    "A host pattern matches a host in all its spellings",
    arguments: [
      ("api.example.com", "https://api.example.com/a", true), ("api.example.com", "https://API.Example.COM/a", true),
      ("API.example.com", "https://api.example.com/a", true), ("api.example.com", "http://api.example.com:8080", true),
      ("api.example.com", "https://user:password@api.example.com?q", true),
      ("api.example.com", "https://api.example.com./a", true), ("api.example.com.", "https://api.example.com/a", true),
      ("api.example.com", "https://%61pi.example.com/a", true), ("example.com", "https://api.example.com/a", false),
      ("api.example.com", "https://api.example.com.evil.test/a", false),
      ("api.example.com", "https://evil.test/api.example.com", false),
      ("api.example.com", "https://api.example.com@evil.test/a", false),
      ("*.example.com", "https://a.b.example.com/", true), ("*.example.com", "https://example.com/", false),
      ("*.example.com", "https://badexample.com/", false), ("api-*.example.com", "https://api-7.example.com/", true),
      ("api-*.example.com", "https://api.example.com/", false), ("*", "https://example.com/", true),
      ("a*b*c.test", "https://axxbyyc.test/", true), ("a*b*c.test", "https://acb.test/", false),
      ("bücher.example", "https://xn--bcher-kva.example/", true),
      ("*.bücher.example", "https://api.xn--bcher-kva.example/", true),
      ("[::1]", "http://[0:0:0:0:0:0:0:1]:8080/", true), ("::1", "http://[::1]/", true),
      ("127.0.0.1", "http://127.0.0.1:80/", true), ("127.0.0.1", "http://127.0.0.2/", false),
    ])
  func hosts(pattern: String, url: String, isMatch: Bool) throws {
    #expect(try matches(url, hosts: [pattern]) == isMatch)
  }

  @Test(
    "A path pattern matches a path in all spellings that servers treat as equal",
    arguments: [
      ("/img/*", "https://a.test/img/1.png", true), ("/img/*", "https://a.test/img", false),
      ("/img/*.png", "https://a.test/img/b/1.png?x=1", true), ("/img/*.png", "https://a.test/img/1.png#top", true),
      ("*/img/*", "https://a.test/x/img/1", true), ("/img/*", "https://a.test/IMG/1", false),
      ("/", "https://a.test", true), ("/", "https://a.test?q", true), ("/a*c", "https://a.test/abc", true),
      ("/a*b*c", "https://a.test/axbxc", true), ("/a*b*c", "https://a.test/acb", false),
      ("/search?*q=*", "https://a.test/search?a=1&q=x", true), ("/search?q=*", "https://a.test/search", false),
      ("/account/*", "https://a.test/%61ccount/7", true), ("/%61ccount/*", "https://a.test/account/7", true),
      ("/account/*", "https://a.test/static/../account/7", true), ("/account/*", "https://a.test/./account/7", true),
      ("/account/*", "https://a.test/static/%2e%2E/account/7", true),
      ("/static/*", "https://a.test/static/../account/7", false), ("/a/*", "https://a.test/a%2Fb", false),
      ("/list?user=a*", "https://a.test/list?user=%61b", true), ("/a%2fb", "https://a.test/a%2Fb", true),
      ("/straße/*", "https://a.test/stra%C3%9Fe/1", true),
      ("/straße/*", "https://a.test/stra%c3%9fe/1", true), ("/a/", "https://a.test/a/b/..", true),
    ])
  func paths(pattern: String, url: String, isMatch: Bool) throws {
    #expect(try matches(url, paths: [pattern]) == isMatch)
  }

  @Test("A rule needs a match of each kind, and of several patterns of a kind one")
  func kinds() throws {
    #expect(try matches("https://b.test/x", hosts: ["a.test", "b.test"], paths: ["/x", "/y"]))
    #expect(try !matches("https://b.test/z", hosts: ["a.test", "b.test"], paths: ["/x", "/y"]))
    #expect(try !matches("https://c.test/x", hosts: ["a.test", "b.test"], paths: ["/x", "/y"]))
    #expect(try matches("https://c.test/z"))
  }

  // MARK: Combining

  @Test("A later rule replaces what it sets and keeps the rest, and the program's own overrides come last")
  func order() throws {
    let rules = [
      CachingRule(name: "all", lifetime: 60, ignoredQueryParameters: ["t"], allowsStoring: false),
      CachingRule(name: "other", hosts: ["other.test"], lifetime: 1),
      CachingRule(name: "images", paths: ["/img/*"], lifetime: 600, allowsStoring: true, allowsCoalescing: false),
    ]
    let image = try request("https://a.test/img/1?t=1", rules)
    #expect(
      image.overrides
        == RequestOverrides(lifetime: 600, ignoredQueryParameters: ["t"], allowsCoalescing: false))
    #expect(image.keyURL.absoluteString == "https://a.test/img/1")
    let page = try request("https://a.test/page?t=1", rules).overrides
    #expect(page == RequestOverrides(lifetime: 60, ignoredQueryParameters: ["t"], allowsStoring: false))
    let own = RequestOverrides(lifetime: 5, ignoredQueryParameters: ["u"])
    let both = try request("https://a.test/img/1?t=1&u=2", rules, overrides: own)
    #expect(
      both.overrides == RequestOverrides(lifetime: 5, ignoredQueryParameters: ["u"], allowsCoalescing: false))
    let reset = rules + [CachingRule(name: "reset", ignoredQueryParameters: [])]
    #expect(try request("https://a.test/img/1?t=1", reset).keyURL.absoluteString == "https://a.test/img/1?t=1")
  }

  // MARK: Queries

  @Test("Rules make a POST a query, and compare the content of queries in a normal form")
  func queries() async throws {
    let rules = [
      CachingRule(name: "search", paths: ["/search*"], treatsAsQuery: true, queryNormalForm: "json"),
      CachingRule(name: "exact", paths: ["/search/exact"], queryNormalForm: "none"),
      CachingRule(name: "changes", paths: ["/search/changes"], treatsAsQuery: false),
    ]
    let fixture = Fixture()
    let origin = ScriptedTransport { _, number in fixture.ok("\(number)", fresh) }
    func post(_ path: String, _ content: String, _ overrides: RequestOverrides? = nil) async throws -> String {
      var request = try request(
        "http://a.test" + path, rules, ["Content-Type": "application/json"], overrides: overrides)
      request.head.method = "POST"
      request.body = .bytes(Data(content.utf8))
      return try await fixture.client.respond(to: request, over: origin).text()
    }
    let texts = [#"{"a": 1, "b": 2}"#, #"{"b":2,"a":1}"#, #"{"b":1,"a":2}"#]
    #expect(try await post("/search", texts[0]) == "1")
    #expect(try await post("/search", texts[1]) == "1")
    #expect(try await post("/search", texts[2]) == "2")
    #expect(try await post("/search/exact", texts[0]) == "3")
    #expect(try await post("/search/exact", texts[0]) == "3")
    #expect(try await post("/search/exact", texts[1]) == "4")
    #expect(try await post("/search/changes", texts[0]) == "5")
    #expect(try await post("/search/changes", texts[0]) == "6")
    // The program's own overrides come last.
    let own = RequestOverrides(treatsAsQuery: true, queryNormalForm: .json)
    #expect(try await post("/search/changes", texts[0], own) == "7")
    #expect(try await post("/search/changes", texts[1], own) == "7")
    #expect(try await post("/search/exact", texts[2], own) == "8")
    #expect(try await post("/other", texts[0]) == "9")
    #expect(try await post("/other", texts[0]) == "10")
  }

  // MARK: Media types

  private static let imageRules = [
    CachingRule(name: "all", lifetime: 10), CachingRule(name: "images", mediaTypes: ["image/*"], lifetime: 1000),
    CachingRule(name: "no video", mediaTypes: ["video/*", "audio/*"], allowsStoring: false),
  ]

  @Test(
    "A rule for a media type applies to the response",
    arguments: [
      ("image/png", nil, 1000.0), ("IMAGE/PNG; q=1", nil, 1000), ("text/html", nil, 10), (nil, nil, 10),
      ("image", nil, 10), ("image/png", 5, 5), ("video/mp4", nil, nil), ("audio/ogg", 5, nil),
    ] as [(String?, Double?, Double?)])
  func mediaTypes(type: String?, own: Double?, lifetime: Double?) async throws {
    let fixture = Fixture()
    let request = try request(
      "http://a.test/1", Self.imageRules, overrides: own.map { RequestOverrides(lifetime: $0) })
    let transport = ScriptedTransport { _, _ in
      fixture.response(200, "body", [fresh] + (type.map { [("Content-Type", $0)] } ?? []))
    }
    _ = try await fixture.client.respond(to: request, over: transport).text()
    #expect(fixture.storage.lookup(request)?.freshness.lifetime == lifetime)
    #expect(fixture.client.statistics.storageRefusals["storing-disallowed"] == (lifetime == nil ? 1 : nil))
  }

  @Test("A validation keeps the lifetime of the rule for the stored media type")
  func validation() async throws {
    let fixture = Fixture()
    let request = try request("http://a.test/1", Self.imageRules)
    let transport = ScriptedTransport { _, number in
      number == 1
        ? fixture.ok("body", ("ETag", "\"1\""), ("Content-Type", "image/png"))
        : fixture.response(304, "", [("ETag", "\"1\""), ("Cache-Control", "max-age=1")])
    }
    _ = try await fixture.client.respond(to: request, over: transport).text()
    fixture.clock.advance(by: 1001)
    #expect(try await fixture.client.respond(to: request, over: transport).source == .revalidated)
    fixture.clock.advance(by: 999)
    #expect(try await fixture.client.respond(to: request, over: transport).source == .hit)
  }

  @Test("A validation that changes the media type follows the rule for the new one")
  func changedMediaType() async throws {
    let fixture = Fixture()
    let request = try request("http://a.test/1", Self.imageRules)
    let transport = ScriptedTransport { _, number in
      number == 1
        ? fixture.ok("body", ("ETag", "\"1\""), ("Content-Type", "text/html"))
        : fixture.response(304, "", [("ETag", "\"1\""), ("Content-Type", number == 2 ? "image/png" : "video/mp4")])
    }
    _ = try await fixture.client.respond(to: request, over: transport).text()
    #expect(fixture.storage.lookup(request)?.freshness.lifetime == 10)
    fixture.clock.advance(by: 11)
    _ = try await fixture.client.respond(to: request, over: transport).text()
    #expect(fixture.storage.lookup(request)?.freshness.lifetime == 1000)
    fixture.clock.advance(by: 1001)
    #expect(try await fixture.client.respond(to: request, over: transport).text() == "body")
    #expect(fixture.storage.entryCount == 0)
  }

  // MARK: Storing

  @Test("The redirect of a URL with an ignored parameter is not stored, because it repeats the parameter")
  func redirectOfIgnoredParameter() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { request, _ in
      let query = request.head.url.query.map { "?" + $0 } ?? ""
      guard request.head.url.path == "/items" else {
        return fixture.ok("page\(query)", ("Cache-Control", "no-store"))
      }
      let isNew = !request.head.fields.contains("If-None-Match")
      return fixture.response(isNew ? 301 : 304, "", [("Location", "/page\(query)"), fresh, ("ETag", "\"1\"")])
    }
    let rules = [CachingRule(name: "token", paths: ["/items"], lifetime: 600, ignoredQueryParameters: ["token"])]
    for query in ["?token=a", "?token=b", "", "?token=a", "?token=b", "?other=1"] {
      var request = try request("http://a.test/items\(query)", rules)
      request.maximumRedirectCount = 5
      let response = try await fixture.client.respond(to: request, over: transport)
      // A redirect that was stored without the parameter leads to the page without it.
      let isStored = response.redirects[0].source == .hit
      #expect(try await response.text() == "page" + (isStored && query.hasPrefix("?token") ? "" : query))
      if query.isEmpty { fixture.clock.advance(by: 601) }
    }
    #expect(fixture.client.statistics.storageRefusals["redirect-of-ignored-parameter"] ?? 0 >= 2)
  }

  @Test("A response that a rule forbids to store is not stored, and removes what is stored", arguments: [200, 304])
  func allowsStoring(status: Int) async throws {
    let fixture = Fixture()
    let url = "http://a.test/1"
    let transport = ScriptedTransport { _, number in
      number > 1 && status == 304
        ? fixture.response(304, "", [("ETag", "\"1\"")]) : fixture.ok("body \(number)", fresh, ("ETag", "\"1\""))
    }
    _ = try await fixture.client.respond(to: try request(url, []), over: transport).text()
    #expect(fixture.storage.entryCount == 1)
    fixture.clock.advance(by: 100)
    let forbidden = try request(url, [CachingRule(name: "never", paths: ["/1"], allowsStoring: false)])
    let response = try await fixture.client.respond(to: forbidden, over: transport)
    #expect(try await response.text() == (status == 304 ? "body 1" : "body 2"))
    #expect(fixture.storage.entryCount == 0)
    if status == 200 { #expect(response.storageRefusal?.id == "storing-disallowed") }
  }

  // MARK: Partitions

  @Test("Requests with different values of a partition field, or none, never share a response")
  func partitions() async throws {
    let rules = [
      CachingRule(name: "tenants", partitionField: "X-Tenant"),
      CachingRule(name: "tenants again", partitionField: "x-tenant"),
    ]
    let requests: [(HeaderFields, String)] = [
      ([:], ""), (["X-Tenant": ""], ""), (["X-Tenant": "a"], ""), (["x-tenant": "A"], ""), (["X-TENANT": "a, b"], ""),
      (["X-Tenant": "a", "X-Tenant": "b"], ""), (["X-Tenant": "b", "X-Tenant": "a"], ""), (["X-Tenant": "a|b"], ""),
      (["X-Tenant": "a\\", "X-Tenant": "b"], ""), (["X-Tenant": "a\\|b"], ""), (["X-Tenant": "a}"], ""),
      (["X-Tenant": "a"], "}"), ([:], "a"), (["X-Tenant": "a;x-user=b"], ""), ([:], "{x-tenant=a}"),
      (["X-Tenant": " a"], ""),
    ]
    let fixture = Fixture()
    let transport = ScriptedTransport { _, number in fixture.ok("\(number)", fresh) }
    var partitions: Set<String> = []
    for (number, (fields, partition)) in requests.enumerated() {
      let request = try request("http://a.test/1", rules, fields, partition: partition)
      partitions.insert(request.partition)
      #expect(try await fixture.client.respond(to: request, over: transport).text() == "\(number + 1)")
    }
    #expect(partitions.count == requests.count)
    // The same request finds its own response.
    let again = try request("http://a.test/1", rules, ["x-tenant": "a"])
    #expect(try await fixture.client.respond(to: again, over: transport).text() == "3")
    #expect(again.partition == "{x-tenant=a}")
  }

  @Test("No rule joins what another one separates, and a partition of the program cannot be that of a rule")
  func partitionsAddUp() throws {
    let rules = [
      CachingRule(name: "users", paths: ["/1*"], partitionField: "X-User"),
      CachingRule(name: "tenants", paths: ["/*"], partitionField: "X-Tenant"),
      CachingRule(name: "later", lifetime: 60),
    ]
    let fields: HeaderFields = ["X-Tenant": "t", "X-User": "u"]
    #expect(try request("http://a.test/1", rules, fields, partition: "p").partition == "{x-tenant=t;x-user=u}p")
    #expect(try request("http://a.test/2", rules, fields).partition == "{x-tenant=t}")
    let some = [CachingRule(name: "users", paths: ["/1"], partitionField: "X-User")]
    #expect(try request("http://a.test/2", some, partition: "{x-user=u}").partition == "{}{x-user=u}")
    #expect(try request("http://a.test/2", some, partition: "p").partition == "p")
  }
}
