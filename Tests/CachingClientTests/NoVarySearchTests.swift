import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// No-Vary-Search: a stored response answers URLs that differ in what the field names.
@Suite("No-Vary-Search in the caching client", .timeLimit(.minutes(1)))
struct NoVarySearchClientTests {
  private let field = "No-Vary-Search"

  /// An origin that responds to each request with its URL and number.
  private func origin(_ fixture: Fixture, _ variation: String?, _ more: (String, String)...) -> ScriptedTransport {
    ScriptedTransport { request, number in
      fixture.response(
        200, "\(request.head.url.query ?? "-") \(number)",
        [fresh] + (variation.map { [("No-Vary-Search", $0)] } ?? []) + more)
    }
  }

  private func stored(_ fixture: Fixture, _ url: String, partition: String = "") async throws -> String? {
    try await fixture.client.storedResponse(to: get(url, partition: partition))?.text()
  }

  @Test("A response answers each equivalent URL, also its own and that without a query")
  func equivalents() async throws {
    let fixture = Fixture()
    let origin = origin(fixture, #"params=("utm" "ref"), key-order"#)
    let first = try await fixture.client.respond(to: get("http://example.com/a?utm=1&b=2&c=3"), over: origin)
    #expect(try await first.text() == "utm=1&b=2&c=3 1")
    for same in ["utm=1&b=2&c=3", "b=2&c=3", "c=3&b=2", "c=%33&b=2&ref&utm=9", "&&b=2&c=3#part"] {
      let response = fixture.client.storedResponse(to: get("http://example.com/a?\(same)"))
      #expect(try await response?.text() == "utm=1&b=2&c=3 1", "\(same)")
    }
    for other in ["b=2", "b=2&c=4", "b=2&c=3&d", "B=2&c=3"] {
      #expect(try await stored(fixture, "http://example.com/a?\(other)") == nil, "\(other)")
    }
    #expect(try await stored(fixture, "http://example.com/b?b=2&c=3") == nil)
    #expect(try await stored(fixture, "http://example.com/a?b=2&c=3", partition: "p") == nil)
    #expect(fixture.client.storedResponse(to: get("http://example.com/a?c=3&b=2", method: "HEAD"))?.status == 200)
    #expect(fixture.storage.entryCount == 1)
  }

  @Test("With all parameters ignored, the URL without a query is equivalent to all with one")
  func everything() async throws {
    let fixture = Fixture()
    let origin = origin(fixture, "params")
    _ = try await fixture.client.respond(to: get("http://example.com/a"), over: origin)
    for number in 1...10_000 {
      #expect(try await stored(fixture, "http://example.com/a?x=\(number)") == "- 1")
    }
    #expect(fixture.storage.entryCount == 1)
  }

  @Test(
    "A malformed field, one without effect, and the option separate URLs", arguments: ["params=(a)", "params=()", ""])
  func malformed(value: String) async throws {
    for isOn in [true, false] {
      var options = CachingOptions()
      options.usesNoVarySearch = isOn
      let fixture = Fixture(options: options)
      let origin = origin(fixture, isOn ? value : "params")
      _ = try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: origin)
      #expect(try await stored(fixture, "http://example.com/a?x=1") == "x=1 1")
      #expect(try await stored(fixture, "http://example.com/a?x=2") == nil)
    }
  }

  /// Row 117.
  @Test("A newer response without the field ends the equivalence of its URL")
  func ended() async throws {
    let fixture = Fixture()
    _ = try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: origin(fixture, "params"))
    let reload = get("http://example.com/a?x=2", policy: .reloadIgnoringLocalCacheData)
    _ = try await fixture.client.respond(to: reload, over: origin(fixture, nil))
    #expect(try await stored(fixture, "http://example.com/a?x=2") == "x=2 1")
    for number in [1, 3] { #expect(try await stored(fixture, "http://example.com/a?x=\(number)") == nil) }
  }

  /// Rows 116 and 117.
  @Test("A response with another variation replaces the one of its path")
  func otherVariation() async throws {
    let fixture = Fixture()
    _ = try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: origin(fixture, "params"))
    let reload = get("http://example.com/a?x=2&y=1", policy: .reloadIgnoringLocalCacheData)
    _ = try await fixture.client.respond(to: reload, over: origin(fixture, #"params=("x")"#))
    #expect(try await stored(fixture, "http://example.com/a?x=3&y=1") == "x=2&y=1 1")
    #expect(try await stored(fixture, "http://example.com/a?x=1") == nil)
  }

  @Test(
    "A 304 makes the response fresh for all equivalent URLs, unless it changes the field", arguments: [false, true])
  func validation(changes: Bool) async throws {
    let fixture = Fixture()
    let origin = ScriptedTransport { request, number in
      number == 1
        ? fixture.ok("body", fresh, ("ETag", "\"1\""), ("No-Vary-Search", "params"))
        : fixture.response(
          304, "", [fresh, ("ETag", "\"1\""), ("No-Vary-Search", changes ? "key-order" : "params")])
    }
    _ = try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: origin)
    fixture.clock.advance(by: 100)
    let response = try await fixture.client.respond(to: get("http://example.com/a?x=2"), over: origin)
    #expect(try await response.text() == "body" && response.source == .revalidated)
    #expect(origin.requests[1].head.fields["If-None-Match"] == "\"1\"")
    #expect(try await stored(fixture, "http://example.com/a?x=3") == (changes ? nil : "body"))
  }

  /// Row 118.
  @Test("An unsafe request to one of the URLs ends what it was equivalent to", arguments: ["x=1", "x=7", ""])
  func invalidation(query: String) async throws {
    let fixture = Fixture()
    _ = try await fixture.client.respond(to: get("http://example.com/a?x=1"), over: origin(fixture, "params"))
    _ = try await fixture.client.respond(to: get("http://example.com/b?x=1"), over: origin(fixture, "params"))
    let put = ScriptedTransport { _, _ in fixture.response(204) }
    _ = try await fixture.client.respond(to: get("http://example.com/a?\(query)", method: "PUT"), over: put)
    for query in ["x=1", "x=7", ""] { #expect(try await stored(fixture, "http://example.com/a?\(query)") == nil) }
    #expect(try await stored(fixture, "http://example.com/b?x=2") == "x=1 1")
    _ = try await fixture.client.respond(to: get("http://example.com/a?x=2"), over: origin(fixture, "params"))
    #expect(try await stored(fixture, "http://example.com/a?x=1") == "x=2 1")
  }

  /// Requests a URL, whose response has a field and arrives when `change` has returned.
  private func respond(
    to url: String, _ field: String, _ fixture: Fixture, after change: () async throws -> Void
  ) async throws {
    let gate = Gate()
    let slow = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("old", fresh, ("No-Vary-Search", field))
    }
    async let response = fixture.client.respond(to: get(url), over: slow).text()
    await until { slow.count == 1 }
    try await change()
    gate.open()
    #expect(try await response == "old")
  }

  private func put(_ url: String, _ fixture: Fixture) async throws {
    let transport = ScriptedTransport { _, _ in fixture.response(204) }
    _ = try await fixture.client.respond(to: get(url, method: "PUT"), over: transport)
  }

  // Guarantee: a response to a request that was sent before a change is not stored for URLs that the change concerns.
  @Test(
    "A response in flight during an unsafe request to an equivalent URL is used for its own URL at most",
    arguments: [false, true])
  func invalidatedInFlight(isKnown: Bool) async throws {
    let fixture = Fixture()
    let client = fixture.client
    if isKnown {
      _ = try await client.respond(to: get("http://example.com/a?y"), over: origin(fixture, #"params=("x")"#))
    }
    try await respond(to: "http://example.com/a?x=1", #"params=("x")"#, fixture) {
      try await put("http://example.com/a?x=2", fixture)
    }
    #expect(try await stored(fixture, "http://example.com/a?x=2") == nil)
    #expect(try await stored(fixture, "http://example.com/a") == nil)
  }

  @Test("A response in flight during a change of the path is not stored where a later change would not reach it")
  func changedAgain() async throws {
    let fixture = Fixture()
    try await respond(to: "http://example.com/a?id=1", #"params=("x")"#, fixture) {
      try await put("http://example.com/a?id=9", fixture)
    }
    try await put("http://example.com/a?id=1&x=2", fixture)
    #expect(try await stored(fixture, "http://example.com/a?id=1") == nil)
  }

  @Test("A response in flight during a purge by another process is used for its own URL at most")
  func purgedInFlight() async throws {
    let fixture = Fixture()
    try await respond(to: "http://example.com/a?x=1", "params", fixture) { fixture.storage.removeAll() }
    #expect(try await stored(fixture, "http://example.com/a?x=2") == nil)
  }

  @Test("Requests for equivalent URLs share a fetch once the field of their path is known")
  func coalescing() async throws {
    let fixture = Fixture()
    let client = fixture.client
    _ = try await client.respond(to: get("http://example.com/a?x=1"), over: origin(fixture, "params"))
    fixture.clock.advance(by: 100)
    let gate = Gate()
    let slow = ScriptedTransport { request, number in
      try await gate.pass()
      return fixture.ok("\(number)", fresh, ("No-Vary-Search", "params"))
    }
    async let first = client.respond(to: get("http://example.com/a?x=2"), over: slow).text()
    await until { slow.count == 1 }
    async let second = client.respond(to: get("http://example.com/a?x=3"), over: slow)
    await until { client.statistics.waiting == 1 }
    gate.open()
    #expect(try await first == "1")
    #expect(try await second.source == .coalesced)
    #expect(slow.count == 1)
  }

  @Test("A request that waits for an equivalent URL's fetch does not use a response that ends the equivalence")
  func coalescedEnd() async throws {
    let fixture = Fixture()
    let client = fixture.client
    _ = try await client.respond(to: get("http://example.com/a?x=1"), over: origin(fixture, "params"))
    fixture.clock.advance(by: 100)
    let gate = Gate()
    let slow = ScriptedTransport { request, _ in
      if request.head.url.query == "x=2" { try await gate.pass() }
      return fixture.ok(request.head.url.query ?? "", fresh)
    }
    async let first = client.respond(to: get("http://example.com/a?x=2"), over: slow).text()
    await until { slow.count == 1 }
    async let second = client.respond(to: get("http://example.com/a?x=3"), over: slow).text()
    await until { client.statistics.waiting == 1 }
    gate.open()
    #expect(try await first == "x=2")
    #expect(try await second == "x=3")
  }

  @Test("Credentials and selecting fields separate responses for equivalent URLs")
  func users() async throws {
    let fixture = Fixture()
    let origin = origin(fixture, "params", ("Vary", "Accept"))
    let fields: HeaderFields = ["Authorization": "Basic QTpC", "Accept": "text/html"]
    _ = try await fixture.client.respond(to: get("http://example.com/a?user=1", fields), over: origin)
    #expect(fixture.client.storedResponse(to: get("http://example.com/a?user=2", fields)) != nil)
    for other: HeaderFields in [
      [:], ["Accept": "text/html"], ["Authorization": "Basic Qzpk", "Accept": "text/html"],
      ["Authorization": "Basic QTpC"],
    ] {
      #expect(fixture.client.storedResponse(to: get("http://example.com/a?user=2", other)) == nil)
    }
    let user = get("http://b@example.com/a?user=2", ["Accept": "text/html"])
    #expect(fixture.client.storedResponse(to: user) == nil)
    _ = try await fixture.client.respond(to: user, over: origin)
    let sameUser = get("http://b@example.com/a?user=3", ["Accept": "text/html"])
    #expect(fixture.client.storedResponse(to: sameUser) != nil)
    #expect(fixture.client.storedResponse(to: get("http://example.com/a?user=2", fields)) != nil)
  }

  @Test("Purges by URL, prefix, host and everything cover the keys of equivalent URLs")
  func scopes() throws {
    let key = try #require(RequestKey(urlString: "https://example.com/a?x=1"))
    let space = key.searchSpace
    func equivalentKey(_ text: String, partition: String = "") throws -> RequestKey {
      let variation = try #require(URLVariation(text: "-~"))
      return try #require(RequestKey(urlString: text, partition: partition)).equivalent(
        nonce: "1f", user: nil, maximumByteCount: URLVariation.maximumByteCount, variation.simplify)
    }
    let equivalent = try equivalentKey("https://example.com/a?y=2", partition: "p")
    let other = try equivalentKey("https://example.com/ab?y=2")
    func covers(_ scope: RemovalScope?, _ key: RequestKey) -> Bool {
      scope?.covers(key: key.bytes, storedAt: Date()) { [:] } ?? false
    }
    for text in ["https://example.com/a?x=1", "https://example.com/a?", "https://example.com/a?z"] {
      let url = try #require(URL(string: text))
      for scope in [RemovalScope.target(of: url), .urlPrefix(url)] {
        #expect(covers(scope, space) && covers(scope, equivalent) && !covers(scope, other), "\(text)")
      }
    }
    let path = try #require(URL(string: "https://example.com/a"))
    #expect(covers(.target(of: path), space) && covers(.target(of: path), equivalent))
    #expect(!covers(.target(of: path), other))
    #expect(covers(.urlPrefix(path), space) && covers(.urlPrefix(path), equivalent) && covers(.urlPrefix(path), other))
    #expect(covers(.host("example.com"), equivalent))
    #expect(space.isKeySpace && !equivalent.isKeySpace && equivalent.requestMethod == "GET")
    // A URL that is too long for the removal log.
    let long = try #require(URL(string: "https://example.com/a?" + String(repeating: "x", count: 1000)))
    let abbreviated = RemovalScope.target(of: long)?.abbreviated
    #expect(covers(abbreviated, space) && covers(abbreviated, equivalent) && !covers(abbreviated, other))
    let longPath = String(repeating: "p", count: 1000)
    let longKey = try #require(RequestKey(urlString: "https://example.com/\(longPath)?x"))
    let longScope = RemovalScope.target(of: try #require(URL(string: "https://example.com/\(longPath)?y")))?.abbreviated
    #expect(covers(longScope, longKey.searchSpace))
  }
}
