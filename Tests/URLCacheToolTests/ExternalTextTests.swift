import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Testing

/// Text that others chose, such as URLs and fields, in output that may go to a terminal.
@Suite("External text")
struct ExternalTextTests {
  /// Characters that control terminals, that change the direction of text, and that have no width.
  private static let unprintable: [Unicode.Scalar] = {
    let single: [UInt32] = [0x07, 0x1B, 0x7F, 0x85, 0x9B, 0xAD, 0x61C, 0xFEFF, 0xFFF9, 0xE0041]
    let ranges: [ClosedRange<UInt32>] = [0x200B...0x200F, 0x2028...0x202E, 0x2060...0x2064, 0x2066...0x2069]
    return (single + ranges.joined()).compactMap { Unicode.Scalar($0) }
  }()
  private static let text = String(String.UnicodeScalarView(unprintable))
  /// The same text as it is printed.
  private static let visible = String(repeating: "?", count: unprintable.count)

  /// Stores a response under a key that Foundation's URLs cannot express.
  private func store(
    _ url: String, fields: [(String, String)] = [], vary: [(String, String?)] = [], in directory: String
  ) throws {
    let store = try ResponseStore.open(directory: directory, options: .init(capacityByteCount: 16 << 20))
    let key = try #require(RequestKey(urlString: url, partition: Self.text))
    let now = Date()
    let freshness = FreshnessInfo(responseTime: now, initialAge: 0, lifetime: 60, date: now)
    store.store(
      CacheableResponse(
        status: 200, fields: HeaderFields(fields), body: Data("body \(Self.text)\n".utf8), freshness: freshness,
        vary: VaryKey(fields: vary.map { .init(name: $0.0, value: $0.1) })),
      for: key)
    try store.flush()
    store.close()
  }

  private func expectPrintable(_ result: ToolResult, _ comment: Comment? = nil) {
    let found = (result.output + result.errors).unicodeScalars.filter {
      $0 != "\n" && ($0.value < 0x20 || Self.unprintable.contains($0))
    }
    #expect(found.isEmpty, comment)
  }

  @Test("Control, direction and format characters of stored URLs and fields do not reach the terminal")
  func storedText() throws {
    let tool = try Tool()
    let directory = tool.path("cache")
    let url = "http://a.example/\(Self.text)red/é"
    let fields = [("X-Title", Self.text), ("ETag", "\"\(Self.text)\""), ("Vary", "Accept-Language")]
    try store(url, fields: fields, vary: [("accept-language", Self.text)], in: directory)
    let request = [url, "--partition", Self.text, "--header", "Accept-Language: de"]
    let text = try tool.run(["show", directory] + request)
    #expect(text.status == 0)
    #expect(text.output.hasPrefix("http://a.example/\(Self.visible)red/é\n1 variant\n"))
    #expect(text.output.contains("    X-Title: \(Self.visible)\n"))
    expectPrintable(text)
    for command in [
      ["list"], ["list", "--json"], ["list", "--sort", "url"], ["stats", "--details"], ["stats", "--prometheus"],
      ["verify"], ["show"] + request + ["--json"], ["explain"] + request, ["explain"] + request + ["--json"],
      ["purge", "--all", "--dry-run"], ["purge", "--all", "--dry-run", "--json"], ["export", "--har", "-", "--bodies"],
      ["cat", "http://a.example/\(Self.text)"], ["purge", "--prefix", url, "--soft"], ["purges"], ["purges", "--json"],
    ] {
      expectPrintable(try tool.run([command[0], directory] + command.dropFirst()), "\(command)")
    }
    #expect(try tool.run(["show", directory] + request + ["--json"]).json()["url"] as? String == url)
    #expect(try tool.urls(in: directory) == [url])
    let archive = try tool.run("export", directory, "--har", "-", "--bodies").json()["log"] as? [String: Any]
    let entry = try #require((archive?["entries"] as? [[String: Any]])?.first)
    #expect((entry["request"] as? [String: Any])?["url"] as? String == url)
    #expect(entry["_partition"] as? String == Self.text)
    let content = (entry["response"] as? [String: Any])?["content"] as? [String: Any]
    #expect(content?["text"] as? String == "body \(Self.text)\n")
  }

  @Test(
    "Control characters in the path of a directory do not reach the terminal", arguments: ["stats", "verify", "show"])
  func path(command: String) throws {
    let tool = try Tool()
    for name in ["cache\u{1b}[31m\u{202e}", "missing\u{9b}31m\u{2066}"] {
      let directory = tool.path(name)
      if name.hasPrefix("cache") { try store("http://a.example/", in: directory) }
      let request = command == "show" ? ["http://a.example/", "--partition", Self.text] : []
      let result = try tool.run([command, directory] + request)
      #expect(result.status == (name.hasPrefix("cache") ? 0 : 1))
      expectPrintable(result)
    }
  }

  @Test(
    "Control characters in the scope of a purge do not reach the terminal",
    arguments: [
      ["--host", "a\u{9b}31m\u{200b}"], ["--prefix", "http://a/\u{1b}[31m\u{202e}"],
      ["--group", "\u{1b}\u{2067}", "--origin", "http://a/"],
    ])
  func scope(_ scope: [String]) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://b/")])
    for result in [
      try tool.run(["purge", directory, "--dry-run"] + scope), try tool.run(["purge", directory] + scope),
    ] {
      // No host contains a control character.
      #expect(result.status == (scope[0] == "--host" ? 2 : 0))
      expectPrintable(result)
    }
  }

  @Test("Control characters of arguments and lists do not reach the terminal")
  func commandLine() throws {
    let tool = try Tool()
    let list = tool.path("urls")
    try Data("no URL \(Self.text)\n".utf8).write(to: URL(fileURLWithPath: list))
    let warm = try tool.run("warm", list, "--directory", tool.path("cache"))
    #expect(warm.status == 1)
    #expect(warm.errors.contains("urlcache warm: no URL "))
    expectPrintable(warm)
    expectPrintable(try tool.run("get", "no URL \(Self.text)", "--directory", tool.path("cache")))
    let listed = try tool.run("list", try tool.makeCache([]), "--host", Self.text)
    #expect(listed.errors.hasPrefix("urlcache list: --host takes one host alone"))
    expectPrintable(listed)
    expectPrintable(try tool.run("get", "http://a/", "--header", Self.text))
    expectPrintable(try tool.run(Self.text))
  }
}
