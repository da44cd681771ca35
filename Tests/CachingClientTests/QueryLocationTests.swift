import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// URIs that an origin assigns to a query, or to its result (RFC 10008, sections 2.3 to 2.5).
@Suite("Locations of queries", .timeLimit(.minutes(1)))
struct QueryLocationTests {
  /// Rows 124 and 125.
  @Test(
    "A URI in a successful response is no redirect, and a GET of it has its own response",
    arguments: ["Content-Location", "Location"], [200, 201])
  func locations(field: String, status: Int) async throws {
    let fixture = Fixture()
    let origin = ScriptedTransport { request, number in
      request.head.method == "GET"
        ? fixture.ok("result \(number)", fresh)
        : fixture.response(status, "query \(number)", [fresh, (field, "/results/1")])
    }
    var request = query("1")
    request.maximumRedirectCount = 5
    let response = try await fixture.client.respond(to: request, over: origin)
    #expect(try await response.text() == "query 1" && response.redirects.isEmpty)
    #expect(try await fixture.client.storedResponse(to: request)?.text() == "query 1")
    let result = get("http://example.com/results/1")
    #expect(fixture.client.storedResponse(to: result) == nil)
    #expect(try await fixture.client.respond(to: result, over: origin).text() == "result 2")
    // Neither replaces the other, in either order.
    #expect(try await fixture.client.storedResponse(to: request)?.text() == "query 1")
    var again = request
    again.policy = .reloadIgnoringLocalCacheData
    #expect(try await fixture.client.respond(to: again, over: origin).text() == "query 3")
    #expect(try await fixture.client.storedResponse(to: result)?.text() == "result 2")
    // RFC 9111, section 4.4: the response to an unsafe request with the field invalidates it.
    let change = ScriptedTransport { _, _ in fixture.response(200, "", [(field, "/results/1")]) }
    _ = try await fixture.client.respond(to: get("http://example.com/b", method: "PUT"), over: change)
    #expect(fixture.client.storedResponse(to: result) == nil)
    #expect(fixture.client.storedResponse(to: request) != nil)
  }

  /// Row 127.
  @Test("After 303 the result is stored for a GET, and each query asks for its own place")
  func seeOther() async throws {
    let fixture = Fixture()
    let origin = ScriptedTransport { request, number in
      request.head.method == "GET"
        ? fixture.ok("result \(request.head.fields["Content-Type"] ?? "-") \(number)", fresh)
        : fixture.response(303, "", [("Location", "/results")])
    }
    for (content, count) in [("1", 2), ("1", 3), ("2", 4)] {
      var request = query(content)
      request.maximumRedirectCount = 5
      #expect(try await fixture.client.respond(to: request, over: origin).text() == "result - 2")
      // A 303 without a lifetime is not stored, its target is.
      #expect(origin.count == count)
    }
    #expect(try await fixture.client.storedResponse(to: get("http://example.com/results"))?.text() == "result - 2")
  }
}
