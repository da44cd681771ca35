import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Returns a query.
func query(
  _ content: String?, _ fields: HeaderFields = ["Content-Type": "application/sql"],
  to url: String = "http://example.com/a", method: String = "QUERY", partition: String = "",
  overrides: RequestOverrides = RequestOverrides()
) -> CachingClientRequest {
  var request = get(url, fields, method: method, partition: partition, overrides: overrides)
  request.body = content.map { .bytes(Data($0.utf8)) }
  return request
}

/// The content of a request as text.
func content(_ request: OutgoingRequest) -> String? {
  guard case .bytes(let bytes)? = request.body else { return nil }
  return String(decoding: bytes, as: UTF8.self)
}

/// QUERY (RFC 10008), and POST as a query.
@Suite("Queries", .timeLimit(.minutes(1)))
struct QueryTests {
  /// An origin that responds to each request with its method, content and number.
  private func origin(_ fixture: Fixture, _ fields: (String, String)...) -> ScriptedTransport {
    ScriptedTransport { request, number in
      fixture.response(
        200, "\(request.head.method) \(content(request) ?? "nothing") \(number)", fields.isEmpty ? [fresh] : fields)
    }
  }

  /// Row 122.
  @Test("A fresh response answers the same query, and its content reaches the origin", arguments: ["QUERY", "POST"])
  func hit(method: String) async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    let overrides = RequestOverrides(treatsAsQuery: true)
    let request = query("select 1", method: method, overrides: overrides)
    #expect(try await fixture.client.respond(to: request, over: origin).text() == "\(method) select 1 1")
    let again = try await fixture.client.respond(to: request, over: origin)
    #expect(try await again.text() == "\(method) select 1 1")
    #expect(again.source == .hit)
    #expect(try await fixture.client.storedResponse(to: request)?.text() == "\(method) select 1 1")
    #expect(fixture.client.storedResponse(to: get()) == nil, "A query does not answer a GET of its URL.")
    #expect(fixture.storage.entryCount == 1)
  }

  @Test("Without the override a POST is no query: it is sent each time, and invalidates")
  func post() async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    _ = try await fixture.client.respond(to: query("1"), over: origin)
    for _ in 1...2 { _ = try await fixture.client.respond(to: query("1", method: "POST"), over: origin) }
    #expect(origin.count == 3)
    #expect(fixture.client.storedResponse(to: query("1")) == nil)
  }

  /// Row 121.
  @Test(
    "Each difference of the content and of its metadata makes another key",
    arguments: [
      query("select 2"), query("select 1 "), query(""), query(nil), query("select 1", ["Content-Type": "text/plain"]),
      query("select 1", [:]), query("select 1", ["Content-Type": "application/sql", "Content-Encoding": "gzip"]),
      query("select 1", ["Content-Type": "application/sql", "Content-Language": "de"]),
      query("select 1", ["Content-Type": "application/sql", "Content-Location": "/saved/1"]),
      query("select 1", to: "http://example.com/a?b"), query("select 1", partition: "p"),
      query("select 1", method: "POST", overrides: RequestOverrides(treatsAsQuery: true)),
      query("application/sqlselect 1", ["Content-Type": ""]),
    ])
  func difference(other: CachingClientRequest) async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    _ = try await fixture.client.respond(to: query("select 1"), over: origin)
    #expect(fixture.client.storedResponse(to: other) == nil)
    #expect(try await fixture.client.respond(to: other, over: origin).source == .miss)
    #expect(try await fixture.client.respond(to: query("select 1"), over: origin).text() == "QUERY select 1 1")
    #expect(origin.count == 2)
  }

  /// Rows 114 and 121.
  @Test("The spelling of the media type's names and the spaces around its parameters do not matter")
  func mediaType() async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    _ = try await fixture.client.respond(to: query("1", ["Content-Type": "text/plain; charset=UTF-8"]), over: origin)
    for same in ["Text/PLAIN;charset=UTF-8", " text/plain ;  Charset=UTF-8 "] {
      #expect(fixture.client.storedResponse(to: query("1", ["content-type": same])) != nil, "\(same)")
    }
    #expect(fixture.client.storedResponse(to: query("1", ["Content-Type": "text/plain; charset=utf-8"])) == nil)
  }

  /// Row 131.
  @Test("Content of any size up to the bound is cached, and larger content goes past the cache")
  func bound() async throws {
    let fixture = Fixture()
    let origin = ScriptedTransport { _, _ in fixture.ok("result", fresh) }
    let limit = CachingClientRequest.maximumQueryContentByteCount
    for (byteCount, isCached) in [(0, true), (1, true), (limit, true), (limit + 1, false)] {
      let request = query(String(repeating: "x", count: byteCount))
      let first = try await fixture.client.respond(to: request, over: origin)
      _ = try await first.text()
      #expect(try await fixture.client.respond(to: request, over: origin).source == (isCached ? .hit : .miss))
      if !isCached { #expect(first.reason == .contentNotKeyed) }
    }
    // The end counts, too.
    let other = query(String(repeating: "x", count: limit - 1) + "y")
    #expect(fixture.client.storedResponse(to: other) == nil)
  }

  /// Row 131.
  @Test("Content that only the transport can read goes past the cache, and changes nothing in it")
  func stream() async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    _ = try await fixture.client.respond(to: query("1"), over: origin)
    var request = query(nil)
    request.body = .inContext
    for _ in 1...2 { #expect(try await fixture.client.respond(to: request, over: origin).source == .miss) }
    #expect(fixture.client.storedResponse(to: query("1")) != nil)
    #expect(fixture.client.storedResponse(to: query(nil)) == nil)
  }

  @Test("A query that goes past the cache is not sent if the client forbids the network", arguments: [false, true])
  func onlyIfCached(byPolicy: Bool) async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    var request = query(nil)
    request.body = .inContext
    if byPolicy {
      request.policy = .returnCacheDataDontLoad
    } else {
      request.head.fields.set("Cache-Control", "only-if-cached")
    }
    #expect(try await fixture.client.respond(to: request, over: origin).status == 504)
    #expect(origin.count == 0)
  }

  /// Row 128.
  @Test("A stale response is validated with the content, and a 304 makes it fresh")
  func validation() async throws {
    let fixture = Fixture()
    let origin = ScriptedTransport { request, number in
      number == 1
        ? fixture.ok("result", fresh, ("ETag", "\"1\""))
        : fixture.response(304, "", [fresh, ("ETag", "\"1\"")])
    }
    _ = try await fixture.client.respond(to: query("1"), over: origin)
    fixture.clock.advance(by: 100)
    let response = try await fixture.client.respond(to: query("1"), over: origin)
    #expect(try await response.text() == "result" && response.source == .revalidated)
    #expect(origin.requests[1].head.method == "QUERY" && content(origin.requests[1]) == "1")
    #expect(origin.requests[1].head.fields["If-None-Match"] == "\"1\"")
    #expect(try await fixture.client.storedResponse(to: query("1"))?.text() == "result")
  }

  /// Rows 128 and 129.
  @Test("A condition of the caller is decided from the stored response, and so is a range")
  func conditions() async throws {
    let fixture = Fixture()
    let origin = origin(fixture, fresh, ("ETag", "\"1\""))
    _ = try await fixture.client.respond(to: query("12345"), over: origin)
    var conditional = query("12345")
    conditional.head.fields.set("If-None-Match", "\"1\"")
    #expect(fixture.client.storedResponse(to: conditional)?.status == 304)
    var range = query("12345")
    range.head.fields.set("Range", "bytes=0-4")
    #expect(try await fixture.client.storedResponse(to: range)?.text() == "QUERY")
  }

  @Test("A query that the origin cannot answer gets the stale response if that is permitted")
  func staleOnError() async throws {
    let fixture = Fixture()
    let origin = ScriptedTransport { _, number in
      guard number == 1 else { throw Unreachable() }
      return fixture.ok("result", ("Cache-Control", "max-age=60, stale-if-error=1000"))
    }
    _ = try await fixture.client.respond(to: query("1"), over: origin)
    fixture.clock.advance(by: 100)
    #expect(try await fixture.client.respond(to: query("1"), over: origin).source == .staleOnError)
    await #expect(throws: Unreachable.self) { try await fixture.client.respond(to: query("2"), over: origin) }
  }

  @Test("A stale window revalidates in the background with the content")
  func staleWhileRevalidate() async throws {
    let fixture = Fixture()
    let origin = origin(fixture, ("Cache-Control", "max-age=60, stale-while-revalidate=1000"))
    _ = try await fixture.client.respond(to: query("1"), over: origin)
    fixture.clock.advance(by: 100)
    #expect(try await fixture.client.respond(to: query("1"), over: origin).text() == "QUERY 1 1")
    await fixture.client.finishBackgroundWork()
    #expect(origin.requests.map { content($0) } == ["1", "1"])
    #expect(try await fixture.client.storedResponse(to: query("1"))?.text() == "QUERY 1 2")
  }

  /// Rows 28 and 122.
  @Test("Equal queries share a fetch, and others do not")
  func coalescing() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let origin = ScriptedTransport { request, number in
      try await gate.pass()
      return fixture.ok("\(content(request) ?? "") \(number)", fresh)
    }
    let client = fixture.client
    // The space of the queries exists.
    _ = client.storedResponse(to: query("0"))
    async let first = client.respond(to: query("1"), over: origin).text()
    await until { origin.count == 1 }
    async let second = client.respond(to: query("1"), over: origin)
    await until { client.statistics.waiting == 1 }
    async let other = client.respond(to: query("2"), over: origin).text()
    await until { origin.count == 2 }
    gate.open()
    #expect(try await first == "1 1")
    #expect(try await second.source == .coalesced)
    #expect(try await other == "2 2")
  }

  /// Rows 29, 34 and 122.
  @Test("A selecting field and credentials separate responses to the same query")
  func variants() async throws {
    let fixture = Fixture()
    let origin = origin(fixture, fresh, ("Vary", "Accept"))
    let csv = query("1", ["Accept": "text/csv"])
    _ = try await fixture.client.respond(to: csv, over: origin)
    #expect(fixture.client.storedResponse(to: csv) != nil)
    #expect(fixture.client.storedResponse(to: query("1", ["Accept": "text/html"])) == nil)
    #expect(
      fixture.client.storedResponse(to: query("1", ["Accept": "text/csv", "Authorization": "Basic QTpC"])) == nil)
  }

  /// Rows 119 and 130.
  @Test(
    "An unsafe request removes all queries of its URL in its partition, and a query removes nothing",
    arguments: ["POST", "PUT", "DELETE", "X-UNKNOWN"])
  func invalidation(method: String) async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    let others = [
      query("1", to: "http://example.com/b"), query("1", to: "http://example.com/a?b"), query("1", partition: "p"),
    ]
    let overridden = query("1", method: "POST", overrides: RequestOverrides(treatsAsQuery: true))
    let all = others + [query("1"), query("2"), overridden, get()]
    for request in all { _ = try await fixture.client.respond(to: request, over: origin) }
    for request in all { #expect(fixture.client.storedResponse(to: request) != nil) }
    _ = try await fixture.client.respond(to: query("change", method: method), over: origin)
    for request in others { #expect(fixture.client.storedResponse(to: request) != nil) }
    for request in [query("1"), query("2"), overridden, get()] {
      #expect(fixture.client.storedResponse(to: request) == nil)
      _ = try await fixture.client.respond(to: request, over: origin)
      #expect(fixture.client.storedResponse(to: request) != nil)
    }
  }

  /// Row 130.
  @Test("A query in flight during an unsafe request to its URL is not stored")
  func invalidatedInFlight() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let slow = ScriptedTransport { _, number in
      if number == 1 { try await gate.pass() }
      return fixture.ok("\(number)", fresh)
    }
    let client = fixture.client
    async let early = client.respond(to: query("1"), over: slow).text()
    await until { slow.count == 1 }
    _ = try await client.respond(to: get(method: "PUT"), over: origin(fixture))
    #expect(try await client.respond(to: query("1"), over: slow).text() == "2")
    gate.open()
    #expect(try await early == "1")
    #expect(try await client.storedResponse(to: query("1"))?.text() == "2")
  }

  /// Rows 126 and 127.
  @Test("301, 302, 307 and 308 keep the query and its content; 303 leads to a GET with a key of its own")
  func redirects() async throws {
    for status in [301, 302, 303, 307, 308] {
      let fixture = Fixture()
      let origin = ScriptedTransport { request, number in
        request.head.url.path == "/a"
          ? fixture.response(status, "", [fresh, ("Location", "/b")])
          : fixture.ok("\(request.head.method) \(content(request) ?? "nothing")", fresh)
      }
      var request = query("1")
      request.maximumRedirectCount = 5
      for _ in 1...2 {
        let response = try await fixture.client.respond(to: request, over: origin)
        #expect(try await response.text() == (status == 303 ? "GET nothing" : "QUERY 1"))
      }
      #expect(origin.count == 2, "\(status)")
      let target = status == 303 ? get("http://example.com/b") : query("1", to: "http://example.com/b")
      #expect(fixture.client.storedResponse(to: target) != nil)
    }
  }

  /// Rows 114 and 123.
  @Test("A normal form makes contents equal in the key, and is not sent")
  func normalForm() async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    let overrides = RequestOverrides(queryNormalForm: .json)
    let type: HeaderFields = ["Content-Type": "application/json"]
    let first = query(#"{"b": 1, "a": 2}"#, type, overrides: overrides)
    _ = try await fixture.client.respond(to: first, over: origin)
    #expect(origin.requests.map { content($0) } == [#"{"b": 1, "a": 2}"#])
    let same = query(#"{"a":2,"b":1}"#, type, overrides: overrides)
    #expect(fixture.client.storedResponse(to: same) != nil)
    // RFC 10008, section 2.7: the client can ask for no transformation.
    var unchanged = same
    unchanged.head.fields.set("Cache-Control", "no-transform")
    #expect(fixture.client.storedResponse(to: unchanged) == nil)
    #expect(fixture.client.storedResponse(to: query(#"{"a":2,"b":1}"#, type)) == nil)
  }

  @Test("Normal forms with different names separate queries, also if only the case differs")
  func formNames() async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    func request(_ name: String) -> CachingClientRequest {
      query("1", overrides: RequestOverrides(queryNormalForm: QueryNormalForm(name: name) { _, _ in Data("x".utf8) }))
    }
    _ = try await fixture.client.respond(to: request("a"), over: origin)
    #expect(fixture.client.storedResponse(to: request("a")) != nil)
    for other in [request("A"), request("b"), query("x")] { #expect(fixture.client.storedResponse(to: other) == nil) }
  }

  @Test("A query with a user in its URL keeps the queries of others")
  func usersOfURLs() async throws {
    let fixture = Fixture()
    let origin = origin(fixture)
    let requests = ["http://example.com/a", "http://b@example.com/a", "http://c@example.com/a"].map {
      query("1", to: $0)
    }
    for request in requests { _ = try await fixture.client.respond(to: request, over: origin) }
    for (number, request) in requests.enumerated() {
      #expect(try await fixture.client.storedResponse(to: request)?.text() == "QUERY 1 \(number + 1)")
    }
  }

  @Test("A miss evaluates the content of a query once, also after a lookup by the caller")
  func evaluatedOnce() async throws {
    let fixture = Fixture()
    let count = Atomic(0)
    let form = QueryNormalForm(name: "counting") { content, _ in
      count.add(1, ordering: .relaxed)
      return content
    }
    let request = query("1", overrides: RequestOverrides(queryNormalForm: form))
    var lookup: LookupResult<MemoryStorage.Entry>?
    #expect(fixture.client.storedResponse(to: request, otherwise: &lookup) == nil)
    let response = try await fixture.client.respond(to: request, over: origin(fixture), after: lookup)
    #expect(try await response.text() == "QUERY 1 1")
    #expect(count.load(ordering: .relaxed) == 1)
    #expect(fixture.client.storedResponse(to: request) != nil)
  }
}
