import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Testing

@Suite("Directory commands")
struct DirectoryCommandTests {
  private static let responses = [
    Tool.Stored(url: "http://b.example/x?user=1", body: "12345", delay: 10),
    Tool.Stored(
      url: "http://a.example/2", body: String(repeating: "x", count: 20_000),
      fields: ["Cache-Control": "max-age=60", "Vary": "Accept-Language, Accept"]),
    Tool.Stored(url: "https://a.example/1", status: 404, delay: 20),
  ]

  @Test("stats prints exact lines, with and without --details")
  func stats() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    func lines(_ arguments: String...) throws -> [String] {
      let result = try tool.run(["stats", directory] + arguments)
      #expect(result.status == 0)
      #expect(result.errors == "")
      return result.output.split(separator: "\n").map(String.init)
    }
    let quick = try lines()
    try #require(quick.count == 5)
    #expect(quick[0] == "Directory  \(directory)")
    #expect(quick[1] == "Responses  3")
    #expect(quick[2].hasPrefix("Data       2"))
    #expect(quick[3].contains(" of 20 MiB ("))
    #expect(quick[4] == "Stored     2026-01-02 03:04:05 to 2026-01-02 03:04:25")
    let details = try lines("--details")
    try #require(details.count == 7)
    #expect(details[1] == "Responses  3 (0 fresh) of 2 hosts")
    #expect(details[2] == "Bodies     20 KiB")
    #expect(details[5] == "Statuses   200 (2), 404 (1)")
    #expect([details[0], details[3], details[4], details[6]] == [quick[0], quick[2], quick[3], quick[4]])
  }

  @Test("stats --json has the documented keys and correct numbers")
  func statsJSON() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let json = try tool.run("stats", directory, "--details", "--json").json()
    #expect(
      Set(json.keys) == [
        "directory", "entryCount", "freshCount", "staleCount", "hostCount", "statuses", "bodyByteCount",
        "payloadByteCount", "diskByteCount", "capacityByteCount", "excessByteCount", "pendingPurgeCount",
        "examinedForPurgesCount", "unfinishedBodyCount", "arrivingByteCount", "oldestStoredAt", "newestStoredAt",
        "activity", "processes",
      ])
    #expect(json["entryCount"] as? Int == 3)
    #expect(json["bodyByteCount"] as? Int == 20_009)
    #expect(json["capacityByteCount"] as? Int == 20 << 20)
    #expect(json["oldestStoredAt"] as? String == "2026-01-02T03:04:05.000Z")
    #expect(json["statuses"] as? [String: Int] == ["200": 2, "404": 1])
    #expect(json["excessByteCount"] as? Int == 0)
    #expect(json["pendingPurgeCount"] as? Int == 0)
    let quick = try tool.run("stats", directory, "--json").json()
    #expect(Set(quick.keys) == Set(json.keys))
    let unknown = ["freshCount", "staleCount", "hostCount", "statuses", "bodyByteCount"]
    for (key, value) in quick { #expect((value is NSNull) == unknown.contains(key), "\(key)") }
    #expect(quick["entryCount"] as? Int == 3)
  }

  @Test("stats reports the remaining work of a lowered capacity and of a purge")
  func statsOfRemainingWork() throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    var options = ResponseStore.Options(capacityByteCount: 16 << 20)
    options.runsInBackground = false
    let date = Date()
    func store(_ count: Int) throws -> ResponseStore {
      let store = try ResponseStore.open(directory: directory, options: options)
      for number in 0..<count {
        let key = try #require(RequestKey(urlString: "http://a.example/\(number)"))
        let freshness = FreshnessInfo(
          responseTime: date, initialAge: 0, lifetime: 60, date: date, staleWhileRevalidate: -1, staleIfError: -1,
          flags: [])
        store.store(
          CacheableResponse(
            status: 200, fields: HeaderFields([]), body: Data(repeating: 1, count: 30_000), freshness: freshness,
            vary: VaryKey(fields: [])),
          for: key)
      }
      while store.writePending() {}
      return store
    }
    try store(400).close()
    options.capacityByteCount = 2 << 20
    let store = try store(0)
    store.remove(.everything)
    let output = try tool.run("stats", directory).output
    #expect(output.contains(/\nExcess     \d+ MiB above the capacity, still to be evicted or released\n/))
    #expect(output.contains("\nPurges     1 whose responses are still to be deleted or marked; 0 examined so far\n"))
    let json = try tool.run("stats", directory, "--json").json()
    #expect(try #require(json["excessByteCount"] as? Int) > 8 << 20)
    #expect(json["pendingPurgeCount"] as? Int == 1)
    while store.sweptEntryCount == 0, store.maintain() {}
    let meanwhile = try tool.run("stats", directory, "--json").json()
    #expect(try #require(meanwhile["examinedForPurgesCount"] as? Int) > 0)
    while store.maintain() {}
    let after = try tool.run("stats", directory, "--json").json()
    #expect(after["excessByteCount"] as? Int == 0)
    #expect(after["pendingPurgeCount"] as? Int == 0)
    #expect(after["examinedForPurgesCount"] as? Int == 0)
    store.close()
  }

  @Test("stats of an empty cache omits the storing times")
  func statsOfEmptyCache() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    #expect(try tool.run("purge", directory, "--all").status == 0)
    #expect(try tool.run("stats", directory).output.split(separator: "\n").count == 4)
    let json = try tool.run("stats", directory, "--json").json()
    #expect(json["entryCount"] as? Int == 0)
    #expect(json["oldestStoredAt"] is NSNull)
  }

  @Test("list prints a header and columns in the requested order")
  func list() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let result = try tool.run("list", directory)
    #expect(result.status == 0)
    let lines = result.output.split(separator: "\n").map { $0.split(separator: " ").map(String.init) }
    try #require(lines.count == 4)
    #expect(lines.map(\.last) == ["URL", "http://a.example/2", "http://b.example/x?user=1", "https://a.example/1"])
    #expect(lines[0] == ["STORED", "UPDATED", "SIZE", "AGE", "LEFT", "STATUS", "VARY", "URL"])
    #expect(Array(lines[1].prefix(5)) == ["2026-01-02", "03:04:05", "-", "20", "KiB"])
    #expect(Array(lines[1].suffix(3)) == ["200", "accept,accept-language", "http://a.example/2"])
    #expect(Array(lines[3].suffix(3)) == ["404", "-", "https://a.example/1"])
    #expect(lines[2].contains("stale"))
    let orders = ["url": [1, 2, 0], "time": [1, 0, 2], "size": [1, 0, 2]]
    for (order, numbers) in orders {
      let urls = numbers.map { Self.responses[$0].url }
      #expect(try tool.urls(in: directory, sortedBy: order) == urls)
      for limit in 1...4 {
        #expect(try tool.urls(in: directory, sortedBy: order, "--limit", "\(limit)") == Array(urls.prefix(limit)))
      }
    }
    let one = try tool.run("list", directory, "--host", "B.example")
    #expect(one.output.split(separator: "\n").count == 2)
    #expect(
      try tool.run("list", directory, "--host", "c.example").output
        == "There are no such responses: responses stored for c.example.\n")
  }

  @Test("list aligns the columns of a long table and exits silently when its output is closed")
  func longList() throws {
    let tool = try Tool()
    // The output exceeds the buffer of a pipe.
    let directory = try tool.makeCache(count: 1500)
    let result = try tool.run("list", directory)
    let lines = result.output.split(separator: "\n")
    #expect(lines.count == 1501)
    let column = try #require(lines[0].range(of: "URL")).lowerBound.utf16Offset(in: lines[0])
    for (number, line) in lines.dropFirst().enumerated() {
      #expect(line.dropFirst(column) == "http://a.example/\(number)")
    }
    let entries = try tool.run("list", directory, "--json").json()["entries"] as? [[String: Any]]
    #expect(entries?.count == 1500)
    for arguments in [[], ["--json"], ["--sort", "url"]] {
      let pipe = Pipe()
      let errors = Pipe()
      let process = try tool.start(["list", directory] + arguments, standardOutput: pipe, standardError: errors)
      let start = try pipe.fileHandleForReading.read(upToCount: 100)
      #expect(start?.isEmpty == false)
      try pipe.fileHandleForReading.close()
      process.waitUntilExit()
      #expect(process.terminationReason == .exit)
      #expect(process.terminationStatus == 0)
      #expect(try errors.fileHandleForReading.readToEnd() == nil)
    }
  }

  @Test("The entries of list --json have the documented keys")
  func listJSON() throws {
    let tool = try Tool()
    let json = try tool.run("list", tool.makeCache(Self.responses), "--json", "--sort=size").json()
    let entry = try #require((json["entries"] as? [[String: Any]])?.first)
    #expect(
      Set(entry.keys) == [
        "url", "method", "queryContent", "status", "mediaType", "bodyByteCount", "storedAt", "updatedAt", "age",
        "timeToLive",
        "vary",
        "partition",
      ])
    #expect(entry["vary"] as? [String] == ["accept", "accept-language"])
    #expect(entry["method"] as? String == "GET")
    #expect(try #require(entry["age"] as? Double) > 0)
    #expect(try #require(entry["timeToLive"] as? Double) < 0)
  }

  @Test("verify reports OK for an intact directory")
  func verify() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let result = try tool.run("verify", directory)
    #expect(result.status == 0)
    #expect(result.output == "OK: 3 responses, 20 KiB of bodies.\n")
    let json = try tool.run("verify", directory, "--json").json()
    #expect(json["violations"] as? [String] == [])
    #expect(json["entryCount"] as? Int == 3)
    #expect(json["hasComparedSums"] as? Bool == true)
  }

  @Test("verify prints a line per violation, exits with code 1 and does not change the file")
  func verifyCorrupt() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let file = URL(fileURLWithPath: directory + "/data-1/data.mdb")
    var data = try Data(contentsOf: file)
    let body = try #require(data.range(of: Data(repeating: UInt8(ascii: "x"), count: 64)))
    data[body.lowerBound] = UInt8(ascii: "y")
    try data.write(to: file)
    let result = try tool.run("verify", directory)
    #expect(result.status == 1)
    #expect(result.output.contains(/^The body of row \d+ does not match its checksum\n$/))
    #expect(try tool.run("verify", directory, "--json").status == 1)
    #expect(try Data(contentsOf: file) == data)
  }

  @Test("Read-only commands do not change the data file", arguments: ["stats", "list", "verify"])
  func readOnlyCommands(command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let file = URL(fileURLWithPath: directory + "/data-1/data.mdb")
    let before = try Data(contentsOf: file)
    let names = try FileManager.default.contentsOfDirectory(atPath: directory).sorted()
    #expect(try tool.run(command, directory).status == 0)
    #expect(try tool.run(command, directory, "--json").status == 0)
    #expect(try Data(contentsOf: file) == before)
    #expect(try FileManager.default.contentsOfDirectory(atPath: directory).sorted() == names)
  }

  @Test(
    "Directory commands fail without a store and create nothing",
    arguments: ["stats", "list", "verify", "purge", "purges"])
  func missingStore(command: String) throws {
    let tool = try Tool()
    let rest = command == "purge" ? ["--all"] : []
    let missing = try tool.run([command, tool.path("missing")] + rest)
    #expect(missing.status == 1)
    #expect(missing.output == "")
    #expect(
      missing.errors == "urlcache \(command): Cannot use the response store at \(tool.path("missing")): "
        + "there is no such directory. See whether the path is right; "
        + "a cache makes its store when it is first opened.\n"
    )
    #expect(!FileManager.default.fileExists(atPath: tool.path("missing")))

    let empty = try tool.run([command, tool.root.path] + rest)
    #expect(empty.status == 1)
    #expect(empty.errors.contains(": there is no store in it. "))

    let foreign = tool.path("foreign")
    try FileManager.default.createDirectory(atPath: foreign, withIntermediateDirectories: true)
    let data = Data("not a store, and long enough to be looked at".utf8)
    try data.write(to: URL(fileURLWithPath: foreign + "/data.mdb"))
    let other = try tool.run([command, foreign] + rest)
    #expect(other.status == 1)
    #expect(other.errors.contains("not a store of this library"))
    #expect(try FileManager.default.contentsOfDirectory(atPath: foreign) == ["data.mdb"])
    #expect(try Data(contentsOf: URL(fileURLWithPath: foreign + "/data.mdb")) == data)

    let file = try tool.run([command, foreign + "/data.mdb"] + rest)
    #expect(file.status == 1)
    #expect(file.errors.contains("a file has the name of the directory. Specify the path of the cache's directory."))
    #expect(try Data(contentsOf: URL(fileURLWithPath: foreign + "/data.mdb")) == data)
  }

  @Test(
    "purge removes exactly the responses that it covers",
    arguments: [
      (["--all"], "everything: 5 responses (20 B). 0 responses left.", []),
      (
        ["--since", "2026-01-02T03:04:15Z"],
        "responses stored or updated after 2026-01-02 03:04:15: 2 responses (8 B). 3 responses left.",
        [0, 1, 2]
      ),
      (
        ["--host", "A.example"], "responses stored for a.example: 3 responses (12 B). 2 responses left.", [3, 4]
      ),
      (
        ["--host", "%61.example"], "responses stored for a.example: 3 responses (12 B). 2 responses left.", [3, 4]
      ),
      (
        ["--prefix", "http://%61.example:0080/p"],
        "URLs that begin with http://%61.example:0080/p: 2 responses (8 B). 3 responses left.", [2, 3, 4]
      ),
      (
        ["--prefix", "http://a.example/p"],
        "URLs that begin with http://a.example/p: 2 responses (8 B). 3 responses left.", [2, 3, 4]
      ),
      (
        ["--url", "http://a.example/p?q"],
        "responses of http://a.example/p?q: 1 response (4 B). 4 responses left.", [0, 2, 3, 4]
      ),
      (
        ["--url", "http://A.example:80/p/1#top"],
        "responses of http://A.example:80/p/1#top: 1 response (4 B). 4 responses left.", [1, 2, 3, 4]
      ),
      (
        ["--url", "http://%61.EXAMPLE:0080/p/1"],
        "responses of http://%61.EXAMPLE:0080/p/1: 1 response (4 B). 4 responses left.", [1, 2, 3, 4]
      ),
      (
        ["--url", "http://a.example/p"],
        "responses of http://a.example/p: 0 responses (0 B). 5 responses left.", [0, 1, 2, 3, 4]
      ),
      (
        ["--group", "g", "--origin", "http://b.example/"],
        "group 'g' of http://b.example/: 1 response (4 B). 4 responses left.", [0, 1, 2, 3]
      ),
      (["--tag", "t"], "responses with the tag 't': 2 responses (8 B). 3 responses left.", [1, 2, 3]),
      (["--tag", "g"], "responses with the tag 'g': 1 response (4 B). 4 responses left.", [0, 1, 2, 3]),
      (
        ["--tag", "t", "--origin", "http://b.example"],
        "responses with the tag 't' of http://b.example: 1 response (4 B). 4 responses left.", [0, 1, 2, 3]
      ),
      (
        ["--tag", "g", "--tag-field", "XKEY", "--tag-field", "Other"],
        "responses with the tag 'g': 0 responses (0 B). 5 responses left.", [0, 1, 2, 3, 4]
      ),
      (
        ["--tag", "o", "--tag-field", "Other"], "responses with the tag 'o': 1 response (4 B). 4 responses left.",
        [1, 2, 3, 4]
      ),
      (
        ["--host", "c.example"],
        "responses stored for c.example: 0 responses (0 B). 5 responses left.", [0, 1, 2, 3, 4]
      ),
    ])
  func purge(arguments: [String], sentence: String, kept: [Int]) throws {
    let urls = [
      "http://a.example/p/1", "http://a.example/p?q", "https://a.example/p", "http://b.example/1", "http://b.example/2",
    ]
    let tool = try Tool()
    let directory = try tool.makeCache(
      urls.enumerated().map { number, url in
        var fields = ["Cache-Control": "max-age=86400"]
        if number == 4 { fields["Cache-Groups"] = "\"g\"" }
        if number % 4 == 0 { fields["xkey"] = "s t" }
        if number == 0 { fields["Other"] = "n, o" }
        return Tool.Stored(url: url, delay: Double(number) * 5, fields: fields)
      })
    let result = try tool.run(["purge", directory] + arguments)
    #expect(result.errors == "")
    #expect(result.status == 0)
    #expect(result.output == "Removed \(sentence)\n")
    #expect(try tool.urls(in: directory) == kept.map { urls[$0] }.sorted { key($0) < key($1) })
    guard arguments == ["--all"] else { return }
    #expect(try tool.run("verify", directory).status == 0)
    #expect(try tool.run("stats", directory, "--json").json()["capacityByteCount"] as? Int == 20 << 20)
  }

  /// Returns a sort key that orders URLs by host, scheme and path, like `list`.
  private func key(_ url: String) -> String {
    let parts = url.components(separatedBy: "://")
    return parts[1].split(separator: "/")[0] + " " + parts[0] + " " + parts[1]
  }

  @Test("purge --json prints the counts")
  func purgeJSON() throws {
    let tool = try Tool()
    let json = try tool.run("purge", tool.makeCache(Self.responses), "--host", "a.example", "--json").json()
    #expect(json as? [String: Int] == ["removedCount": 2, "removedBodyByteCount": 20_004, "keptCount": 1])
  }

  @Test("list --tag lists what purge --tag covers, and show prints the tags")
  func tags() throws {
    let tool = try Tool()
    let fields = ["Cache-Control": "max-age=600", "Cache-Groups": "\"a b\", \"c\"", "xkey": "c d", "Labels": "l"]
    let directory = try tool.makeCache([
      Tool.Stored(url: "http://a.example/1", fields: fields),
      Tool.Stored(url: "http://a.example/2", fields: ["Cache-Control": "max-age=600"]),
    ])
    for (arguments, count) in [
      (["--tag", "d"], 1), (["--tag", "a b"], 1), (["--tag", "l"], 0), (["--tag", "l", "--tag-field", "labels"], 1),
      (["--tag", "d", "--origin", "http://b.example"], 0),
    ] {
      let listed = try tool.run(["list", directory, "--json"] + arguments).json()["entries"] as? [[String: Any]]
      #expect(listed?.map { $0["url"] as? String } == (count == 0 ? [] : ["http://a.example/1"]), "\(arguments)")
      let preview = try tool.run(["purge", directory, "--dry-run"] + arguments).output
      #expect(preview.contains(count == 0 ? ": 0 responses" : ": 1 response "))
    }
    #expect(
      try tool.run("list", directory, "--tag", "x").output
        == "There are no such responses: responses with the tag 'x'.\n")
    #expect(try tool.run("show", directory, "http://a.example/1").output.contains("  Tags       a b, c, d\n"))
    #expect(try !tool.run("show", directory, "http://a.example/2").output.contains("  Tags "))
    let json = try tool.run("show", directory, "http://a.example/1", "--tag-field", "Labels", "--json").json()
    #expect((json["variants"] as? [[String: Any]])?.map { $0["tags"] as? [String] } == [["l"]])
  }
}
