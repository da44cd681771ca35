import Foundation
import LMDBURLCache
import LoopbackOrigin
import Testing

/// The tool on the directory of a program, whose cache is private or shared.
@Suite("urlcache and the mode of a cache")
struct ModeCommandTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin {
      let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")]
      return $0["If-None-Match"] == nil ? Reply(200, fields, "body of \($0.path)") : Reply(304, fields)
    }
  }

  /// Loads a URL in a program with a cache of this mode, and returns the source of the response.
  private func load(_ url: URL, _ directory: String, shared: Bool) async throws -> ResponseSource {
    var options = LMDBURLCache.Options()
    if shared { options.caching.mode = .shared }
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: 0, diskCapacity: 20 << 20, options: options)
    let source = try await cache.load(URLRequest(url: url)).source
    #expect(cache.flush())
    return source
  }

  private func explain(_ url: URL, _ directory: String, _ tool: Tool, _ arguments: String...) throws -> [String?] {
    let json = try tool.run(["explain", directory, url.absoluteString, "--json"] + arguments).json()
    return [json["mode"], json["outcome"]].map { $0 as? String }
  }

  @Test("get, warm and explain use the mode of the program that opened the directory last", arguments: [true, false])
  func recorded(isShared: Bool) async throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    let (url, warmed) = (origin.url("/a"), origin.url("/b"))
    let (own, other) = isShared ? ("shared", "private") : ("private", "shared")
    // An earlier program had the other mode.
    #expect(try await load(origin.url("/c"), directory, shared: !isShared) == .miss)
    #expect(try await load(url, directory, shared: isShared) == .miss)
    #expect(try explain(url, directory, tool) == [own, "hit"])
    #expect(try tool.run("get", url.absoluteString, "--directory", directory).errors.hasPrefix("200  hit "))
    let list = tool.path("list")
    try Data(warmed.absoluteString.utf8).write(to: URL(fileURLWithPath: list))
    #expect(try tool.run("warm", list, "--directory", directory).status == 0)
    #expect(try explain(warmed, directory, tool) == [own, "hit"])
    for url in [url, warmed] { #expect(try await load(url, directory, shared: isShared) == .hit) }
    // An option wins, and records nothing.
    #expect(try explain(url, directory, tool, "--\(other)") == [other, "validate"])
    let changed = try tool.run("get", url.absoluteString, "--directory", directory, "--\(other)")
    #expect(changed.errors.hasPrefix("200  revalidated "))
    #expect(try explain(url, directory, tool) == [own, "validate"])
    #expect(try await load(url, directory, shared: isShared) == .revalidated)
    #expect(try tool.run("explain", directory, url.absoluteString, "--shared", "--private").status == 2)
  }

  @Test("A directory without a program has a private cache")
  func withoutProgram() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let url = origin.url("/a")
    #expect(try tool.run("get", url.absoluteString, "--directory", tool.path("cache"), "--shared").status == 0)
    #expect(try explain(url, tool.path("cache"), tool) == ["private", "validate"])
    #expect(try explain(url, tool.path("cache"), tool, "--shared") == ["shared", "hit"])
  }
}
