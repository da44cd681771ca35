import Foundation
import HTTPCaching
import Testing

@Suite("Invalidation and cache groups")
struct InvalidationTests {
  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    var method = "POST"
    var status = 200
    var lines: Lines = []
    /// The URLs besides the target; nil if nothing becomes invalid.
    let urls: [String]?
    var groups: [String] = []
  }

  static let groupLines: Lines = [("Cache-Group-Invalidation", "\"a\", \"b\"")]

  static let cases: [Case] = [
    Case(id: "invalidate-post", section: "9111 4.4", rows: [82], urls: []),
    Case(id: "invalidate-put-201", section: "9111 4.4", rows: [82], method: "PUT", status: 201, urls: []),
    Case(id: "invalidate-delete-303", section: "9111 4.4", rows: [82, 84], method: "DELETE", status: 303, urls: []),
    Case(id: "invalidate-unknown", section: "9111 4.4", rows: [82], method: "M-SEARCH", urls: []),
    Case(id: "invalidate-404", section: "9111 4.4", rows: [84], status: 404, lines: groupLines, urls: nil),
    Case(id: "invalidate-500", section: "9111 4.4", rows: [84], status: 500, urls: nil),
    Case(id: "invalidate-get", section: "9111 4.4", rows: [82, 109], method: "GET", lines: groupLines, urls: nil),
    Case(id: "invalidate-head", section: "9111 4.4", rows: [82], method: "HEAD", urls: nil),
    Case(id: "invalidate-options", section: "9111 4.4", rows: [82], method: "OPTIONS", urls: nil),
    Case(
      id: "invalidate-location", section: "9111 4.4", rows: [83],
      lines: [("Location", "/c"), ("Content-Location", "d?e")],
      urls: ["https://example.com/c", "https://example.com/d?e"]),
    Case(
      id: "invalidate-location-default-port", section: "9111 4.4", rows: [83],
      lines: [("Location", "HTTPS://EXAMPLE.com:443/c")], urls: ["HTTPS://EXAMPLE.com:443/c"]),
    Case(
      id: "invalidate-location-spelling", section: "9110 4.2.3", rows: [83],
      lines: [("Location", "https://ex%61mple.com:0443/c")], urls: ["https://ex%61mple.com:0443/c"]),
    Case(
      id: "invalidate-other-host", section: "9111 4.4", rows: [83], lines: [("Location", "https://other.example/c")],
      urls: []),
    Case(
      id: "invalidate-other-port", section: "9111 4.4", rows: [83], lines: [("Location", "https://example.com:444/c")],
      urls: []),
    Case(
      id: "invalidate-other-scheme", section: "9111 4.4", rows: [83],
      lines: [("Content-Location", "http://example.com/c")], urls: []),
    Case(
      id: "invalidate-protocol-relative", section: "9111 4.4", rows: [83], lines: [("Location", "//other.example/c")],
      urls: []),
    Case(id: "invalidate-location-itself", section: "9111 4.4", rows: [83], lines: [("Location", "/a?b=1")], urls: []),
    Case(
      id: "invalidate-two-locations", section: "9111 4.4", rows: [83], lines: [("Location", "/c"), ("Location", "/d")],
      urls: []),
    Case(
      id: "group-invalidation", section: "9875 3", rows: [108, 109], lines: groupLines, urls: [], groups: ["a", "b"]),
    Case(
      id: "group-invalidation-malformed", section: "9875 3", rows: [109],
      lines: [("Cache-Group-Invalidation", "a, b;")], urls: []),
  ]

  @Test("A successful unsafe request invalidates its target, same-origin locations, and groups", arguments: cases)
  func invalidates(_ test: Case) {
    let result = Invalidation.targets(
      request: RequestHead(method: test.method, url: target),
      response: ResponseHead(status: test.status, fields: fields(test.lines)))
    #expect(result.urls.map(\.absoluteString) == (test.urls.map { [target.absoluteString] + $0 } ?? []))
    #expect(result.groups == test.groups)
    #expect(result.isEmpty == (test.urls == nil))
    #expect(result.origin == "https://example.com:443")
  }

  struct GroupCase: RequirementCase {
    let id: String
    var section: String { "9875 2" }
    var rows: [Int] { [107] }
    let lines: [String]
    let groups: [String]
  }

  static let groups: [GroupCase] = [
    GroupCase(id: "groups", lines: ["\"a\", \"b c\""], groups: ["a", "b c"]),
    GroupCase(id: "groups-lines", lines: ["\"a\"", "\"b\";x=1"], groups: ["a", "b"]),
    GroupCase(id: "groups-case", lines: ["\"a\", \"A\", \"a\""], groups: ["a", "A"]),
    GroupCase(id: "groups-escape", lines: [#""a\"b""#], groups: ["a\"b"]),
    GroupCase(id: "groups-token", lines: ["\"a\", b"], groups: []),
    GroupCase(id: "groups-inner-list", lines: ["(\"a\")"], groups: []),
    GroupCase(id: "groups-trailing-comma", lines: ["\"a\","], groups: []),
    GroupCase(id: "groups-open", lines: ["\"a"], groups: []),
    GroupCase(id: "groups-none", lines: [], groups: []),
    GroupCase(
      id: "groups-32-of-32",
      lines: [(0..<32).map { "\"\(String(repeating: "x", count: 30))\($0 + 10)\"" }.joined(separator: ",")],
      groups: (0..<32).map { "\(String(repeating: "x", count: 30))\($0 + 10)" }),
  ]

  @Test("Cache-Groups is parsed as a structured list of strings", arguments: groups)
  func parsesGroups(_ test: GroupCase) throws {
    let lines: Lines = test.lines.map { ("Cache-Groups", $0) }
    #expect(CacheGroups.groups(of: fields(lines)) == test.groups)
    let stored = try #require(Exchange(response: dated([("Cache-Control", "max-age=9")] + lines)).stored)
    #expect(stored.freshness.flags.contains(.hasGroups) == !lines.isEmpty)
  }
}
