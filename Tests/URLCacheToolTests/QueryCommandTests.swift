import Foundation
import LoopbackOrigin
import Testing

/// Requests with content: `--data`, `--data-file` and `--content-type`.
@Suite("urlcache with queries", .timeLimit(.minutes(2)))
struct QueryCommandTests {
  /// Returns the sources in the lines of `get`.
  private func sources(_ result: ToolResult) -> [String] {
    result.errors.split(separator: "\n").map { $0.split(separator: " ").prefix(2).joined(separator: " ") }
  }

  @Test("show and cat find the response of an equivalent URL, and a purge of the path counts it")
  func equivalentURLs() throws {
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", "params=(\"a\")")], "body")
    }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    _ = try tool.run(["get", origin.url("/n?a=1&b=1").absoluteString, "--directory", directory])
    for url in ["/n?a=1&b=1", "/n?b=1", "/n?b=1&a=2"] {
      #expect(try tool.run(["cat", directory, origin.url(url).absoluteString]).output == "body")
    }
    #expect(try tool.run(["cat", directory, origin.url("/n?b=2").absoluteString]).status == 1)
    let purged = try tool.run(["purge", directory, "--url", origin.url("/n").absoluteString])
    #expect(purged.output.contains(": 1 response (4 B). 0 responses left"), "\(purged.output)")
    #expect(try tool.run(["list", directory]).output.contains("/n") == false)
  }

  @Test("stats, list, show and verify count responses, and not the records by which queries and users are found")
  func counts() throws {
    let origin = try LoopbackOrigin { request in
      let fields = [("Cache-Control", "private, max-age=600")]
      return Reply(200, request.path == "/n" ? fields + [("No-Vary-Search", "params=(\"a\")")] : fields, "body")
    }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    for arguments in [
      ["/n?a=1&b=1"], ["/u", "--header", "Authorization: Bearer 1"], ["/u", "--header", "Authorization: Bearer 2"],
      ["/q", "--method", "QUERY", "--data", "x", "--content-type", "text/plain"], ["/"],
    ] {
      let url = origin.url(arguments[0]).absoluteString
      #expect(try tool.run(["get", url, "--directory", directory] + arguments.dropFirst()).status == 0)
    }
    for details in [[], ["--details"]] {
      #expect(try tool.run(["stats", directory, "--json"] + details).json()["entryCount"] as? Int == 5)
    }
    #expect(try tool.run("stats", directory).output.contains("\nResponses  5\n"))
    #expect(try tool.run("verify", directory, "--json").json()["entryCount"] as? Int == 5)
    let list = try tool.run("list", directory, "--json").json()
    #expect((list["entries"] as? [[String: Any]])?.count == 5, "\(list)")
    let shown = try tool.run("show", directory, origin.url("/u").absoluteString, "--json").json()
    #expect((shown["variants"] as? [[String: Any]])?.count == 2)
    _ = try tool.run(["purge", directory, "--url", origin.url("/u").absoluteString])
    #expect(try tool.run("stats", directory, "--json").json()["entryCount"] as? Int == 3)
  }

  @Test("get caches a QUERY by its content and media type; the content is an argument, a file or standard input")
  func get() throws {
    let origin = try QueryOrigin(recordsRequests: true)
    defer { origin.stop() }
    let tool = try Tool()
    let command = ["get", origin.url.absoluteString, "--directory", tool.path("cache"), "--method", "QUERY"]
    let file = tool.path("query")
    try Data("q=digest".utf8).write(to: URL(fileURLWithPath: file))
    let first = try tool.run(command + ["--data", "q=digest", "--twice"])
    #expect(first.output == QueryOrigin.result(of: "digest") && !first.output.isEmpty)
    #expect(sources(first) == ["200 miss", "200 hit"])
    let sent = try #require(origin.origin.requests.first)
    #expect(sent.method == "QUERY" && sent["Content-Type"] == "application/x-www-form-urlencoded")
    #expect(sources(try tool.run(command + ["--data-file", file])) == ["200 hit"])
    let input = try #require(FileHandle(forReadingAtPath: file))
    let piped = try tool.run(command + ["--data-file", "-"], input: input)
    #expect(sources(piped) == ["200 hit"] && piped.output == first.output)
    let json = [#"{"q": "digest"}"#, "--content-type", "application/json"]
    let other = try tool.run(command + ["--data"] + json)
    #expect(sources(other) == ["200 miss"] && other.output == first.output)
    let withField = ["--data", #"{"q": "digest"}"#, "--header", "content-type: application/json"]
    #expect(sources(try tool.run(command + withField)) == ["200 hit"])
    #expect(sources(try tool.run(command + ["--data", "q=digest", "--content-type", "text/plain"])) == ["415 miss"])
    // Without any content all titles are found.
    let empty = try tool.run(command + ["--data", ""])
    #expect(sources(empty) == ["200 miss"] && empty.output == QueryOrigin.result(of: ""))
    #expect(origin.origin.requests.map(\.body.count) == [8, 15, 8, 0])
  }

  @Test(
    "Options that do not go together are wrong arguments, and nothing is sent",
    arguments: [
      (["--data", "x"], "--data needs --method QUERY"), (["--data-file", "-"], "--data-file needs --method QUERY"),
      (["--method", "HEAD", "--data", "x"], "a HEAD has no content: --data needs --method QUERY"),
      (["--method", "QUERY"], "--method QUERY needs the query: --data TEXT, which may be empty, or --data-file FILE"),
      (["--method", "QUERY", "--data", "x", "--data-file", "f"], "--data cannot be combined with --data-file"),
      (["--content-type", "a/b"], "--content-type needs --data or --data-file"),
      (["--method", "QUERY", "--data", "x", "--content-type", "json"], "such as application/json, not 'json'"),
      (["--method", "QUERY", "--data", "x", "--content-type", ""], "such as application/json, not ''"),
      (["--method", "QUERY", "--data", "x", "--content-type", "a/b\r\nX: y"], "takes a media type"),
      (
        ["--method", "QUERY", "--data", "x", "--content-type", "a/b", "--header", "content-TYPE: c/d"],
        "--content-type cannot be combined with --header"
      ),
    ])
  func wrongArguments(_ options: [String], _ message: String) throws {
    let origin = try QueryOrigin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = try tool.makeCache([])
    let url = origin.url.absoluteString
    for command in [["get", url, "--directory", directory], ["explain", directory, url], ["show", directory, url]] {
      let result = try tool.run(command + options)
      #expect(result.status == 2, "\(command[0])")
      #expect(result.errors.contains(message), "\(result.errors)")
      #expect(result.errors.contains("Try 'urlcache \(command[0]) --help'."))
    }
    #expect(origin.origin.requestCount == 0)
  }

  @Test("get sends no other methods, and a missing file of content is a failure")
  func refusals() throws {
    let tool = try Tool()
    let command = ["get", "http://127.0.0.1:1/", "--directory", tool.path("cache"), "--method"]
    let method = try tool.run(command + ["DELETE"])
    #expect(method.status == 2 && method.errors.contains("--method takes GET, HEAD, QUERY or POST, not 'DELETE'"))
    let missing = try tool.run(command + ["QUERY", "--data-file", tool.path("none")])
    #expect(missing.status == 1 && missing.errors.hasSuffix("/none does not exist.\n"))
    #expect(!FileManager.default.fileExists(atPath: tool.path("cache")))
  }

  @Test("explain, show, list and export have the size and the digest of a query's content, never the content")
  func content() throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600"), ("Content-Type", "text/plain")], "body \(request.number)")
    }
    defer { origin.stop() }
    let tool = try Tool()
    let (directory, url) = (tool.path("cache"), origin.url("/a").absoluteString)
    func query(_ content: String) -> [String] { ["--method", "QUERY", "--data", content] }
    for content in ["needle", "needles"] {
      #expect(try tool.run(["get", url, "--directory", directory] + query(content)).status == 0)
    }
    #expect(try tool.run("get", url, "--directory", directory).output == "body 2")
    func output(_ arguments: [String]) throws -> String {
      let result = try tool.run(arguments)
      #expect(result.status == 0 && result.errors == "")
      #expect(!result.output.contains("needle"))
      return result.output
    }
    func object(_ arguments: [String]) throws -> [String: Any] {
      try ToolResult(status: 0, wasKilled: false, output: output(arguments), errors: "").json()
    }
    // The digest is that of the list, in which the record of the URL's queries is not.
    let entries = try #require(try object(["list", directory, "--json"])["entries"] as? [[String: Any]])
    #expect(entries.compactMap { $0["method"] as? String }.sorted() == ["GET", "QUERY", "QUERY"])
    let contents = entries.compactMap { $0["queryContent"] as? [String: Any] }
    let content = try #require(contents.first { $0["byteCount"] as? Int == 6 })
    #expect(contents.compactMap { $0["byteCount"] as? Int }.sorted() == [6, 7])
    let digest = try #require(content["digest"] as? String)
    #expect(digest.count >= 22)
    #expect(try output(["list", directory]).contains("QUERY \(url) (content 6 B, \(digest.prefix(8))…)\n"))

    let explained = try output(["explain", directory, url] + query("needle"))
    #expect(explained.hasPrefix("QUERY \(url)\nResult    answered from the cache with status 200, fresh"))
    #expect(explained.contains("\nContent   6 B, digest \(digest)\n"))
    let explanation = try object(["explain", directory, url, "--json"] + query("needle"))
    #expect(explanation["method"] as? String == "QUERY" && explanation["outcome"] as? String == "hit")
    #expect((explanation["queryContent"] as? [String: Any])?["digest"] as? String == digest)
    let unknown = try output(["explain", directory, url] + query("other"))
    #expect(unknown.contains("\nResult   a miss, from the origin\n"))
    #expect(unknown.contains("nothing for this query"))

    let shown = try output(["show", directory, url] + query("needle"))
    #expect(shown.contains("\n1 variant\n") && shown.contains("Content  ") && shown.contains("6 B, digest \(digest)\n"))
    let variants = try #require(
      try object(["show", directory, url, "--json"] + query("needle"))["variants"] as? [[String: Any]])
    #expect((variants.first?["queryContent"] as? [String: Any])?["byteCount"] as? Int == 6)
    #expect(try output(["cat", directory, url] + query("needle")) == "body 0")
    #expect(try output(["cat", directory, url]) == "body 2")
    #expect(try tool.run(["show", directory, url] + query("other")).status == 1)

    let log = try #require(try object(["export", directory, "--har", "-"])["log"] as? [String: Any])
    let requests = try #require(log["entries"] as? [[String: Any]]).compactMap { $0["request"] as? [String: Any] }
    #expect(requests.count == 3)
    let exported = try #require(requests.first { $0["_contentDigest"] as? String == digest })
    #expect(exported["method"] as? String == "QUERY" && exported["bodySize"] as? Int == 6)
    #expect(requests.allSatisfy { $0["postData"] == nil })

    // A purge of the URL reaches the queries, and counts responses alone.
    let purge = ["purge", directory, "--url", url, "--json"]
    #expect(try object(purge)["removedCount"] as? Int == 3)
    #expect(try output(["list", directory]) == "No responses are stored.\n")
    #expect(try tool.run(["get", url, "--directory", directory] + query("needle")).output == "body 3")
  }

  @Test("log prints the size and the digest of a query's content")
  func log() throws {
    let origin = try QueryOrigin()
    defer { origin.stop() }
    let tool = try Tool()
    let (directory, file) = (tool.path("cache"), tool.path("watched"))
    let command = [
      "get", origin.url.absoluteString, "--directory", directory, "--method", "QUERY", "--data", "q=needle",
    ]
    #expect(try tool.run(command).status == 0)
    #expect(FileManager.default.createFile(atPath: file, contents: nil))
    let process = try tool.start(
      ["log", directory, "--follow", "--count", "1"], standardOutput: FileHandle(forWritingAtPath: file))
    while process.isRunning { _ = try tool.run(command) }
    process.waitUntilExit()
    let output = try String(contentsOfFile: file, encoding: .utf8)
    #expect(output.contains(" hit ") && output.contains(" QUERY \(origin.url.absoluteString) (content 8 B, "))
    #expect(!output.contains("needle"))
  }
}
