import CacheModel
import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// `urlcache purges` and `urlcache purge --dry-run`.
@Suite("urlcache purges and purge --dry-run")
struct PurgesCommandTests {
  /// Opens a store without threads, so that removals stay in force until `step` is called.
  private func store(_ urls: [String], in directory: String) throws -> ResponseStore {
    var options = ResponseStore.Options(capacityByteCount: 64 << 20)
    options.runsInBackground = false
    let store = try ResponseStore.open(directory: directory, options: options)
    let date = Date()
    for url in urls {
      let key = try #require(RequestKey(urlString: url))
      store.store(
        CacheableResponse(
          status: 200, fields: HeaderFields([]), body: Data(repeating: 1, count: 1000),
          freshness: FreshnessInfo(responseTime: date, initialAge: 0, lifetime: 60, date: date),
          vary: VaryKey(fields: [])),
        for: key)
    }
    while store.writePending() {}
    return store
  }

  @Test("purges shows each logged removal with its number and its responses, the oldest first")
  func logged() throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    let urls = (0..<300).map { "http://a.example/\($0)" } + ["http://b.example/1", "http://b.example/2"]
    try store(urls, in: directory).close()
    let none = try tool.run("purges", directory)
    #expect(none.status == 0)
    #expect(none.output == "No removal is in force. The last removal has number 0.\n")
    var options = LMDBEnvironment.Options(mapByteCount: 64 << 20)
    options.maximumReaders = nil
    let environment = try LMDBEnvironment.open(directory: directory + "/data-1", options: options)
    // As long as this process has the write lock, removals are only logged.
    let results = try environment.write { (_) throws(LMDBError) in
      Result {
        for scope in [
          ["--host", "b.example"], ["--prefix", "http://a.example/1"], ["--group=g\u{7}", "--origin=http://c/"],
        ] {
          #expect(try tool.run(["purge", directory] + scope).status == 0)
        }
        return [try tool.run("purges", directory), try tool.run("purges", directory, "--json")]
      }
    }.get()
    #expect(results[0].errors == "")
    #expect(
      results[0].output == """
        NUMBER  STAGE   LEFT     SIZE  SCOPE
             1  logged     2  2.0 KiB  host b.example
             2  logged   111  108 KiB  prefix http://a.example/1
             3  logged     0      0 B  group g? of http://c
        The last removal has number 3.

        """)
    let json = try results[1].json()
    #expect(Set(json.keys) == ["directory", "lastNumber", "lastAppliedNumber", "logCapacity", "removals"])
    #expect(json["lastNumber"] as? Int == 3)
    #expect(json["lastAppliedNumber"] as? Int == 0)
    let removals = try #require(json["removals"] as? [[String: Any]])
    #expect(removals.map { $0["entryCount"] as? Int } == [2, 111, 0])
    #expect(removals.map { $0["kind"] as? String } == ["host", "prefix", "group"])
    #expect(removals.last?["value"] as? String == "g\u{7} of http://c")
  }

  @Test("purges shows how many responses a removal has still to delete")
  func deleting() throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    let store = try store((0..<3000).map { "http://a.example/\($0)" }, in: directory)
    // Without threads, the removal is applied at once, and deletion waits for the steps below.
    store.remove(.everything)
    func left() throws -> Int {
      let json = try tool.run("purges", directory, "--json").json()
      #expect(json["lastAppliedNumber"] as? Int == 1)
      let removals = try #require(json["removals"] as? [[String: Any]])
      #expect(removals.allSatisfy { $0["stage"] as? String == "deleting" && $0["number"] as? Int == 1 })
      return removals.first?["entryCount"] as? Int ?? 0
    }
    let first = try left()
    #expect(first > 0)
    #expect(store.maintain())
    #expect(try left() < first)
    while store.maintain() {}
    #expect(try tool.run("purges", directory).output == "No removal is in force. The last removal has number 1.\n")
    store.close()
  }

  @Test("The scope of a removal is described as an option of purge")
  func scopes() throws {
    let url = try #require(URL(string: "https://a.example:8443/x"))
    let long = try #require(URL(string: "http://a.example/" + String(repeating: "x", count: 1000)))
    let key = try #require(RequestKey(urlString: "http://a.example/?q", method: "HEAD"))
    let scopes: [(RemovalScope?, String, String)] = [
      (.everything, "all", ""), (.since(Date(timeIntervalSince1970: 0)), "since", "1970-01-01T00:00:00Z"),
      (.host("A.example"), "host", "a.example"), (.host("::1"), "host", "[::1]"),
      (.urlPrefix(url), "prefix", "https://a.example:8443/x"), (.target(of: url), "url", "https://a.example:8443/x"),
      (.key(key.bytes), "request", "HEAD http://a.example/?q"),
      (.group("g", ofOrigin: url), "group", "g of https://a.example:8443"),
      (.tag("t", in: ["xkey"], ofOrigin: url), "tag", "t of https://a.example:8443"),
      (.tag("t", in: ["xkey"]), "tag", "t"),
      (.tag(String(repeating: "t", count: 600), in: ["xkey"])?.abbreviated, "tag", "a name of 600 bytes"),
    ]
    for (scope, kind, value) in scopes {
      let summary = try #require(scope).summary
      #expect(summary.kind == kind)
      #expect(summary.value == value)
    }
    let abbreviated = try #require(RemovalScope.urlPrefix(long)).abbreviated.summary
    #expect(abbreviated.kind == "prefix")
    #expect(abbreviated.value.hasPrefix("http://a.example/xxx") && abbreviated.value.hasSuffix("x… (1019 bytes)"))
  }

  private static let urls = (0..<12).map { "http://a.example/\($0)" } + ["http://b.example/x"]

  @Test("purge --dry-run prints what the purge then removes, and removes nothing")
  func dryRun() throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    try store(Self.urls, in: directory).close()
    let preview = try tool.run("purge", directory, "--host", "a.example", "--dry-run")
    #expect(preview.status == 0)
    #expect(preview.errors == "")
    let lines = preview.output.split(separator: "\n").map(String.init)
    try #require(lines.count == 12)
    #expect(
      lines[0] == "Would remove responses stored for a.example: 12 responses (12 KiB). 1 response would be left.")
    #expect(lines[1...10].allSatisfy { $0.hasPrefix("  http://a.example/") })
    #expect(lines[11] == "  and 2 more")
    #expect(try tool.urls(in: directory).count == 13)
    let json = try tool.run("purge", directory, "--host", "a.example", "--dry-run", "--json").json()
    #expect(Set(json.keys) == ["coveredCount", "coveredBodyByteCount", "keptCount", "urls"])
    #expect((json["urls"] as? [String])?.count == 10)
    #expect(try tool.run("purges", directory).output.hasSuffix("The last removal has number 0.\n"))
    let removed = try tool.run("purge", directory, "--host", "a.example", "--json").json()
    #expect(removed["removedCount"] as? Int == json["coveredCount"] as? Int)
    #expect(removed["removedBodyByteCount"] as? Int == json["coveredBodyByteCount"] as? Int)
    #expect(removed["keptCount"] as? Int == json["keptCount"] as? Int)
  }

  @Test("purge --dry-run changes no file, and purges needs a cache")
  func changeNothing() throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    try store(Self.urls, in: directory).close()
    let file = URL(fileURLWithPath: directory + "/data-1/data.mdb")
    let before = try Data(contentsOf: file)
    #expect(try tool.run("purge", directory, "--all", "--dry-run").status == 0)
    #expect(try tool.run("purges", directory).status == 0)
    #expect(try Data(contentsOf: file) == before)
    for arguments in [["purges"], ["purge", "--all", "--dry-run"]] {
      let missing = try tool.run([arguments[0], tool.path("missing")] + arguments.dropFirst())
      #expect(missing.status == 1)
      #expect(missing.errors.contains("there is no such directory"))
    }
    #expect(!FileManager.default.fileExists(atPath: tool.path("missing")))
  }
}
