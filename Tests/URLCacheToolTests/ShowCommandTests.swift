import Foundation
import HTTPCaching
import LoopbackOrigin
import ResponseStore
import Testing

/// `urlcache show` and `urlcache cat`.
@Suite("urlcache show and cat")
struct ShowCommandTests {
  private static let url = "http://a.example/page?user=1"

  private static func variant(_ language: String, delay: TimeInterval = 0) -> Tool.Stored {
    Tool.Stored(
      url: url, body: "body in \(language)\n", delay: delay,
      fields: [
        "Cache-Control": "max-age=60, stale-if-error=600", "Vary": "Accept-Language", "ETag": "\"\(language)\"",
        "Content-Type": "text/plain",
      ],
      requestFields: ["Accept-Language": language])
  }

  @Test("show prints each variant and marks the one that the request selects")
  func show() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Self.variant("de"), Self.variant("fr", delay: 5)])
    let result = try tool.run("show", directory, Self.url, "--header", "Accept-Language: de")
    #expect(result.errors == "")
    #expect(result.status == 0)
    #expect(result.output.hasPrefix("\(Self.url)\n2 variants\n\nVariant 1 *\n  Status     200\n"))
    let parts = result.output.components(separatedBy: "\nVariant 2\n")
    try #require(parts.count == 2)
    for line in [
      "  Stored     2026-01-02 03:04:05\n", "  Lifetime   1 min\n", "  If stale   stale-if-error 10 min\n",
      "  ETag       \"de\"\n", "  Vary key   accept-language: de\n", "  Body       11 B, in the record\n",
      "    Vary: Accept-Language\n", "    Content-Type: text/plain\n",
    ] {
      #expect(parts[0].contains(line), "\(line)")
    }
    #expect(parts[0].contains(/\n {2}Checksums  header [0-9a-f]{16}, body [0-9a-f]{16}\n/))
    #expect(parts[1].contains("  ETag       \"fr\"\n"))
    // Without the field, the request has the default language, which selects no variant.
    #expect(!(try tool.run("show", directory, Self.url).output.contains("*")))
  }

  @Test("show and cat select the variant that a request with the default fields has stored")
  func defaultFields() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Self.variant("de"), Self.variant("en", delay: 5)])
    let result = try tool.run("show", directory, Self.url)
    #expect(result.output.contains("Variant 1 *\n"))
    #expect(result.output.contains("  Vary key   accept-language: en\n"))
    #expect(try tool.run("cat", directory, Self.url).output == "body in en\n")
  }

  @Test("No file of the cache and no output has the value of a field that can be a secret")
  func secrets() throws {
    let tool = try Tool()
    let fields = ["Cookie": "a=top-secret-1; b=2", "X-Api-Key": "top-secret-2", "Authorization": "top-secret-3"]
    let directory = try tool.makeCache([
      Tool.Stored(
        url: Self.url, fields: ["Cache-Control": "max-age=60", "Vary": "Cookie, X-Api-Key, X-None"],
        requestFields: fields)
    ])
    let arguments =
      ["--header", "Cookie: b=2; a=top-secret-1"]
      + ["X-Api-Key", "Authorization"].flatMap {
        ["--header", "\($0): \(fields[$0] ?? "")"]
      }
    let result = try tool.run(["show", directory, Self.url] + arguments)
    #expect(result.output.contains("\nVariant 1 *\n"))
    let key = "authorization: (digest); cookie: (digest); x-api-key: (digest); x-none: (none)\n"
    #expect(result.output.contains("  Vary key   " + key))
    let json = try tool.run("show", directory, Self.url, "--json")
    let vary = try #require((try json.json()["variants"] as? [[String: Any]])?.first?["vary"] as? [String: Any])
    #expect(vary["cookie"] as? String == "(digest)")
    #expect(!(result.output + json.output).contains("top-secret"))
    for name in try FileManager.default.subpathsOfDirectory(atPath: directory) where name != "data-1" {
      let content = try Data(contentsOf: URL(fileURLWithPath: directory + "/" + name))
      #expect(content.range(of: Data("top-secret".utf8)) == nil, "\(name)")
    }
  }

  @Test("show names the bytes of a part, which a cut transfer left")
  func part() throws {
    let origin = try LoopbackOrigin { _ in
      Reply(
        200, [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")], body: Data(repeating: 65, count: 4 << 20)
      ).cut(.inBody(after: 2_000_000))
    }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: Self.url)], capacity: 64 << 20)
    let url = origin.url("/large").absoluteString
    #expect(try tool.run("get", url, "--directory", directory, "--output", tool.path("body")).status == 1)
    let shown = try tool.run("show", directory, url)
    #expect(shown.output.contains(/Part +bytes 0-\d+\/4194304\n/))
    let variants = try #require(try tool.run("show", directory, url, "--json").json()["variants"] as? [[String: Any]])
    #expect((variants.first?["part"] as? String)?.hasSuffix("/4194304") == true)
    #expect(try tool.run("stats", directory).output.contains("Parts stored"))
    let whole = try tool.run("show", directory, Self.url, "--json").json()["variants"] as? [[String: Any]]
    #expect(whole?.first?["part"] is NSNull)
  }

  @Test("list and show name no field of the Vary key that is none of the request, such as the form of the content")
  func formOfContent() throws {
    let text = Data("a text that compresses, a text that compresses".utf8)
    let file = try Tool()
    let path = file.path("text")
    try text.write(to: URL(fileURLWithPath: path))
    let gzip = try Process.run(URL(fileURLWithPath: "/bin/gzip"), arguments: [path])
    gzip.waitUntilExit()
    let content = try Data(contentsOf: URL(fileURLWithPath: path + ".gz"))
    let origin = try LoopbackOrigin { _ in
      Reply(
        200, [("Cache-Control", "max-age=600"), ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")],
        body: content)
    }
    defer { origin.stop() }
    let tool = try Tool()
    let (url, directory) = (origin.url("/text").absoluteString, tool.path("cache"))
    #expect(try tool.run("get", url, "--directory", directory).output == String(decoding: text, as: UTF8.self))
    let entries = try tool.run("list", directory, "--json").json()["entries"] as? [[String: Any]]
    #expect(entries?.first?["vary"] as? [String] == ["accept-encoding"])
    let shown = try tool.run("show", directory, url)
    #expect(shown.output.contains(/Vary key +accept-encoding: [^:]+\n/) && shown.output.contains("content decoded"))
    for output in [try tool.run("list", directory), shown] { #expect(!output.output.contains(":decoded")) }
  }

  @Test("show calls a lifetime heuristic only if there is one")
  func heuristicLifetime() throws {
    let origin = try LoopbackOrigin { request in
      let modified = request.path == "/modified" ? [("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")] : []
      return Reply(200, [("Cache-Control", "no-cache"), ("ETag", "\"1\"")] + modified, "body")
    }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    for (path, isHeuristic) in [("/plain", false), ("/modified", true)] {
      let url = origin.url(path).absoluteString
      _ = try tool.run("get", url, "--directory", directory)
      let lifetime = try #require(
        try tool.run("show", directory, url).output.split(separator: "\n").first { $0.contains("Lifetime") })
      #expect(lifetime.hasSuffix("(heuristic)") == isHeuristic, "\(lifetime)")
      #expect(isHeuristic || lifetime.hasSuffix(" 0 s"))
    }
  }

  @Test("show --json has the documented keys")
  func showJSON() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Self.variant("de"), Self.variant("fr", delay: 5)])
    let json = try tool.run("show", directory, Self.url, "--header=accept-language: fr", "--json").json()
    #expect(json["url"] as? String == Self.url)
    let variants = try #require(json["variants"] as? [[String: Any]])
    try #require(variants.count == 2)
    #expect(
      Set(variants[0].keys) == [
        "isSelected", "queryContent", "status", "storedAt", "updatedAt", "receivedAt", "age", "lifetime", "timeToLive",
        "staleWindows", "flags", "validators", "vary", "tags", "bodyByteCount", "isBodyInRecord", "part",
        "headerByteCount", "attachmentByteCount", "row",
        "removalSequence", "headerChecksum", "bodyChecksum", "fields",
      ])
    #expect(variants.map { $0["isSelected"] as? Bool } == [true, false])
    #expect(variants[0]["vary"] as? [String: String] == ["accept-language": "fr"])
    #expect(variants[0]["validators"] as? [String: String] == ["ETag": "\"fr\""])
    #expect(variants[0]["storedAt"] as? String == "2026-01-02T03:04:10.000Z")
  }

  @Test("cat writes the body of the variant that the request selects")
  func cat() throws {
    let tool = try Tool()
    let large = String(repeating: "0123456789", count: 100_000)
    let directory = try tool.makeCache([
      Self.variant("de"), Self.variant("fr"), Tool.Stored(url: "http://a.example/large", body: large),
    ])
    let result = try tool.run("cat", directory, Self.url, "--header", "Accept-Language: fr")
    #expect(result.output == "body in fr\n")
    #expect(result.errors == "")
    #expect(result.status == 0)
    #expect(try tool.run("cat", directory, "http://a.example/large").output == large)
    let file = tool.path("body")
    #expect(try tool.run("cat", directory, "http://a.example/large", "--output", file).output == "")
    #expect(try String(contentsOfFile: file, encoding: .utf8) == large)
    let none = try tool.run("cat", directory, Self.url)
    #expect(none.status == 1)
    #expect(none.output == "")
    #expect(
      none.errors == "urlcache cat: No variant matches the request; 2 stored. Their Vary keys have: accept-language. "
        + "Select one with --header.\n")
    let missing = try tool.run("cat", directory, "http://a.example/other")
    #expect(missing.status == 1)
    #expect(missing.errors == "urlcache cat: No response is stored for this URL.\n")
  }

  @Test("After a soft purge, show names the flag, and explain the rule")
  func softPurge() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([
      Tool.Stored(
        url: Self.url, delay: Date().timeIntervalSince(Tool.epoch),
        fields: ["Cache-Control": "max-age=86400", "ETag": "\"1\""])
    ])
    #expect(try !tool.run("show", directory, Self.url).output.contains("soft-purged"))
    #expect(try tool.run("purge", directory, "--all", "--soft").status == 0)
    #expect(try tool.run("show", directory, Self.url).output.contains(/\n {2}Flags {6}soft-purged[,\n]/))
    let explanation = try tool.run("explain", directory, Self.url, "--json").json()
    #expect(explanation["outcome"] as? String == "validate")
    #expect((explanation["rule"] as? [String: String])?["id"] == "soft-purged")
  }

  @Test("cat exits silently when its output is closed")
  func closedPipe() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([
      Tool.Stored(url: "http://a.example/large", body: String(repeating: "x", count: 1 << 20))
    ])
    let (pipe, errors) = (Pipe(), Pipe())
    let process = try tool.start(
      ["cat", directory, "http://a.example/large"], standardOutput: pipe, standardError: errors)
    #expect(try pipe.fileHandleForReading.read(upToCount: 10)?.count == 10)
    try pipe.fileHandleForReading.close()
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    #expect(try errors.fileHandleForReading.readToEnd() == nil)
  }

  @Test("show and cat count no use and change no file", arguments: ["show", "cat"])
  func changeNothing(command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Self.variant("de")])
    func contents() throws -> [String: Data] {
      var contents: [String: Data] = [:]
      for name in try FileManager.default.subpathsOfDirectory(atPath: directory)
      where name != "data-1" && !name.hasSuffix("lock.mdb") {
        contents[name] = try Data(contentsOf: URL(fileURLWithPath: directory + "/" + name))
      }
      return contents
    }
    // The first command after a cache was closed may map files that it did not need before.
    #expect(try tool.run("stats", directory).status == 0)
    let before = try contents()
    #expect(try tool.run(command, directory, Self.url, "--header", "Accept-Language: de").status == 0)
    let after = try contents()
    #expect(Set(after.keys) == Set(before.keys))
    for (name, data) in before { #expect(after[name] == data, "\(name)") }
  }

  @Test("A missing, foreign or corrupt store, and a text that is no URL, are errors", arguments: ["show", "cat"])
  func badInput(command: String) throws {
    let tool = try Tool()
    let missing = try tool.run(command, tool.path("missing"), Self.url)
    #expect(missing.status == 1)
    #expect(missing.errors.contains("there is no such directory"))
    #expect(!FileManager.default.fileExists(atPath: tool.path("missing")))
    let directory = try tool.makeCache([Tool.Stored(url: Self.url, body: String(repeating: "x", count: 20_000))])
    let relative = try tool.run(command, directory, "page")
    #expect(relative.status == 2)
    #expect(
      relative.errors
        == "urlcache \(command): 'page' is not an absolute URL with a host\nTry 'urlcache \(command) --help'.\n")
    let file = URL(fileURLWithPath: directory + "/data-1/data.mdb")
    var data = try Data(contentsOf: file)
    let body = try #require(data.range(of: Data(repeating: UInt8(ascii: "x"), count: 64)))
    data[body.lowerBound] = UInt8(ascii: "y")
    try data.write(to: file)
    let corrupt = try tool.run(command, directory, Self.url)
    #expect(corrupt.status == 1)
    #expect(corrupt.output == "")
    #expect(corrupt.errors.contains("Run: urlcache verify DIR\n"))
  }
}
