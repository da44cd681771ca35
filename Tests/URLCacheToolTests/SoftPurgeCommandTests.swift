import Foundation
import LoopbackOrigin
import Testing
import urlcache

@Suite("urlcache purge --soft")
struct SoftPurgeCommandTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=600")]
      return request["If-None-Match"] == nil ? Reply(200, fields, "body\n") : Reply(304, fields)
    }
  }

  @Test("Covered responses are kept, are stale, and are validated once before they are served")
  func validated() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    let urls = ["/a", "/b"].map { origin.url($0).absoluteString }
    func sources() throws -> [Substring] {
      let result = try tool.run(["get", "--directory", directory] + urls)
      #expect(result.output == "body\nbody\n")
      return result.errors.split(separator: "\n").map { $0.split(separator: " ")[1] }
    }
    #expect(try sources() == ["miss", "miss"])
    #expect(try sources() == ["hit", "hit"])
    let result = try tool.run("purge", directory, "--prefix", urls[0], "--soft")
    #expect(result.status == 0)
    #expect(
      result.output == "Marked as stale URLs that begin with \(urls[0]): 1 response (5 B). 1 response unchanged.\n")
    let details = try tool.run("stats", directory, "--details", "--json").json()
    #expect(details["freshCount"] as? Int == 1 && details["staleCount"] as? Int == 1)
    #expect(try tool.run("verify", directory).status == 0)
    #expect(try sources() == ["revalidated", "hit"])
    #expect(try sources() == ["hit", "hit"])
    let single = try tool.run("purge", directory, "--url", urls[1], "--soft")
    #expect(single.output == "Marked as stale responses of \(urls[1]): 1 response (5 B). 1 response unchanged.\n")
    #expect(try sources() == ["hit", "revalidated"])
    let json = try tool.run("purge", directory, "--all", "--soft", "--json").json()
    #expect(json["staleCount"] as? Int == 2 && json["staleBodyByteCount"] as? Int == 10)
    #expect(json["keptCount"] as? Int == 0 && json["removedCount"] == nil)
    #expect(try sources() == ["revalidated", "revalidated"])
  }

  @Test("Soft purges of many responses keep them, and stay in effect until a cache marks the responses")
  func many() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(count: 1000)
    for _ in 0..<3 { #expect(try tool.run("purge", directory, "--host", "a.example", "--soft").status == 0) }
    let json = try tool.run("stats", directory, "--json").json()
    #expect(json["entryCount"] as? Int == 1000 && json["pendingPurgeCount"] as? Int == 3)
    #expect(try tool.run("verify", directory).status == 0)
  }

  @Test("A directory without a cache is an error, and nothing is created")
  func missing() throws {
    let tool = try Tool()
    #expect(try tool.run("purge", tool.path("none"), "--all", "--soft").status == 1)
    #expect(!FileManager.default.fileExists(atPath: tool.path("none")))
  }
}
