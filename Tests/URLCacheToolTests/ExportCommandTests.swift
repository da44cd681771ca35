import Foundation
import Glibc
import LoopbackOrigin
import Testing

@Suite("urlcache export")
struct ExportCommandTests {
  private static let responses = [
    Tool.Stored(
      url: "http://a.example/page?a=1&b=%20x", body: "Grüße\n",
      fields: [
        "Cache-Control": "max-age=60", "Vary": "Accept-Language, X-Api-Key",
        "Content-Type": "text/plain; charset=utf-8",
      ],
      requestFields: ["Accept-Language": "de", "Authorization": "Basic eA==", "X-Api-Key": "secret"]),
    Tool.Stored(url: "http://b.example/moved", status: 301, fields: ["Location": "/other"]),
  ]

  private func entries(_ text: some StringProtocol) throws -> [[String: Any]] {
    let json = try #require(try JSONSerialization.jsonObject(with: Data(text.utf8)) as? [String: Any])
    let log = try #require(json["log"] as? [String: Any])
    #expect(log["version"] as? String == "1.2")
    #expect((log["creator"] as? [String: String])?["name"] == "urlcache")
    return try #require(log["entries"] as? [[String: Any]])
  }

  private func part(_ entry: [String: Any], _ path: String...) throws -> [String: Any] {
    try path.reduce(entry) { try #require($0[$1] as? [String: Any]) }
  }

  private func fields(_ message: [String: Any]) throws -> [String] {
    try #require(message["headers"] as? [[String: String]]).map { "\($0["name"] ?? ""): \($0["value"] ?? "")" }
  }

  @Test("export writes every member that HAR 1.2 requires")
  func export() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let file = tool.path("out.har")
    let result = try tool.run("export", directory, "--har", file, "--bodies")
    #expect(result.errors == "")
    #expect(result.status == 0)
    #expect(result.output == "Exported 2 responses with 12 B of bodies to \(file).\n")
    let entries = try entries(String(contentsOfFile: file, encoding: .utf8))
    try #require(entries.count == 2)
    for entry in entries {
      #expect(Set(entry.keys) == ["startedDateTime", "time", "request", "response", "cache", "timings"])
      #expect(
        Set(try part(entry, "request").keys) == [
          "method", "url", "httpVersion", "cookies", "headers", "queryString", "headersSize", "bodySize",
        ])
      #expect(
        Set(try part(entry, "response").keys) == [
          "status", "statusText", "httpVersion", "cookies", "headers", "content", "redirectURL", "headersSize",
          "bodySize",
        ])
      #expect(Set(try part(entry, "timings").keys) == ["send", "wait", "receive"])
    }
    let page = try #require(
      entries.first { ($0["request"] as? [String: Any])?["url"] as? String == Self.responses[0].url })
    let request = try part(page, "request")
    #expect(try fields(request) == ["accept-language: de"])
    #expect(
      request["queryString"] as? [[String: String]] == [["name": "a", "value": "1"], ["name": "b", "value": " x"]])
    #expect(page["startedDateTime"] as? String == "2026-01-02T03:04:05.000Z")
    #expect(try part(page, "response", "content")["text"] as? String == "Grüße\n")
    #expect(try part(page, "response", "content")["mimeType"] as? String == "text/plain; charset=utf-8")
    let moved = try #require(entries.first { ($0["response"] as? [String: Any])?["status"] as? Int == 301 })
    #expect(try part(moved, "response")["redirectURL"] as? String == "/other")
    let one = try tool.run("export", directory, "--har", file, "--host", "B.example", "--json").json()
    #expect(one as? [String: Int] == ["entryCount": 1, "bodyByteCount": 0, "omittedBodyCount": 0])
    let content = try part(try self.entries(String(contentsOfFile: file, encoding: .utf8))[0], "response", "content")
    #expect(content["text"] == nil)
    #expect(content["size"] as? Int == 4)
  }

  @Test("warm fetches the exported URLs with the fields of their variants")
  func roundTrip() throws {
    let origin = try LoopbackOrigin { request in
      let fields = [("Cache-Control", "max-age=600"), ("Vary", "Accept-Language"), ("Content-Type", "image/png")]
      return Reply(200, fields, body: Data([0xff, 0xfe]) + Data((request["Accept-Language"] ?? "none").utf8))
    }
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/page").absoluteString
    for language in ["de", "fr"] {
      let result = try tool.run("get", url, "--header", "Accept-Language: \(language)", "--directory", tool.path("one"))
      #expect(result.status == 0)
    }
    let text = try tool.run("export", tool.path("one"), "--har", "-", "--bodies")
    #expect(text.errors == "")
    let bodies = try entries(text.output).map { try part($0, "response", "content")["text"] as? String }
    let expected = ["de", "fr"].map { Data([0xff, 0xfe] + $0.utf8).base64EncodedString() }
    #expect(Set(bodies.compactMap(\.self)) == Set(expected))
    let file = tool.path("one.har")
    #expect(try tool.run("export", tool.path("one"), "--har", file).status == 0)
    #expect(try tool.run("warm", file, "--directory", tool.path("two")).status == 0)
    for language in ["de", "fr"] {
      let header = "Accept-Language: \(language)"
      #expect(try tool.run("cat", tool.path("two"), url, "--header", header, "--output", tool.path("b")).status == 0)
      #expect(try Data(contentsOf: URL(fileURLWithPath: tool.path("b"))) == Data([0xff, 0xfe] + language.utf8))
    }
    #expect(origin.requestCount == 4)
  }

  @Test("Many responses are written in blocks, and a closed pipe ends the export silently")
  func manyResponses() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(count: 3000)
    let all = try tool.run("export", directory, "--har", "-")
    #expect(try entries(all.output).count == 3000)
    let (pipe, errors) = (Pipe(), Pipe())
    let process = try tool.start(["export", directory, "--har", "-"], standardOutput: pipe, standardError: errors)
    #expect(try pipe.fileHandleForReading.read(upToCount: 10)?.count == 10)
    try pipe.fileHandleForReading.close()
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    #expect(try errors.fileHandleForReading.readToEnd() == nil)
  }

  /// Waits until a process no longer ignores a signal: then it has handled it once, and the next one ends it.
  private func waitUntilHandled(_ number: CInt, by process: pid_t) throws {
    while true {
      let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
      let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("SigIgn:") })
      let mask = try #require(UInt64(line.dropFirst(7).trimmingCharacters(in: .whitespaces), radix: 16))
      if mask & 1 << UInt64(number - 1) == 0 { return }
      sched_yield()
    }
  }

  @Test("An interrupted export says that its output is not complete")
  func interruption() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(count: 3000)
    // The export blocks when the pipe is full, until it is interrupted.
    let (pipe, errors) = (Pipe(), Pipe())
    let process = try tool.start(["export", directory, "--har", "-"], standardOutput: pipe, standardError: errors)
    #expect(try pipe.fileHandleForReading.read(upToCount: 10)?.count == 10)
    kill(process.processIdentifier, SIGINT)
    try waitUntilHandled(SIGINT, by: process.processIdentifier)
    _ = try pipe.fileHandleForReading.readToEnd()
    process.waitUntilExit()
    #expect(process.terminationReason == .exit)
    #expect(process.terminationStatus == 1)
    let text = String(decoding: try errors.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    #expect(text == "urlcache export: Interrupted. The output is not complete.\n")
  }

  @Test("Bad input: no file, no cache, a file that cannot be written")
  func badInput() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let noFile = try tool.run("export", directory)
    #expect(noFile.status == 2)
    #expect(noFile.errors == "urlcache export: --har FILE is missing\nTry 'urlcache export --help'.\n")
    let missing = try tool.run("export", tool.path("missing"), "--har", tool.path("out"))
    #expect(missing.status == 1)
    #expect(!FileManager.default.fileExists(atPath: tool.path("out")))
    #expect(!FileManager.default.fileExists(atPath: tool.path("missing")))
    let closed = try tool.run("export", directory, "--har", tool.path("none/out"))
    #expect(closed.status == 1)
    #expect(closed.errors.contains("none/out cannot be written"))
  }

  @Test("A file in the cache directory is refused, also through a symbolic link")
  func fileOfTheCache() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let link = tool.path("link")
    try FileManager.default.createSymbolicLink(atPath: link, withDestinationPath: directory + "/data-1/data.mdb")
    for file in [directory + "/data-1/data.mdb", directory + "/./new", link] {
      let result = try tool.run("export", directory + "/", "--har", file)
      #expect(result.status == 1)
      #expect(result.errors.contains("is in the cache directory"))
    }
    #expect(try tool.run("verify", directory).status == 0)
    #expect(!FileManager.default.fileExists(atPath: directory + "/new"))
  }
}
