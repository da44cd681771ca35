import CacheActivity
import Foundation
import Glibc
import LoopbackOrigin
import ResponseStore
import Testing

// The order of events, and tables of more URLs than a screen shows.
@testable import urlcache

@Suite("Commands that watch a directory", .timeLimit(.minutes(2)))
struct WatchCommandTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      request.path == "/missing"
        ? Reply(404, [("Cache-Control", "no-store")], "nothing\n")
        : Reply(200, [("Cache-Control", "max-age=600")], "fresh\n")
    }
  }

  /// Starts a command that watches, and makes requests in other processes until it ends.
  private func watch(
    _ tool: Tool, _ origin: LoopbackOrigin, paths: [String], _ arguments: String...
  ) throws -> (status: Int32, output: String) {
    let file = tool.path("watched")
    #expect(FileManager.default.createFile(atPath: file, contents: nil))
    let process = try tool.start(arguments, standardOutput: FileHandle(forWritingAtPath: file))
    while process.isRunning {
      for path in paths {
        _ = try tool.run("get", origin.url(path).absoluteString, "--directory", tool.path("cache"))
      }
    }
    process.waitUntilExit()
    return (
      process.terminationStatus, String(decoding: try Data(contentsOf: URL(fileURLWithPath: file)), as: UTF8.self)
    )
  }

  @Test("log --follow prints the requests of other processes, filtered")
  func log() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    _ = try tool.run("get", origin.url("/a").absoluteString, "--directory", directory)
    let (status, output) = try watch(
      tool, origin, paths: ["/a?q=1", "/missing"], "log", directory, "--follow", "--count", "3", "--status", "4xx",
      "--json")
    #expect(status == 0)
    let lines = try output.split(separator: "\n").map {
      try #require(try JSONSerialization.jsonObject(with: Data($0.utf8)) as? [String: Any])
    }
    #expect(lines.count == 3)
    for line in lines {
      #expect(line["url"] as? String == origin.url("/missing").absoluteString)
      #expect(line["status"] as? Int == 404)
      #expect(line["outcome"] as? String == "miss")
      #expect(line["rule"] as? String == "no-store")
      #expect(line["method"] as? String == "GET")
      #expect(try #require(line["microseconds"] as? Double) > 0)
    }
    #expect(Set(lines.compactMap { $0["process"] as? Int }).count == 3)
    // What is left in the file, unless the last `get` was alone with the directory and deleted it.
    let rest = try tool.run("log", directory, "--outcome", "hit", "--host", "127.0.0.1")
    #expect(rest.status == 0)
    for line in rest.output.split(separator: "\n") { #expect(line.contains(" hit ") && line.contains(" fresh ")) }
    #expect(try tool.run("log", directory, "--slower-than", "1000s").output == "")
    for bad in [["--status", "6xx"], ["--outcome", "good"], ["--slower-than", "5"]] {
      #expect(try tool.run(["log", directory] + bad).status == 2)
    }
  }

  @Test("A line of log neutralizes control characters")
  func controlCharacters() {
    let event = RequestEvent(
      time: Date(timeIntervalSince1970: 1_800_000_000.5), processID: 1, method: "GE\u{1b}T",
      url: "http://a/\u{1b}[2J\n",
      status: 200, outcome: .hit, rule: "fr\u{7f}esh", age: 0, timeToLive: 5, byteCount: 2048, nanoseconds: 1500)
    let line = LogCommand.line(event)
    #expect(line.hasSuffix(".500 hit          200  2.0 KiB  1.5 µs fr?esh         GE?T http://a/?[2J?"))
  }

  @Test("A line of log has the size and the digest of a query's content")
  func queryContent() {
    var event = RequestEvent(
      time: Date(timeIntervalSince1970: 1_800_000_000.5), processID: 1, method: "QUERY", url: "http://a.example/1",
      status: 200, outcome: .hit, rule: "fresh", age: 0, timeToLive: 5, byteCount: 2048, nanoseconds: 1500)
    event.content = RequestEvent.Content(digest: "0123456789abcdef", byteCount: 1024)
    #expect(
      LogCommand.line(event).hasSuffix(" fresh          QUERY http://a.example/1 (content 1.0 KiB, 01234567…)"))
  }

  @Test("top sorts URLs by misses, and adds up hosts")
  func top() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    let duration = try ContinuousClock().measure {
      _ = try tool.run("get", origin.url("/a").absoluteString, "--directory", directory)
    }
    // In one interval at least, all paths are requested.
    let interval = 1 + (duration * 4).components.seconds
    let (status, output) = try watch(
      tool, origin, paths: ["/a", "/missing", "/a"], "top", directory, "--count", "2", "--interval", "\(interval)")
    #expect(status == 0)
    #expect(output.hasPrefix("urlcache top  \(directory), "))
    let tables = output.components(separatedBy: "urlcache top")
    let rows = try #require(tables.last).split(separator: "\n").map { $0.split(separator: " ").map(String.init) }
    #expect(rows.contains(["REQUESTS", "HIT%", "MISSES", "BYTES", "TIME", "URL"]))
    let missing = try #require(rows.firstIndex { $0.last?.hasSuffix("/missing") == true })
    let hits = try #require(rows.firstIndex { $0.last?.hasSuffix("/a") == true })
    #expect(missing < hits)
    #expect(rows[missing][1] == "0.0%" && rows[hits][1] == "100.0%")
    #expect(try tool.run("top", directory, "--by", "size").status == 2)
  }

  @Test(
    "On a narrow screen top leaves out columns, so that URLs can be told apart",
    arguments: [("misses", "MISSES"), ("hits", "HIT%"), ("bytes", "BYTES"), ("time", "TIME")])
  func narrowTop(order: String, title: String) throws {
    var table = TopTable(order: try #require(TopTable.Order(rawValue: order)), addsUpHosts: false)
    for number in 1...3 {
      table.add(
        RequestEvent(
          time: Date(), processID: 1, method: "GET", url: "http://a.example/page/\(number)", status: 200,
          outcome: .miss, rule: "", age: 0, timeToLive: nil, byteCount: 123_456, nanoseconds: 12_000_000))
    }
    for columns in [40, 50, 60] {
      let lines = table.lines(maximumCount: 10, columns: columns)
      #expect(lines.allSatisfy { $0.count <= columns })
      #expect(lines[0].contains(title))
      for number in 1...3 { #expect(lines[1...].contains { $0.hasSuffix("http://a.example/page/\(number)") }) }
    }
    let words = table.lines(maximumCount: 10, columns: 80)[0].split(separator: " ")
    #expect(words == ["REQUESTS", "HIT%", "MISSES", "BYTES", "TIME", "URL"])
  }

  @Test("log and top have the same filters by host, path, status, outcome and duration")
  func filters() throws {
    func event(_ url: String, _ status: Int, _ outcome: RequestOutcome, nanoseconds: Int = 1000) -> RequestEvent {
      RequestEvent(
        time: Date(), processID: 1, method: "GET", url: url, status: status, outcome: outcome, rule: "", age: 0,
        timeToLive: nil, byteCount: 0, nanoseconds: nanoseconds)
    }
    let events = [
      event("http://a.example/img/1?x", 200, .hit), event("http://A.example:81/page", 404, .miss),
      event("http://b.example/img/2", 200, .hit, nanoseconds: 5_000_000), event("http://b.example/", 0, .failed),
    ]
    for (options, indexes) in [
      ([], [0, 1, 2, 3]), (["--host", "a.example"], [0, 1]), (["--path", "/img/*"], [0, 2]),
      (["--path", "/img/*?x"], [0]), (["--outcome", "hit"], [0, 2]), (["--outcome", "failed"], [3]),
      (["--status", "4xx"], [1]), (["--slower-than", "1ms"], [2]),
      (["--host", "b.example", "--path", "/img/*", "--outcome", "hit"], [2]), (["--path", "/", "--status", "200"], []),
    ] as [([String], [Int])] {
      for manual in [LogCommand.manual, TopCommand.manual] {
        let filter = try EventFilter(Arguments(["d"] + options, for: manual))
        #expect(events.indices.filter { filter.matches(events[$0]) } == indexes, "\(manual.name) \(options)")
      }
    }
  }

  @Test("top counts only the requests that its filters select")
  func filteredTop() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    _ = try tool.run("get", origin.url("/a").absoluteString, "--directory", directory)
    let (status, output) = try watch(
      tool, origin, paths: ["/a", "/missing"], "top", directory, "--count", "1", "--interval", "2", "--path", "/miss*",
      "--outcome", "miss", "--json")
    #expect(status == 0)
    let json = try #require(try JSONSerialization.jsonObject(with: Data(output.utf8)) as? [String: Any])
    let rows = try #require(json["rows"] as? [[String: Any]])
    #expect(rows.compactMap { $0["url"] as? String } == [origin.url("/missing").absoluteString])
    #expect(json["requests"] as? Int == rows.first?["misses"] as? Int)
  }

  @Test("The table of top orders by each value, adds up hosts and keeps its size")
  func table() {
    func event(_ url: String, _ outcome: RequestOutcome, bytes: Int, nanoseconds: Int) -> RequestEvent {
      RequestEvent(
        time: Date(), processID: 1, method: "GET", url: url, status: 200, outcome: outcome, rule: "", age: 0,
        timeToLive: nil, byteCount: bytes, nanoseconds: nanoseconds)
    }
    let events = [
      event("http://a/1", .hit, bytes: 10, nanoseconds: 5), event("http://a/1", .stale, bytes: 10, nanoseconds: 5),
      event("http://a/2", .miss, bytes: 5, nanoseconds: 1000),
      event("http://b:8080/\u{1b}", .hit, bytes: 99, nanoseconds: 1),
    ]
    func first(_ order: TopTable.Order, hosts: Bool = false) -> String? {
      var table = TopTable(order: order, addsUpHosts: hosts)
      for event in events { table.add(event) }
      return table.lines(maximumCount: 10, columns: 80)[1].split(separator: " ").last.map(String.init)
    }
    #expect(first(.misses) == "http://a/2")
    #expect(first(.hits) == "http://a/1")
    #expect(first(.bytes) == "http://b:8080/?")
    #expect(first(.time) == "http://a/2")
    #expect(first(.bytes, hosts: true) == "b")
    #expect(first(.hits, hosts: true) == "a")
    var small = TopTable(order: .bytes, addsUpHosts: true)
    for event in events { small.add(event) }
    let json = small.json(maximumCount: 1, missingCount: 7).compact
    #expect(
      json == #"{"notRecorded":7,"requests":4,"rows":[{"byteCount":99,"hits":1,"host":"b","microseconds":0.001,"#
        + #""misses":0,"requests":1}]}"#)
    var table = TopTable(order: .hits, addsUpHosts: false)
    for number in 0..<50_000 { table.add(event("http://a/\(number)", .miss, bytes: 0, nanoseconds: 0)) }
    for _ in 0..<2 { table.add(events[0]) }
    #expect(table.lines(maximumCount: .max, columns: 20).count <= TopTable.maximumRowCount + 1)
    #expect(table.lines(maximumCount: 1, columns: 20).allSatisfy { $0.count <= 20 })
    #expect(table.requestCount == 50_002)
  }

  @Test("stats --watch prints a header and a line for each interval in 80 columns")
  func statsWatch() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let result = try tool.run("stats", directory, "--watch", "0.1", "--count", "3")
    #expect(result.status == 0)
    let lines = result.output.split(separator: "\n")
    #expect(lines.count == 4)
    #expect(lines[0].split(separator: " ").first == "TIME")
    for line in lines { #expect(line.count == lines[0].count && line.count <= 80) }
    #expect(try tool.run("stats", directory, "--watch", "--count", "1").status == 0)
    #expect(try tool.run("stats", directory, "--watch=0.01").status == 2)
    #expect(try tool.run("stats", directory, "--count", "1").status == 2)
    #expect(try tool.run("stats", directory, "--watch", "--json").status == 2)
    #expect(try tool.run("stats", tool.path("absent"), "--watch").status == 1)
  }

  @Test("On a terminal, stats --watch and top redraw a screen of 80 columns", arguments: ["stats", "top"])
  func terminal(_ command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let terminal = try PseudoTerminal(columns: 80, rows: 24)
    let arguments =
      command == "stats"
      ? ["stats", directory, "--watch", "0.1", "--count", "2"] : ["top", directory, "--interval", "1", "--count", "2"]
    let process = try tool.start(arguments, standardOutput: terminal.handle)
    let text = terminal.readToEnd()
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    #expect(text.hasPrefix("\u{1b}[2J\u{1b}[H"))
    // Two screens, each cleared below its end.
    #expect(text.components(separatedBy: "\u{1b}[J").count == 3)
    let lines = text.replacing(/\u{1b}\[2?[JKH]/, with: "").split { $0.isNewline }
    #expect(lines.contains { $0.contains(command == "stats" ? "Hit ratio" : "REQUESTS") })
    for line in lines { #expect(line.count <= 80, "\(line)") }
  }

  @Test("A command that watches ends with a line when the directory is deleted", arguments: ["stats", "log", "top"])
  func deletion(_ command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let errors = tool.path("errors")
    let output = tool.path("output")
    for name in [errors, output] { #expect(FileManager.default.createFile(atPath: name, contents: nil)) }
    let options = ["stats": ["--watch", "0.1"], "log": ["--follow"], "top": ["--interval", "1"]]
    let process = try tool.start(
      [command, directory] + (options[command] ?? []), standardOutput: FileHandle(forWritingAtPath: output),
      standardError: FileHandle(forWritingAtPath: errors))
    // It has the directory open when it has created the events, or has printed.
    let isReady = {
      command == "stats"
        ? FileManager.default.contents(atPath: output)?.isEmpty == false
        : access(directory + "/LMDBURLCache.events", F_OK) == 0
    }
    waitUntil { isReady() || !process.isRunning }
    try FileManager.default.removeItem(atPath: directory)
    process.waitUntilExit()
    #expect(process.terminationStatus == 1)
    let text = String(decoding: try Data(contentsOf: URL(fileURLWithPath: errors)), as: UTF8.self)
    #expect(text.contains("was deleted, moved or replaced"))
  }

  @Test("A command that watches ends silently when its output is closed", arguments: ["stats", "log", "top"])
  func closedPipe(_ command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let options = ["stats": ["--watch", "0.1"], "log": ["--follow"], "top": ["--interval", "3600"]]
    let pipe = Pipe()
    let process = try tool.start([command, directory] + (options[command] ?? []), standardOutput: pipe)
    try pipe.fileHandleForReading.close()
    process.waitUntilExit()
    #expect(process.terminationReason == .exit && process.terminationStatus == 0)
  }
}
