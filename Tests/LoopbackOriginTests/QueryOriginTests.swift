import Foundation
import LoopbackOrigin
import Testing

@Suite("Query origin")
struct QueryOriginTests {
  private static let form = "application/x-www-form-urlencoded"

  private func exchange(
    _ origin: QueryOrigin, _ method: String, _ target: String, _ fields: [String] = [], _ content: String = ""
  ) -> String {
    let client = RawClient(origin.origin)
    let lines = (["Host: a", "Connection: close", "Content-Length: \(content.utf8.count)"] + fields)
      .map { $0 + "\r\n" }.joined()
    client.send("\(method) \(target) HTTP/1.1\r\n\(lines)\r\n\(content)")
    return client.readToEnd().text
  }

  private func value(_ name: String, in response: String) -> String? {
    response.components(separatedBy: "\r\n").first { $0.hasPrefix(name + ": ") }.map {
      String($0.dropFirst(name.count + 2))
    }
  }

  @Test(
    "A QUERY gets the titles with its text, in both media types",
    arguments: [
      (form, "q=http%20caching"), (form + "; charset=utf-8", "limit=5&q=HTTP+Caching"),
      ("Application/JSON", #"{"q": "http caching"}"#),
    ])
  func results(_ type: String, _ content: String) throws {
    let origin = try QueryOrigin(maximumAge: 7)
    defer { origin.stop() }
    let response = exchange(origin, "QUERY", "/search", ["Content-Type: \(type)"], content)
    #expect(response.hasPrefix("HTTP/1.1 200 OK\r\n"))
    #expect(response.hasSuffix("\r\n\r\nRFC 9111 HTTP Caching\n"))
    #expect(QueryOrigin.result(of: "http caching") == "RFC 9111 HTTP Caching\n")
    #expect(value("Accept-Query", in: response) == "application/x-www-form-urlencoded, application/json")
    #expect(value("Cache-Control", in: response) == "max-age=7")
    #expect(value("Content-Type", in: response) == "text/plain; charset=utf-8")
  }

  @Test("The URLs of the equivalent resource and of the result respond to GET, and an ETag to conditional requests")
  func equivalentResource() throws {
    let origin = try QueryOrigin()
    defer { origin.stop() }
    let response = exchange(origin, "QUERY", "/search", ["Content-Type: \(Self.form)"], "q=c%61ch%26&limit=3")
    #expect(value("Location", in: response) == "/search?q=cach%26&limit=3")
    let found = exchange(origin, "QUERY", "/search", ["Content-Type: \(Self.form)"], "q=cach&limit=3")
    let body = try #require(found.components(separatedBy: "\r\n\r\n").last)
    #expect(body.split(separator: "\n").count == 3)
    let tag = try #require(value("ETag", in: found))
    for name in ["Location", "Content-Location"] {
      let get = exchange(origin, "GET", try #require(value(name, in: found)))
      #expect(get.hasPrefix("HTTP/1.1 200 OK\r\n") && get.hasSuffix("\r\n\r\n" + body))
      #expect(value("ETag", in: get) == tag && value("Location", in: get) == nil)
    }
    func conditional(_ tag: String, _ content: String) -> String {
      exchange(origin, "QUERY", "/search", ["Content-Type: \(Self.form)", "If-None-Match: \(tag)"], content)
    }
    #expect(conditional("\"x\", \(tag)", "q=cach&limit=3").hasPrefix("HTTP/1.1 304 Not Modified\r\n"))
    #expect(conditional(tag, "q=digest").hasPrefix("HTTP/1.1 200 OK\r\n"))
  }

  @Test(
    "A request that is no query fails with the status for its reason",
    arguments: [
      ("QUERY", "/search", nil, "q=a", 400), ("QUERY", "/search", "application/json", "q=a", 400),
      ("QUERY", "/search", form, "q=%4", 400), ("QUERY", "/search", "text/plain", "q=a", 415),
      ("QUERY", "/search", form, "limit=a", 422), ("QUERY", "/search", "application/json", #"{"limit": "a"}"#, 422),
      ("GET", "/search?limit=a", nil, "", 422), ("POST", "/search", form, "q=a", 405),
      ("QUERY", "/results", form, "q=a", 405), ("QUERY", "/other", form, "q=a", 404),
    ] as [(String, String, String?, String, Int)])
  func failures(_ method: String, _ target: String, _ type: String?, _ content: String, _ status: Int) throws {
    let origin = try QueryOrigin()
    defer { origin.stop() }
    let response = exchange(origin, method, target, type.map { ["Content-Type: \($0)"] } ?? [], content)
    #expect(response.hasPrefix("HTTP/1.1 \(status) "))
    if status == 405 {
      #expect(value("Allow", in: response) == (target == "/search" ? "GET, HEAD, QUERY" : "GET, HEAD"))
    }
    #expect((value("Accept-Query", in: response) != nil) == (target == "/search"))
  }

  @Test("Content with a coding is refused, and empty content finds all titles")
  func contents() throws {
    let origin = try QueryOrigin()
    defer { origin.stop() }
    let fields = ["Content-Type: \(Self.form)"]
    let coded = exchange(origin, "QUERY", "/search", fields + ["Content-Encoding: gzip"], "q=a")
    #expect(coded.hasPrefix("HTTP/1.1 415 ") && value("Accept-Encoding", in: coded) == "identity")
    #expect(exchange(origin, "QUERY", "/search", fields).hasSuffix("\r\n\r\n" + QueryOrigin.result(of: "")))
    #expect(exchange(origin, "QUERY", "/search", fields, "limit=0").hasSuffix("\r\n\r\n"))
  }
}
