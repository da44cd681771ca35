import Foundation
import Glibc
import LoopbackOrigin
import Testing

@Suite("urlcache get")
struct GetCommandTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      switch request.path {
      case "/fresh": Reply(200, [("Cache-Control", "max-age=600")], "fresh\n")
      case "/checked":
        request["If-None-Match"] == "\"1\""
          ? Reply(304, [("ETag", "\"1\""), ("Cache-Control", "no-cache")])
          : Reply(200, [("ETag", "\"1\""), ("Cache-Control", "no-cache")], "checked\n")
      case "/language": Reply(200, [("Vary", "Accept-Language")], (request["Accept-Language"] ?? "none") + "\n")
      case "/moved": Reply(301, [("Location", "/fresh"), ("Cache-Control", "max-age=600")])
      case "/moved/briefly": Reply(302, [("Location", "/fresh")])
      case "/large": Reply(200, [("Cache-Control", "max-age=600")], body: Data(repeating: 65, count: 1 << 20))
      default: Reply(404, [("Cache-Control", "no-store")], "nothing\n")
      }
    }
  }

  /// Returns the status, the source and the file name of each line on standard error.
  ///
  /// The ages, TTLs and durations between them differ from run to run.
  private func sources(_ errors: String) -> [String] {
    errors.split(separator: "\n").map { line in
      let words = line.split(separator: " ")
      return words.prefix(2).joined(separator: " ") + " "
        + (words.last.map { String($0.split(separator: "/").last ?? "") } ?? "")
    }
  }

  @Test("--twice prints the outcome of both requests: a miss, a hit or a validation")
  func twice() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let urls = ["/fresh", "/checked", "/missing", "/moved"].map { origin.url($0).absoluteString }
    let result = try tool.run(["get", "--twice", "--directory", tool.path("cache")] + urls)
    #expect(result.status == 0)
    #expect(result.output == "fresh\nchecked\nnothing\nfresh\n")
    #expect(
      sources(result.errors) == [
        "200 miss fresh", "200 hit fresh", "200 miss checked", "200 revalidated checked",
        "404 miss missing", "404 miss missing", "200 miss fresh", "200 hit fresh",
      ])
    #expect(result.errors.contains("  not stored (no-store)  ") && result.errors.contains(" µs  "))
    #expect(result.errors.contains("200  hit           fresh         age 0 s"))
    // The next process finds the responses that this one stored.
    let again = try tool.run("get", urls[0], "--directory", tool.path("cache"))
    #expect(sources(again.errors) == ["200 hit fresh"])
    #expect(try tool.run("verify", tool.path("cache")).status == 0)
  }

  @Test("A body that is too large is not stored, and get, explain and stats say so")
  func tooLarge() throws {
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=600")], body: Data(repeating: 65, count: 6 << 20)).chunked()
    }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/1")], capacity: 20 << 20)
    let url = origin.url("/large").absoluteString
    let result = try tool.run(["get", url, "--directory", directory, "--output", tool.path("body")])
    #expect(result.status == 0)
    #expect(result.errors.contains("  not stored (body-too-large)  "))
    #expect(result.errors.contains("the body is larger than 5242880 bytes"))
    let explanation = try tool.run("explain", directory, url).output
    #expect(
      explanation.contains(
        "body-too-large (RFC 9111 3): the body is larger than the cache stores; the limit is 5.0 MiB\n"))
    #expect(try tool.run("stats", directory).output.contains("body-too-large 1"))
    let text = try tool.run("stats", directory, "--prometheus").output
    #expect(text.contains("/cache\",rule=\"body-too-large\"} 1\n"))
  }

  /// Returns the paths of the files in the home folder, other than the cache and the tool's input.
  private func userFiles(_ tool: Tool) throws -> [String] {
    let names = FileManager.default.enumerator(atPath: tool.path(".local"))?.compactMap { $0 as? String } ?? []
    return names.filter { name in
      var isFolder: ObjCBool = false
      return FileManager.default.fileExists(atPath: tool.path(".local/" + name), isDirectory: &isFolder)
        && !isFolder.boolValue
    }
  }

  @Test("Cookies are sent only with --cookies, and only within a run; no file keeps them", arguments: ["get", "warm"])
  func cookies(_ command: String) throws {
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Set-Cookie", "id=1; Max-Age=600; Path=/"), ("Cache-Control", "no-store")], "body\n")
    }
    defer { origin.stop() }
    let tool = try Tool()
    let urls = ["/1", "/2"].map { origin.url($0).absoluteString }
    try Data(urls.joined(separator: "\n").utf8).write(to: URL(fileURLWithPath: tool.path("list")))
    let operands = command == "get" ? urls : [tool.path("list"), "--jobs", "1"]
    func cookies(_ options: String...) throws -> [String?] {
      let before = origin.requestCount
      let result = try tool.run([command, "--directory", tool.path("cache")] + operands + options)
      #expect(result.status == 0)
      #expect(try userFiles(tool) == [])
      return origin.requests.dropFirst(before).map { $0["Cookie"] }
    }
    #expect(try cookies() == [nil, nil])
    #expect(try cookies("--cookies") == [nil, "id=1"])
    #expect(try cookies() == [nil, nil])
    #expect(try cookies("--cookies") == [nil, "id=1"])
    #expect(try cookies("--header", "Cookie: a=b") == ["a=b", "a=b"])
  }

  @Test("The user and password of a URL are sent to the origin and not printed")
  func user() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/fresh").absoluteString.replacing("://", with: "://top-user:top-secret@")
    for options in [[], ["--json"]] {
      let result = try tool.run(["get", url, "--directory", tool.path("cache")] + options)
      #expect(result.status == 0)
      #expect(result.errors.contains("://127.0.0.1:") && !result.errors.contains("top-"))
    }
    let failed = try tool.run("get", "http://top-user:top-secret@127.0.0.1:1/", "--directory", tool.path("cache"))
    #expect(failed.status == 1)
    #expect(!failed.errors.contains("top-"))
    let har = try tool.run("export", tool.path("cache"), "--har", "-")
    #expect(har.output.contains(origin.url("/fresh").absoluteString) && !har.output.contains("top-"))
    try Data("http://top-user:top-secret@127.0.0.1:1/\n".utf8).write(to: URL(fileURLWithPath: tool.path("list")))
    let warm = try tool.run("warm", tool.path("list"), "--directory", tool.path("cache"))
    #expect(warm.errors.hasPrefix("urlcache warm: http://127.0.0.1:1/: "))
  }

  @Test("Without --directory the tool uses the user's cache directory")
  func defaultDirectory() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    #expect(try tool.run("get", origin.url("/fresh").absoluteString).status == 0)
    #expect(try tool.urls(in: tool.path("caches/LMDBURLCache")).count == 1)
  }

  @Test("An existing cache keeps its capacity")
  func capacity() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")], capacity: 24 << 20)
    #expect(try tool.run("get", origin.url("/fresh").absoluteString, "--directory", directory).status == 0)
    let json = try tool.run("stats", directory, "--json").json()
    #expect(json["capacityByteCount"] as? Int == 24 << 20)
    #expect(json["entryCount"] as? Int == 2)
  }

  @Test("--json prints an object per response on standard error")
  func json() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/moved?token=1").absoluteString
    let result = try tool.run("get", url, "--twice", "--json", "--directory", tool.path("cache"))
    let lines = try result.errors.split(separator: "\n").map {
      try #require(try JSONSerialization.jsonObject(with: Data($0.utf8)) as? [String: Any])
    }
    try #require(lines.count == 2)
    #expect(
      Set(lines[0].keys) == [
        "url", "finalURL", "status", "source", "age", "timeToLive", "microseconds", "bodyByteCount", "reason",
        "refusal", "cachingRules", "redirects",
      ])
    let redirects = try #require(lines[1]["redirects"] as? [[String: Any]])
    #expect(redirects.map { $0["url"] as? String } == [url])
    #expect(redirects.map { $0["status"] as? Int } == [301] && redirects.map { $0["source"] as? String } == ["hit"])
    #expect(lines[0]["url"] as? String == url)
    #expect(lines[0]["finalURL"] as? String == origin.url("/fresh").absoluteString)
    #expect(lines.map { $0["source"] as? String } == ["miss", "hit"])
    #expect(lines.map { $0["reason"] as? String } == ["miss", "fresh"])
    #expect(lines.allSatisfy { $0["refusal"] is NSNull })
  }

  @Test("A response is no hit if a redirect before it came from the origin")
  func redirectFromOrigin() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/moved/briefly").absoluteString
    let result = try tool.run("get", url, "--twice", "--directory", tool.path("cache"))
    #expect(sources(result.errors) == ["200 miss fresh", "200 miss fresh"])
    #expect(origin.requestCount == 3)
  }

  @Test("--header fields are sent and select variants")
  func header() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/language").absoluteString
    for language in ["de", "fr"] {
      let result = try tool.run(
        "get", url, "--header", "Accept-Language: \(language)", "--header", "X-Other:1", "--directory",
        tool.path("cache"))
      #expect(result.output == "\(language)\n")
    }
    #expect(origin.requests.map { $0["X-Other"] } == ["1", "1"])
  }

  @Test(
    "The policy decides the source of a response that is stored",
    arguments: [
      ("protocol", "200 hit fresh"), ("reload", "200 miss fresh"), ("reload-everywhere", "200 miss fresh"),
      ("prefer-cache", "200 hit fresh"), ("only-cache", "200 hit fresh"), ("revalidate", "200 miss fresh"),
    ])
  func policies(policy: String, line: String) throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/fresh").absoluteString
    let directory = tool.path("cache")
    let miss = try tool.run("get", url, "--policy", "only-cache", "--directory", directory)
    #expect(miss.status == 1)
    #expect(miss.errors == "urlcache get: \(url): No response is stored, and the policy is only-cache.\n")
    #expect(origin.requestCount == 0)
    _ = try tool.run("get", url, "--directory", directory)
    #expect(sources(try tool.run("get", url, "--policy", policy, "--directory", directory).errors) == [line])
  }

  @Test("A failed fetch leaves the --output file unchanged and no temporary file")
  func failedOutput() throws {
    let origin = try origin()
    let fresh = origin.url("/fresh").absoluteString
    defer { origin.stop() }
    // No process listens on this port. The port of an origin that has stopped could be the next one of another test.
    let url = "http://127.0.0.1:1/gone"
    let tool = try Tool()
    let folder = tool.path("out")
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    try Data("before".utf8).write(to: URL(fileURLWithPath: folder + "/body"))
    try FileManager.default.createSymbolicLink(atPath: tool.path("link"), withDestinationPath: "out/body")
    func body() throws -> String { try String(contentsOfFile: folder + "/body", encoding: .utf8) }
    for urls in [[url], [fresh, url]] {
      let result = try tool.run(["get"] + urls + ["--output", folder + "/body", "--directory", tool.path("cache")])
      #expect(result.status == 1)
      #expect(try body() == "before")
    }
    // Writing through a symbolic link replaces its target and keeps the link.
    #expect(try tool.run("get", fresh, "--output", tool.path("link"), "--directory", tool.path("cache")).status == 0)
    #expect(try body() == "fresh\n")
    #expect(try FileManager.default.destinationOfSymbolicLink(atPath: tool.path("link")) == "out/body")
    #expect(try FileManager.default.contentsOfDirectory(atPath: folder) == ["body"])
    // A device is written in place.
    #expect(try tool.run("get", fresh, "--output", "/dev/null", "--directory", tool.path("cache")).status == 0)
  }

  @Test("--output writes a file")
  func output() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/fresh").absoluteString
    let result = try tool.run("get", url, url, "--output", tool.path("body"), "--directory", tool.path("cache"))
    #expect(result.output == "")
    #expect(try String(contentsOfFile: tool.path("body"), encoding: .utf8) == "fresh\nfresh\n")
    let failed = try tool.run("get", url, "--output", tool.path("no/body"), "--directory", tool.path("cache"))
    #expect(failed.status == 1)
    #expect(failed.errors == "urlcache get: \(tool.path("no/body")) cannot be written: No such file or directory.\n")
  }

  @Test("A URL that fails is reported in one line, and the others are fetched")
  func errors() throws {
    let origin = try origin()
    let tool = try Tool()
    let gone = origin.url("/gone").absoluteString
    origin.stop()
    let other = try self.origin()
    defer { other.stop() }
    let result = try tool.run(
      "get", "ftp://a.example/", "not a url", gone, other.url("/fresh").absoluteString, "--twice", "--directory",
      tool.path("cache"))
    #expect(result.status == 1)
    #expect(result.output == "fresh\n")
    let lines = result.errors.split(separator: "\n").map(String.init)
    try #require(lines.count == 5)
    #expect(lines[0] == "urlcache get: ftp://a.example/: This is not an http or https URL with a host.")
    #expect(lines[1] == "urlcache get: not a url: This is not an http or https URL with a host.")
    #expect(lines[2].hasPrefix("urlcache get: \(gone): The host does not accept the connection"))
    #expect(sources(lines[3] + "\n" + lines[4]) == ["200 miss fresh", "200 hit fresh"])
  }

  @Test("An unusable directory is an error, and no request is sent")
  func unusableDirectory() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/fresh").absoluteString
    try Data("x".utf8).write(to: URL(fileURLWithPath: tool.path("file")))
    for (directory, reason) in [
      (tool.path("file"), "a file has the name of the directory"),
      ("/proc/urlcache-test", "making the directory"),
      (tool.path("file/below"), "making the directory"),
    ] {
      let result = try tool.run("get", url, "--directory", directory)
      #expect(result.status == 1)
      #expect(result.output == "")
      #expect(result.errors.hasPrefix("urlcache get: Cannot use the response store at \(directory): \(reason)"))
      #expect(result.errors.filter { $0 == "\n" }.count == 1)
    }
    #expect(origin.requestCount == 0)
  }

  @Test("The data.mdb of another program is not changed")
  func foreignData() throws {
    let tool = try Tool()
    let directory = tool.path("foreign")
    try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
    let data = Data("not a store, and long enough to be looked at".utf8)
    try data.write(to: URL(fileURLWithPath: directory + "/data.mdb"))
    for _ in 0..<4 {
      let result = try tool.run("get", "http://127.0.0.1:1/", "--directory", directory)
      #expect(result.status == 1)
      #expect(result.errors.contains("and not a store of this library"))
    }
    #expect(try Data(contentsOf: URL(fileURLWithPath: directory + "/data.mdb")) == data)
  }

  @Test("A closed output pipe ends the tool silently with code 0, and the response is stored")
  func closedPipe() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let pipe = Pipe()
    try pipe.fileHandleForReading.close()
    let result = try tool.run(
      "get", origin.url("/large").absoluteString, "--directory", tool.path("cache"),
      output: pipe.fileHandleForWriting)
    #expect(result.status == 0)
    #expect(!result.wasKilled)
    #expect(result.errors == "")
    #expect(try tool.urls(in: tool.path("cache")).count == 1)
  }

  @Test("A failed write to standard output is an error")
  func fullOutput() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let full = try #require(FileHandle(forWritingAtPath: "/dev/full"))
    let result = try tool.run(
      "get", origin.url("/fresh").absoluteString, "--directory", tool.path("cache"), output: full)
    #expect(result.status == 1)
    #expect(result.errors == "urlcache get: Writing to standard output failed: No space left on device\n")
  }

  @Test("Killing the tool during a fetch leaves an intact directory and no part of its output", arguments: 1...3)
  func killed(round: Int) async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], body: Data(repeating: 65, count: 100_000))
      return request.path == "/held" ? reply.held(at: gate, afterBodyBytes: 50_000) : reply
    }
    defer { origin.stop() }
    let tool = try Tool()
    let urls = (0..<round).map { origin.url("/\($0)").absoluteString } + [origin.url("/held").absoluteString]
    let folder = tool.path("out")
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    let process = try tool.start(["get", "--directory", tool.path("cache"), "--output", folder + "/bodies"] + urls)
    #expect(await origin.waitForRequests(count: urls.count))
    kill(process.processIdentifier, SIGKILL)
    process.waitUntilExit()
    gate.open()
    #expect(try FileManager.default.contentsOfDirectory(atPath: folder) == [])
    let result = try tool.run("verify", tool.path("cache"))
    #expect(result.status == 0, "\(result.output)\(result.errors)")
    #expect(try !tool.urls(in: tool.path("cache")).contains { $0.hasSuffix("/held") })
  }
}
