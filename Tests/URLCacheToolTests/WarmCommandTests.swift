import Foundation
import Glibc
import LoopbackOrigin
import Synchronization
import Testing

@Suite("urlcache warm")
struct WarmCommandTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      switch request.path {
      case "/secret": Reply(200, [("Cache-Control", "no-store")], "secret")
      case "/missing": Reply(404, [("Cache-Control", "max-age=60")], "nothing")
      case "/language":
        Reply(
          200, [("Cache-Control", "max-age=600"), ("Vary", "Accept-Language")], request["Accept-Language"] ?? "none")
      default: Reply(200, [("Cache-Control", "max-age=600")], "body of \(request.path)")
      }
    }
  }

  private func write(_ text: String, _ tool: Tool, _ name: String = "input") throws -> String {
    try Data(text.utf8).write(to: URL(fileURLWithPath: tool.path(name)))
    return tool.path(name)
  }

  @Test("A list is fetched once; a second run finds everything fresh")
  func list() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let paths = (0..<20).map { "/page/\($0)" } + ["/secret", "/missing"]
    let lines = ["# comment", ""] + paths.map { origin.url($0).absoluteString + "\r" }
    let file = try write(lines.joined(separator: "\n"), tool)
    let first = try tool.run("warm", file, "--directory", tool.path("cache"), "--jobs", "4")
    #expect(first.errors == "")
    #expect(first.status == 0)
    #expect(first.output.hasPrefix("Warmed 22 URLs of 22 in "))
    #expect(first.output.contains(/\n {2}Stored {8}21 {2}\d+ B fetched\n/))
    #expect(first.output.contains(/\n {2}Not stored {5}1 {2}no-store\ 1\n/))
    #expect(first.output.contains(/\n {2}Error status {3}1 {2}among the others\n/))
    #expect(origin.requestCount == 22)
    #expect(try tool.urls(in: tool.path("cache")).count == 21)
    let second = try tool.run("warm", file, "--directory", tool.path("cache"), "--json").json()
    #expect(second["freshCount"] as? Int == 21)
    #expect(second["notStoredCount"] as? Int == 1)
    #expect(second["resumedCount"] as? Int == 0)
    #expect(second["isComplete"] as? Bool == true)
    #expect(origin.requestCount == 23)
    #expect(try tool.run("verify", tool.path("cache")).status == 0)
  }

  @Test("A sitemap's locations are fetched, with entities decoded")
  func sitemap() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/page?a=1").absoluteString
    let file = try write(
      """
      <?xml version="1.0" encoding="UTF-8"?>
      <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="http://example.com/image">
        <url><loc> \(url)&amp;b=2 </loc><lastmod>2026-01-01</lastmod>
          <image:image><image:loc>http://127.0.0.1:1/image</image:loc></image:image></url>
        <url><loc><![CDATA[\(url)&c=3]]></loc></url>
      </urlset>
      """, tool)
    let result = try tool.run("warm", file, "--directory", tool.path("cache"))
    #expect(result.errors == "")
    #expect(result.status == 0)
    #expect(Set(try tool.urls(in: tool.path("cache"))) == ["\(url)&b=2", "\(url)&c=3"])
  }

  @Test("The GET requests of a HAR file are sent with their fields, without credentials and conditions")
  func har() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    func entry(_ method: String, _ url: String) -> String {
      """
      {"startedDateTime": "2026-01-01T00:00:00Z", "time": 1, "request": {"method": "\(method)", "url": "\(url)",
        "headers": [{"name": "Accept-Language", "value": "de"}, {"name": "Cookie", "value": "id=1"},
          {"name": "If-None-Match", "value": "x"}, {"name": "Authorization", "value": "Basic eA=="},
          {"name": "X-API-KEY (Header)", "value": "x"}, {"name": "", "value": "x"},
          {"name": "X-Lines", "value": "a\\nb"}]}, "response": {}}
      """
    }
    let url = origin.url("/language").absoluteString
    let entries = [entry("GET", url), entry("POST", url), entry("GET", "data:,x")].joined(separator: ",")
    let file = try write("\u{FEFF}{\"log\": {\"version\": \"1.2\", \"entries\": [\(entries)]}}", tool)
    let result = try tool.run("warm", file, "--directory", tool.path("cache"), "--json")
    #expect(result.status == 0)
    #expect(try result.json()["skippedCount"] as? Int == 2)
    let request = try #require(origin.requests.first)
    #expect(origin.requestCount == 1)
    #expect(request["Accept-Language"] == "de")
    for name in ["Cookie", "If-None-Match", "Authorization", "X-API-KEY (Header)", "X-API-KEY", "", "X-Lines"] {
      #expect(request[name] == nil, "\(name)")
    }
    let cat = try tool.run("cat", tool.path("cache"), url, "--header", "Accept-Language: de")
    #expect(cat.output == "de")
  }

  @Test(
    "An input that is cut or of another kind is an error before the first request, and makes no cache",
    arguments: [
      ("{\"log\": {\"entries\": [{\"request\": {\"method\": \"GET\", \"ur", "is not a complete HAR file: it is not"),
      (
        "{\"log\": {\"entries\": [{\"request\": {\"method\": \"GET\"}}]}}",
        "is not a complete HAR file: 'url' is missing."
      ),
      ("{\"log\": {\"version\": \"1.2\"}}", "is not a complete HAR file: 'entries' is missing."),
      ("{\"log\": {\"entries\": []}}]", "is not a complete HAR file: it is not valid JSON."),
      (
        "<urlset><url><loc>http://127.0.0.1:1/</loc></url><url><lo",
        "is not a complete sitemap: the XML is not valid, or ends, in line 1"
      ),
      (
        "<!DOCTYPE urlset [<!ENTITY a \"b\">]><urlset><url><loc>http://127.0.0.1:1/&a;</loc></url></urlset>",
        "declares XML entities"
      ),
      (
        "<!DOCTYPE urlset [<!ENTITY a SYSTEM \"/etc/hostname\">]><urlset><url><loc>http://127.0.0.1:1/&a;</loc></url></urlset>",
        "declares XML entities"
      ),
      ("<html></html>", "is no sitemap: its root element is 'html'"),
      (String(repeating: "x", count: 600_000), "is not a list of URLs: a line has more than 64 KiB."),
      ("\u{1F}", ""),
    ])
  func badInput(text: String, message: String) throws {
    let tool = try Tool()
    let file = try write(text, tool)
    if message.isEmpty {
      let compressed = try compressed("http://127.0.0.1:1/")
      try compressed.prefix(compressed.count - 5).write(to: URL(fileURLWithPath: file))
    }
    let result = try tool.run("warm", file, "--directory", tool.path("cache"))
    #expect(result.status == 1)
    #expect(result.output == "")
    #expect(result.errors.hasPrefix("urlcache warm: \(file) "))
    #expect(result.errors.contains(message.isEmpty ? "is not a complete gzip file." : message))
    #expect(!FileManager.default.fileExists(atPath: tool.path("cache")))
    let missing = try tool.run("warm", tool.path("none"), "--directory", tool.path("cache"))
    #expect(missing.errors == "urlcache warm: \(tool.path("none")) does not exist.\n")
    #expect(missing.status == 1)
  }

  /// Returns a gzip file with a text.
  private func compressed(_ text: String) throws -> Data {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/bin/gzip")
    let (input, output) = (Pipe(), Pipe())
    (process.standardInput, process.standardOutput) = (input, output)
    try process.run()
    try input.fileHandleForWriting.write(contentsOf: Data(text.utf8))
    try input.fileHandleForWriting.close()
    let data = try output.fileHandleForReading.readToEnd() ?? Data()
    process.waitUntilExit()
    return data
  }

  @Test("A gzip file that expands to gigabytes is refused at once", arguments: ["\n"])
  func gzipBomb(_ unit: String) throws {
    let tool = try Tool()
    let file = tool.path("input.gz")
    // A named pipe, because its writer shows whether the rest was read.
    #expect(mkfifo(file, 0o600) == 0)
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/bin/bash")
    process.arguments = [
      "-c", "yes \"$1\" | head -c 2G | gzip -1 > \"$2\"; echo ${PIPESTATUS[2]}", "bash", String(unit.dropLast()), file,
    ]
    let output = Pipe()
    process.standardOutput = output
    process.standardError = FileHandle.nullDevice
    try process.run()
    let result = try tool.run("warm", file, "--directory", tool.path("cache"))
    #expect(result.status == 1)
    #expect(result.errors.contains("expands to more than 100 times its size"))
    // A pipe without a reader has ended gzip: by a signal or, if the signal is ignored, with a status of its release.
    let status = String(decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    #expect(["141\n", "1\n", "2\n"].contains(status))
    process.waitUntilExit()
    #expect(!FileManager.default.fileExists(atPath: tool.path("cache")))
  }

  @Test("Each form can be a gzip file")
  func gzip() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let urls = (0..<3).map { origin.url("/page/\($0)").absoluteString }
    let texts = [
      urls[0] + "\n", "<urlset><url><loc>\(urls[1])</loc></url></urlset>",
      "{\"log\": {\"entries\": [{\"request\": {\"method\": \"GET\", \"url\": \"\(urls[2])\", \"headers\": []}}]}}",
    ]
    for text in texts {
      let file = tool.path("input.gz")
      try compressed(text).write(to: URL(fileURLWithPath: file))
      let result = try tool.run("warm", file, "--directory", tool.path("cache"))
      #expect(result.errors == "")
      #expect(result.output.hasPrefix("Warmed 1 URL of 1 in "))
    }
    #expect(Set(try tool.urls(in: tool.path("cache"))) == Set(urls))
  }

  @Test("The sitemaps of an index are fetched through the cache, compressed ones too, and then their URLs")
  func sitemapIndex() throws {
    let packed = Mutex(Data())
    let origin = try LoopbackOrigin { request in
      let fields = [("Cache-Control", "max-age=600")]
      switch request.path {
      case "/first.xml":
        return Reply(200, fields, "<urlset><url><loc>http://\(request["Host"] ?? "")/page/1</loc></url></urlset>")
      case "/second.xml.gz": return Reply(200, fields, body: packed.withLock { $0 })
      case "/nested.xml": return Reply(200, fields, "<sitemapindex></sitemapindex>")
      case "/missing.xml": return Reply(404, [], "nothing")
      default: return Reply(200, fields, "page")
      }
    }
    defer { origin.stop() }
    let content = try compressed("<urlset><url><loc>\(origin.url("/page/2").absoluteString)</loc></url></urlset>")
    packed.withLock { $0 = content }
    let tool = try Tool()
    func index(_ names: String...) throws -> String {
      let sitemaps = names.map { "<sitemap><loc>\(origin.url($0).absoluteString)</loc></sitemap>" }
      return try write("<sitemapindex>\(sitemaps.joined())</sitemapindex>", tool)
    }
    let arguments = ["--directory", tool.path("cache")]
    let result = try tool.run(["warm", index("/first.xml", "/second.xml.gz")] + arguments)
    #expect(result.errors == "")
    #expect(result.output.hasPrefix("Warmed 2 URLs of 2 in "))
    // Several jobs fetch the pages, in any order.
    let paths = origin.requests.map(\.path)
    #expect(
      paths.prefix(2) == ["/first.xml", "/second.xml.gz"] && paths.dropFirst(2).sorted() == ["/page/1", "/page/2"])
    let nested = try tool.run(["warm", index("/nested.xml")] + arguments)
    #expect(nested.status == 1)
    #expect(nested.errors.contains("/nested.xml is an index itself, which the protocol of sitemaps forbids.\n"))
    // No page was fetched again.
    #expect(origin.requests.filter { $0.path.hasPrefix("/page") }.count == 2)
  }

  @Test("A sitemap of an index that cannot be read is a failure, and the URLs of the others are fetched")
  func missingSitemap() throws {
    let origin = try LoopbackOrigin { request in
      let fields = [("Cache-Control", "max-age=600")]
      return switch request.path {
      case "/first.xml":
        Reply(200, fields, "<urlset><url><loc>http://\(request["Host"] ?? "")/page/1</loc></url></urlset>")
      case "/invalid.xml": Reply(200, fields, "<urlset><url>")
      case "/missing.xml": Reply(404, [], "nothing")
      default: Reply(200, fields, "page")
      }
    }
    defer { origin.stop() }
    let tool = try Tool()
    let urls = ["/missing.xml", "/invalid.xml", "/first.xml"].map { origin.url($0).absoluteString }
    let index = try write(
      "<sitemapindex>\(urls.map { "<sitemap><loc>\($0)</loc></sitemap>" }.joined())</sitemapindex>", tool)
    let arguments = ["warm", index, "--directory", tool.path("cache")]
    let result = try tool.run(arguments)
    #expect(result.status == 1)
    #expect(result.output.hasPrefix("Warmed 1 URL of 1 in "))
    #expect(result.output.contains(/\n {2}Unread sitemaps\ +2\n/))
    #expect(
      result.errors.hasPrefix("urlcache warm: The sitemap \(urls[0]) cannot be fetched: status 404.\n"), "\(result)")
    #expect(result.errors.contains("/invalid.xml is not a complete sitemap"))
    #expect(origin.requests.contains { $0.path == "/page/1" })
    #expect(try tool.run(arguments + ["--allow-failures", "1"]).status == 1)
    let allowed = try tool.run(arguments + ["--allow-failures", "2", "--json"])
    #expect(allowed.status == 0)
    #expect(try allowed.json()["failedSitemapCount"] as? Int == 2)
    #expect(try allowed.json()["freshCount"] as? Int == 1)
  }

  @Test("Failures of URLs within --allow-failures are no failure of the run")
  func allowedFailures() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let file = try write("http://127.0.0.1:1/\nx:\n\(origin.url("/page").absoluteString)\n", tool)
    let arguments = ["warm", file, "--directory", tool.path("cache"), "--allow-failures"]
    #expect(try tool.run(arguments + ["1"]).status == 1)
    #expect(try tool.run(arguments + ["2"]).status == 0)
    #expect(try tool.run(arguments + ["-1"]).status == 2)
  }

  @Test("A sitemap of 50,000 URLs is read, and each failure counts")
  func manyURLs() throws {
    let tool = try Tool()
    let locations = (0..<50_000).map { "<url><loc>ftp://a.example/\($0)</loc></url>" }.joined()
    let file = try write("<urlset>\(locations)</urlset>", tool)
    let result = try tool.run("warm", file, "--directory", tool.path("cache"), "--json")
    #expect(result.status == 1)
    #expect(try result.json()["failedCount"] as? Int == 50_000)
    #expect(try result.json()["isComplete"] as? Bool == true)
    let lines = result.errors.split(separator: "\n")
    #expect(lines.count == 21)
    #expect(lines.last == "urlcache warm: 49,980 more failed.")
  }

  @Test("A failed URL is named without control characters, and the others are fetched")
  func failures() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let file = try write("http://127.0.0.1:1/\nnot a \u{1B}[31m URL\n\(origin.url("/page").absoluteString)\n", tool)
    let result = try tool.run("warm", file, "--directory", tool.path("cache"), "--jobs", "1")
    #expect(result.status == 1)
    #expect(result.errors.contains("urlcache warm: http://127.0.0.1:1/: The host does not accept the connection"))
    #expect(result.errors.contains("urlcache warm: not a ?[31m URL: This is not an http or https URL with a host.\n"))
    #expect(try tool.urls(in: tool.path("cache")) == [origin.url("/page").absoluteString])
  }

  @Test("A stale response in place of an error, and a forbidden fetch, are failures with a reason")
  func staleAndForbidden() throws {
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=0, stale-if-error=600"), ("ETag", "\"1\"")], "body")
    }
    let tool = try Tool()
    let url = origin.url("/page").absoluteString
    let arguments = ["warm", try write(url, tool), "--directory", tool.path("cache")]
    #expect(try tool.run(arguments).status == 0)
    origin.stop()
    let stale = try tool.run(arguments)
    #expect(stale.status == 1)
    #expect(stale.errors == "urlcache warm: \(url): The origin failed; a stale response was served.\n")
    #expect(stale.output.contains(/\n {2}Failed\ +1\n/))
    let forbidden = try tool.run(
      "warm", try write(url + "/other", tool), "--directory", tool.path("cache"), "--header",
      "Cache-Control: only-if-cached")
    #expect(forbidden.status == 1)
    #expect(
      forbidden.errors == "urlcache warm: \(url)/other: No response is stored, and the request forbids a fetch.\n")
  }

  @Test("A long URL that fails is cut in its line")
  func longURL() throws {
    let tool = try Tool()
    let file = try write("x:" + String(repeating: "é", count: 1000) + "\n", tool)
    let result = try tool.run("warm", file, "--directory", tool.path("cache"))
    let start = "x:" + String(repeating: "é", count: 198)
    #expect(result.errors == "urlcache warm: \(start)…: This is not an http or https URL with a host.\n")
  }

  @Test("An interrupted run prints a summary, and the next one resumes")
  func interruption() async throws {
    let tool = try Tool()
    let gate = Gate()
    let origin = try LoopbackOrigin { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "body")
      return request.path == "/page/5" ? reply.held(at: gate) : reply
    }
    defer { origin.stop() }
    let urls = (0..<10).map { origin.url("/page/\($0)").absoluteString }
    let file = try write(urls.joined(separator: "\n"), tool)
    let arguments = ["warm", file, "--directory", tool.path("cache"), "--jobs", "1"]
    let (output, errors) = (Pipe(), Pipe())
    let process = try tool.start(arguments, standardOutput: output, standardError: errors)
    await gate.waitForArrivals(count: 1)
    kill(process.processIdentifier, SIGINT)
    process.waitUntilExit()
    gate.open()
    #expect(process.terminationReason == .exit)
    #expect(process.terminationStatus == 1)
    let text = String(decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    #expect(text.hasPrefix("Warmed 5 URLs of 10 in "))
    let lines = String(decoding: try errors.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    #expect(lines == "urlcache warm: Interrupted. The same command resumes.\n")
    // Other fields can select other responses. This run has a position of its own.
    let other = try tool.run(arguments + ["--header", "X-Kind: b"])
    #expect(other.output.hasPrefix("Warmed 10 URLs of 10 in "))
    #expect(other.errors == "")
    let before = origin.requestCount
    let resumed = try tool.run(arguments)
    #expect(resumed.status == 0)
    #expect(resumed.errors == "urlcache warm: Resuming after 5 of 10 URLs. --restart begins with the first.\n")
    #expect(resumed.output.hasPrefix("Warmed 5 URLs of 5 in "))
    #expect(resumed.output.contains("\n5 were done by an earlier run.\n"))
    #expect(origin.requestCount == before)
    #expect(try tool.urls(in: tool.path("cache")).count == 10)
    // A complete run leaves nothing to resume.
    #expect(try tool.run(arguments).output.hasPrefix("Warmed 10 URLs of 10 in "))
  }

  @Test("--jobs requests are under way at a time")
  func jobs() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body").held(at: gate)
    }
    defer { origin.stop() }
    let tool = try Tool()
    let file = try write((0..<20).map { origin.url("/\($0)").absoluteString }.joined(separator: "\n"), tool)
    let process = try tool.start(["warm", file, "--directory", tool.path("cache"), "--jobs", "3"])
    await gate.waitForArrivals(count: 3)
    #expect(origin.requestCount == 3)
    gate.open()
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    #expect(origin.requestCount == 20)
    let wrong = try tool.run("warm", file, "--jobs", "0")
    #expect(wrong.status == 2)
    #expect(wrong.errors.hasPrefix("urlcache warm: --jobs takes a number from 1 to 256, not '0'\n"))
  }

  @Test("--rate limits how many requests begin in a second")
  func rate() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let file = try write((0..<40).map { origin.url("/\($0)").absoluteString }.joined(separator: "\n"), tool)
    let json = try tool.run("warm", file, "--directory", tool.path("cache"), "--rate", "80", "--json").json()
    // The last of 40 begins after 39 intervals.
    #expect(try #require(json["seconds"] as? Double) >= 39.0 / 80)
  }
}
