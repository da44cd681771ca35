import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import ResponseStore
import Testing

@Suite("Selections of list, purge, log and top")
struct SelectionTests {
  private static func stored(
    _ url: String, status: Int = 200, type: String? = "text/html", body: String = "body", delay: TimeInterval = 0
  ) -> Tool.Stored {
    var fields = ["Cache-Control": "max-age=86400"]
    fields["Content-Type"] = type
    return Tool.Stored(url: url, body: body, status: status, delay: delay, fields: fields)
  }

  private static let responses = [
    stored("http://a.example/img/1.png", type: "image/png"),
    stored("http://a.example/img/old/2.png?v=3", type: "IMAGE/PNG ; q=1"),
    stored("http://a.example/page?img=/img/", type: "text/html; charset=utf-8"),
    stored("http://a.example/gone", status: 404),
    stored("http://b.example/img/3.webp", type: "image/webp", delay: 5),
    stored("http://b.example/moved", status: 301, type: nil, delay: 5),
    stored("http://b.example/gone", status: 410, type: "application/problem+json", delay: 5),
  ]

  /// The options, and the indexes of the responses that they select.
  private static let selections: [([String], Set<Int>)] = [
    (["--status", "404"], [3]), (["--status", "4xx"], [3, 6]), (["--status", "5xx"], []),
    (["--type", "image/*"], [0, 1, 4]), (["--type", "Image/PNG"], [0, 1]), (["--type", "*/*"], [0, 1, 2, 3, 4, 6]),
    (["--type", "*/*+json"], [6]), (["--type", "text/htm"], []),
    (["--path", "/img/*"], [0, 1, 4]), (["--path", "/img/*.png"], [0, 1]), (["--path", "*/img/*"], [0, 1, 4]),
    (["--path", "/img/*.png?*"], [1]), (["--path", "*?img=*"], [2]), (["--path", "/gone"], [3, 6]),
    (["--path", "/gon"], []), (["--path", "*"], Set(0...6)),
    (["--status", "2xx", "--type", "image/*", "--path", "*.png"], [0, 1]),
    (["--host", "A.example", "--path", "/img/*"], [0, 1]), (["--host", "b.example", "--status", "4xx"], [6]),
    (["--prefix", "http://b.example/", "--type", "image/*"], [4]),
    (["--since", "2026-01-02T03:04:07Z", "--status", "301"], [5]), (["--url", "http://a.example/gone"], [3]),
    (["--since", "2026-01-02T03:04:07Z"], [4, 5, 6]), (["--prefix", "http://a.example/img/old"], [1]),
  ]

  private func urls(_ indexes: some Sequence<Int>) -> Set<String> { Set(indexes.map { Self.responses[$0].url }) }

  @Test("list and a dry run with the same options are about the same responses")
  func sameResponses() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    for (number, (options, indexes)) in Self.selections.enumerated() {
      let order = number.isMultiple(of: 2) ? "time" : "size"
      let list = try tool.run(["list", directory, "--json", "--sort", order] + options).json()
      let entries = try #require(list["entries"] as? [[String: Any]])
      #expect(Set(entries.compactMap { $0["url"] as? String }) == urls(indexes), "\(options)")
      let preview = try tool.run(["purge", directory, "--dry-run", "--json"] + options).json()
      #expect(Set(try #require(preview["urls"] as? [String])) == urls(indexes), "\(options)")
      #expect(preview["coveredCount"] as? Int == indexes.count && preview["keptCount"] as? Int == 7 - indexes.count)
    }
  }

  @Test(
    "A purge removes what list with the same options prints",
    arguments: selections.filter { $0.0.count > 2 || $0.1.isEmpty })
  func purge(options: [String], indexes: Set<Int>) throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let purge = try tool.run(["purge", directory, "--json"] + options).json()
    #expect(purge["removedCount"] as? Int == indexes.count && purge["keptCount"] as? Int == 7 - indexes.count)
    #expect(purge["removedBodyByteCount"] as? Int == 4 * indexes.count)
    #expect(Set(try tool.urls(in: directory)) == urls(Set(0...6).subtracting(indexes)))
    #expect(try tool.run("verify", directory).status == 0)
  }

  @Test("A list of nothing, a dry run and a purge say what they are about")
  func words() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    #expect(
      try tool.run("list", directory, "--host", "a.example", "--status", "5xx").output
        == "There are no such responses: responses stored for a.example with status 5xx.\n")
    let options = ["--status", "4xx", "--path", "/none*"]
    #expect(
      try tool.run(["purge", directory, "--dry-run"] + options).output
        == "Would remove responses with status 4xx, path /none*: 0 responses (0 B). 7 responses would be left.\n")
    #expect(
      try tool.run("purge", directory, "--status", "4xx", "--soft").output
        == "Marked as stale responses with status 4xx: 2 responses (8 B). 5 responses unchanged.\n")
    let details = try tool.run("list", directory, "--json", "--status", "4xx").json()
    for entry in try #require(details["entries"] as? [[String: Any]]) {
      #expect(try #require(entry["timeToLive"] as? Double) <= 0)
    }
    #expect(try #require(details["entries"] as? [[String: Any]]).count == 2)
  }

  @Test("A purge by status reaches an open cache, also its memory, and thousands of responses")
  func openCache() async throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: 8 << 20, diskCapacity: 64 << 20)
    func store(_ number: Int, status: Int) throws {
      let url = try #require(URL(string: "http://a.example/\(number)"))
      let head = try #require(
        HTTPURLResponse(
          url: url, statusCode: status, httpVersion: "HTTP/1.1", headerFields: ["Cache-Control": "max-age=86400"]))
      cache.storeCachedResponse(CachedURLResponse(response: head, data: Data("x".utf8)), for: URLRequest(url: url))
    }
    // More than the removal log holds.
    let count = 3000
    for number in 0..<count { try store(number, status: number.isMultiple(of: 2) ? 200 : 404) }
    #expect(cache.flush())
    let result = try tool.run("purge", directory, "--status", "404")
    #expect(result.errors == "")
    #expect(result.output == "Removed responses with status 404: 1,500 responses (1.5 KiB). 1,500 responses left.\n")
    for number in 0..<count {
      let url = try #require(URL(string: "http://a.example/\(number)"))
      #expect((cache.cachedResponse(for: URLRequest(url: url)) != nil) == number.isMultiple(of: 2))
    }
    try store(1, status: 404)
    #expect(cache.isCached(try #require(URL(string: "http://a.example/1"))))
  }
}
