import Foundation
import HTTPCaching
import Testing

@Suite("Redirection")
struct RedirectionTests {
  private func redirection(
    _ method: String = "GET", from: String = "https://a.example/1", _ fields: [(String, String)] = [],
    status: Int = 302, to location: String? = "/2"
  ) throws -> Redirection? {
    var request = RequestHead(method: method, url: try #require(URL(string: from)))
    for (name, value) in fields { request.fields.append(name: name, value: value) }
    return Redirection(of: request, status: status) { location }
  }

  @Test(
    "A redirect keeps credentials and Host within an origin, however its URL is written, and removes them for others",
    arguments: [
      ("https://a.example/1", "https://a.example/2", true), ("https://a.example/1", "https://A.example:443/2", true),
      ("http://a.example:80/1", "http://a.example/2", true), ("http://a.example:81/1", "/2", true),
      ("https://a.example/1", "http://a.example/2", false), ("https://a.example/1", "https://a.example:444/2", false),
      ("https://a.example/1", "https://b.example/2", false), ("https://a.example/1", "//b.example/2", false),
    ])
  func credentials(from: String, location: String, areKept: Bool) throws {
    let fields = [
      ("Authorization", "secret"), ("proxy-authorization", "secret"), ("Cookie", "id=1"), ("cookie", "id=2"),
      ("Host", "a.example"),
    ]
    let next = try #require(try redirection(from: from, fields + [("Accept-Language", "de")], to: location))
    for (name, _) in fields { #expect(next.head.fields.contains(name) == areKept, "\(name)") }
    #expect(next.head.fields["Accept-Language"] == "de")
  }

  @Test(
    "The status and the method decide whether the next request is a GET without content",
    arguments: [
      (301, "POST", "GET"), (302, "POST", "GET"), (303, "POST", "GET"), (303, "PUT", "GET"), (303, "DELETE", "GET"),
      (303, "HEAD", "HEAD"), (301, "HEAD", "HEAD"), (301, "PUT", "PUT"), (302, "DELETE", "DELETE"),
      (307, "POST", "POST"), (308, "POST", "POST"), (308, "PUT", "PUT"), (302, "post", "post"),
      (301, "QUERY", "QUERY"), (302, "QUERY", "QUERY"), (307, "QUERY", "QUERY"), (308, "QUERY", "QUERY"),
      (303, "QUERY", "GET"),
    ])
  func methods(status: Int, method: String, next: String) throws {
    let fields = [
      ("Content-Type", "text/plain"), ("content-length", "3"), ("Content-Encoding", "gzip"),
      ("content-language", "de"), ("Content-Location", "/3"), ("Content-Digest", "sha-256=:AAAA:"),
      ("Repr-Digest", "sha-256=:AAAA:"), ("digest", "sha-256=AAAA"),
      ("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT"), ("Transfer-Encoding", "chunked"), ("Trailer", "Digest"),
      ("Expect", "100-continue"), ("Accept", "*/*"),
    ]
    let redirection = try #require(try redirection(method, fields, status: status))
    let changes = method != next
    #expect(redirection.head.method == next)
    #expect(redirection.keepsContent == !changes)
    for (name, _) in fields.dropLast() { #expect(redirection.head.fields.contains(name) == !changes, "\(name)") }
    #expect(redirection.head.fields.map(\.name).last == "Accept")
  }

  @Test(
    "The target is relative to the request, and inherits its fragment if it has none",
    arguments: [
      ("https://a.example/x/1?q#f", "2", "https://a.example/x/2#f"),
      ("https://a.example/x/1?q#f", "?r", "https://a.example/x/1?r#f"),
      ("https://a.example/x/1#f", "/2#g", "https://a.example/2#g"),
      ("https://a.example/x/1#f", "//b.example", "https://b.example#f"),
      ("https://a.example/x/1", "HTTP://b.example/", "HTTP://b.example/"),
      ("https://a.example/1#f%20g", "/2", "https://a.example/2#f%20g"),
    ])
  func targets(from: String, location: String, target: String) throws {
    #expect(try redirection(from: from, to: location)?.head.url.absoluteString == target)
  }

  @Test(
    "A response is not followed without the status of a redirect and a Location with the scheme http or https",
    arguments: [
      (200, "/2"), (300, "/2"), (304, "/2"), (305, "/2"), (306, "/2"), (399, "/2"), (301, nil), (302, "file:///etc"),
      (302, "ftp://a.example/"), (302, "data:,x"), (303, "mailto:a@a.example"),
    ])
  func finalResponses(status: Int, location: String?) throws {
    #expect(try redirection(status: status, to: location) == nil)
  }
}
