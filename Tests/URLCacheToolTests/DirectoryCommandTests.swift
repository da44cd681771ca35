import Foundation
import Testing

@Suite("Commands that look at a directory")
struct DirectoryCommandTests {
  private static let responses = [
    Tool.Stored(url: "http://b.example/x?user=1", body: "12345", delay: 10),
    Tool.Stored(
      url: "http://a.example/2", body: String(repeating: "x", count: 20_000),
      fields: ["Cache-Control": "max-age=60", "Vary": "Accept-Language, Accept"]),
    Tool.Stored(url: "https://a.example/1", status: 404, delay: 20),
  ]

  @Test("stats: exact lines")
  func stats() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let result = try tool.run("stats", directory)
    #expect(result.status == 0)
    #expect(result.errors == "")
    let lines = result.output.split(separator: "\n").map(String.init)
    try #require(lines.count == 6)
    #expect(lines[0] == "Directory  \(directory)")
    #expect(lines[1] == "Responses  3 (0 fresh) of 2 hosts")
    #expect(lines[2] == "Bodies     20 KiB")
    #expect(lines[3].contains(" of 20 MiB ("))
    #expect(lines[4] == "Statuses   200 (2), 404 (1)")
    #expect(lines[5] == "Stored     2026-01-02 03:04:05 to 2026-01-02 03:04:25")
  }

  @Test("stats --json: the keys, and numbers that are right")
  func statsJSON() throws {
    let tool = try Tool()
    let json = try tool.run("stats", tool.makeCache(Self.responses), "--json").json()
    #expect(
      Set(json.keys) == [
        "directory", "entryCount", "freshCount", "staleCount", "hostCount", "statuses", "bodyByteCount",
        "payloadByteCount", "diskByteCount", "capacityByteCount", "oldestStoredAt", "newestStoredAt",
      ])
    #expect(json["entryCount"] as? Int == 3)
    #expect(json["bodyByteCount"] as? Int == 20_009)
    #expect(json["capacityByteCount"] as? Int == 20 << 20)
    #expect(json["oldestStoredAt"] as? String == "2026-01-02T03:04:05.000Z")
    #expect(json["statuses"] as? [String: Int] == ["200": 2, "404": 1])
  }

  @Test("list: header, order and columns")
  func list() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let result = try tool.run("list", directory)
    #expect(result.status == 0)
    let lines = result.output.split(separator: "\n").map { $0.split(separator: " ").map(String.init) }
    try #require(lines.count == 4)
    #expect(lines.map(\.last) == ["URL", "http://a.example/2", "https://a.example/1", "http://b.example/x?user=1"])
    #expect(lines[0] == ["STORED", "SIZE", "AGE", "LEFT", "STATUS", "VARY", "URL"])
    #expect(Array(lines[1].prefix(4)) == ["2026-01-02", "03:04:05", "20", "KiB"])
    #expect(Array(lines[1].suffix(3)) == ["200", "accept,accept-language", "http://a.example/2"])
    #expect(Array(lines[2].suffix(3)) == ["404", "-", "https://a.example/1"])
    #expect(lines[3].contains("stale"))
    let orders = ["url": [1, 2, 0], "time": [1, 0, 2], "size": [1, 0, 2]]
    for (order, numbers) in orders {
      #expect(try tool.urls(in: directory, sortedBy: order) == numbers.map { Self.responses[$0].url })
    }
    let one = try tool.run("list", directory, "--host", "B.example")
    #expect(one.output.split(separator: "\n").count == 2)
    #expect(try tool.run("list", directory, "--host", "c.example").output == "No responses are stored for c.example.\n")
  }

  @Test("list --json: the keys of an entry")
  func listJSON() throws {
    let tool = try Tool()
    let json = try tool.run("list", tool.makeCache(Self.responses), "--json", "--sort=size").json()
    let entry = try #require((json["entries"] as? [[String: Any]])?.first)
    #expect(
      Set(entry.keys) == [
        "url", "method", "status", "bodyByteCount", "storedAt", "age", "timeLeft", "vary", "partition",
      ])
    #expect(entry["vary"] as? [String] == ["accept", "accept-language"])
    #expect(entry["method"] as? String == "GET")
    #expect(try #require(entry["age"] as? Double) > 0)
    #expect(try #require(entry["timeLeft"] as? Double) < 0)
  }

  @Test("verify: all is well")
  func verify() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let result = try tool.run("verify", directory)
    #expect(result.status == 0)
    #expect(result.output == "All is well: 3 responses, 20 KiB of bodies.\n")
    let json = try tool.run("verify", directory, "--json").json()
    #expect(json["violations"] as? [String] == [])
  }

  @Test("verify: a line for what is wrong, exit code 1, and the file is left as it is")
  func verifyDamaged() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let file = URL(fileURLWithPath: directory + "/data.mdb")
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

  @Test("A look leaves the data byte-identical", arguments: ["stats", "list", "verify"])
  func lookChangesNothing(command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let file = URL(fileURLWithPath: directory + "/data.mdb")
    let before = try Data(contentsOf: file)
    let names = try FileManager.default.contentsOfDirectory(atPath: directory).sorted()
    #expect(try tool.run(command, directory).status == 0)
    #expect(try tool.run(command, directory, "--json").status == 0)
    #expect(try Data(contentsOf: file) == before)
    #expect(try FileManager.default.contentsOfDirectory(atPath: directory).sorted() == names)
  }

  @Test("Where no cache is, none is made", arguments: ["stats", "list", "verify", "purge"])
  func nothingThere(command: String) throws {
    let tool = try Tool()
    let rest = command == "purge" ? ["--all"] : []
    let missing = try tool.run([command, tool.path("missing")] + rest)
    #expect(missing.status == 1)
    #expect(missing.output == "")
    #expect(
      missing.errors == "urlcache \(command): The response store at \(tool.path("missing")) failed: there is no such "
        + "directory. See whether the path is right; a cache makes its store when it is first opened.\n")
    #expect(!FileManager.default.fileExists(atPath: tool.path("missing")))

    let empty = try tool.run([command, tool.root.path] + rest)
    #expect(empty.status == 1)
    #expect(empty.errors.contains(" failed: there is no store in it. "))

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
    #expect(file.errors.contains("a file stands in the place of the directory"))
  }

  @Test(
    "purge: what goes and what stays",
    arguments: [
      (["--all"], "everything: 5 responses (20 B). 0 responses left.", []),
      (
        ["--since", "2026-01-02T03:04:15Z"],
        "what was stored after 2026-01-02 03:04:15: 2 responses (8 B). 3 responses left.",
        [0, 1, 2]
      ),
      (
        ["--host", "A.example"], "what was stored for A.example: 3 responses (12 B). 2 responses left.", [3, 4]
      ),
      (
        ["--prefix", "http://a.example/p"],
        "what begins with http://a.example/p: 2 responses (8 B). 3 responses left.", [2, 3, 4]
      ),
      (
        ["--group", "g", "--origin", "http://b.example/"],
        "group 'g' of http://b.example/: 1 response (4 B). 4 responses left.", [0, 1, 2, 3]
      ),
      (
        ["--host", "c.example"], "what was stored for c.example: 0 responses (0 B). 5 responses left.", [0, 1, 2, 3, 4]
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
        return Tool.Stored(url: url, delay: Double(number) * 5, fields: fields)
      })
    let result = try tool.run(["purge", directory] + arguments)
    #expect(result.errors == "")
    #expect(result.status == 0)
    #expect(result.output == "Removed \(sentence)\n")
    #expect(try tool.urls(in: directory) == kept.map { urls[$0] }.sorted { key($0) < key($1) })
    #expect(try tool.run("verify", directory).status == 0)
    #expect(try tool.run("stats", directory, "--json").json()["capacityByteCount"] as? Int == 20 << 20)
  }

  /// Host, then scheme, then path.
  private func key(_ url: String) -> String {
    let parts = url.components(separatedBy: "://")
    return parts[1].split(separator: "/")[0] + " " + parts[0] + " " + parts[1]
  }

  @Test("purge --json")
  func purgeJSON() throws {
    let tool = try Tool()
    let json = try tool.run("purge", tool.makeCache(Self.responses), "--host", "a.example", "--json").json()
    #expect(json as? [String: Int] == ["removedCount": 2, "removedBodyByteCount": 20_004, "keptCount": 1])
  }
}
