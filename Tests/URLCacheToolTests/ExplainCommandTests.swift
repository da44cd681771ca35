import Foundation
import LMDBURLCache
import LoopbackOrigin
import Testing

/// `urlcache explain`. `ExplanationTests` compare the explanations with what then happens.
@Suite("urlcache explain")
struct ExplainCommandTests {
  private static let url = "http://a.example/page"
  /// The cases are stored now, because `explain` decides for the present.
  private static func stored(_ fields: [String: String]) -> Tool.Stored {
    Tool.Stored(url: url, delay: Date().timeIntervalSince(Tool.epoch), fields: fields)
  }

  private func explain(
    _ stored: [Tool.Stored], _ arguments: String...
  ) throws -> (text: String, json: [String: Any]) {
    let tool = try Tool()
    let directory = try tool.makeCache(stored)
    let text = try tool.run(["explain", directory, Self.url] + arguments)
    #expect(text.errors == "")
    #expect(text.status == 0)
    return (text.output, try tool.run(["explain", directory, Self.url, "--json"] + arguments).json())
  }

  private func outcome(_ json: [String: Any]) -> [String?] {
    [json["outcome"] as? String, (json["rule"] as? [String: String])?["id"]]
  }

  @Test("A fresh response is a hit, and the last check compares age and lifetime")
  func fresh() throws {
    let (text, json) = try explain([Self.stored(["Cache-Control": "max-age=86400"])])
    let lines = text.split(separator: "\n").map(String.init)
    try #require(lines.count > 8)
    #expect(lines[0] == "GET \(Self.url)")
    #expect(lines[1] == "Result    answered from the cache with status 200, fresh; the origin is not asked")
    #expect(lines[2] == "Rule      fresh (RFC 9111 4.2): the stored response is fresh")
    #expect(lines[3] == "Stored    1 variant")
    #expect(lines[5] == "Checks")
    #expect(lines[6] == "  no   write-through      RFC 9111 4        method GET")
    #expect(text.contains(/\n {2}yes {2}fresh {14}RFC 9111 4\.2 {6}age \d+(\.\d)? s, lifetime 1 d\n/))
    #expect(outcome(json) == ["hit", "fresh"])
    let checks = try #require(json["checks"] as? [[String: Any]])
    #expect(checks.last { $0["applies"] as? Bool == true }?["rule"] as? String == "fresh")
  }

  @Test("A stale response with a validator is validated, or used if the origin fails")
  func stale() throws {
    let stored = Self.stored(["Cache-Control": "max-age=0, stale-if-error=600", "ETag": "\"1\""])
    let (text, json) = try explain([stored])
    #expect(text.contains("\nSent      If-None-Match: \"1\"\n"))
    #expect(text.contains("\nOn error  the stored response, error: until "))
    #expect(outcome(json) == ["validate", "stale"])
    #expect(json["sent"] as? [String: String] == ["If-None-Match": "\"1\""])
    #expect(json["staleAfterErrorUntil"] is String)
  }

  @Test("Header fields, policy and mode change the decision")
  func request() throws {
    let stored = [Self.stored(["Cache-Control": "max-age=86400", "Vary": "Accept", "ETag": "\"1\""])]
    #expect(outcome(try explain(stored, "--policy", "reload").json) == ["fetch", "reload"])
    #expect(outcome(try explain(stored, "--policy", "revalidate").json) == ["validate", "revalidate"])
    #expect(
      outcome(try explain(stored, "--header", "Cache-Control: no-cache").json) == ["validate", "request-no-cache"])
    #expect(outcome(try explain(stored, "--shared").json) == ["validate", "mode-changed"])
    #expect(outcome(try explain(stored, "--method", "POST").json) == ["bypass", "write-through"])
    #expect(outcome(try explain(stored, "--header", "If-None-Match: \"1\"").json) == ["hit", "client-is-current"])
    let (text, json) = try explain(stored, "--header", "Accept: text/html", "--policy", "only-cache")
    #expect(outcome(json) == ["unavailable", "do-not-load"])
    #expect(text.contains("\nStored  1 variant, with the request fields accept; none matches the request\n"))
    #expect(json["selected"] is NSNull)
  }

  @Test("A no-cache response for a policy that accepts any age is stale within its lifetime, as in the cache")
  func noCacheAtAnyAge() throws {
    let stored = [Self.stored(["Cache-Control": "max-age=86400, no-cache"])]
    let (text, json) = try explain(stored, "--policy", "prefer-cache")
    #expect(outcome(json) == ["stale", "any-age"])
    #expect(text.contains("\nResult    answered from the cache with status 200, stale; the origin is not asked\n"))
  }

  @Test("A range takes a part of the stored body, several ranges get the whole one", arguments: [true, false])
  func ranges(isOne: Bool) throws {
    let range = isOne ? "bytes=0-1" : "bytes=0-1,3-4"
    let (text, json) = try explain([Self.stored(["Cache-Control": "max-age=86400"])], "--header", "Range: \(range)")
    #expect(outcome(json) == ["hit", isOne ? "range" : "fresh"])
    let checks = try #require(json["checks"] as? [[String: Any]])
    #expect(checks.last { $0["applies"] as? Bool == true }?["rule"] as? String == (isOne ? "range" : "fresh"))
    #expect(text.contains("with status \(isOne ? 206 : 200), fresh"))
  }

  @Test("For a URL without a stored response, explain says so")
  func miss() throws {
    let (text, json) = try explain([Tool.Stored(url: "http://b.example/")])
    #expect(text.contains("\nResult  a miss, from the origin\nRule    miss (RFC 9111 4): nothing suitable is stored\n"))
    #expect(text.contains("\nStored  nothing for this URL; no refusal to store is recorded\n"))
    #expect(json["refused"] is NSNull)
    #expect(outcome(json) == ["fetch", "miss"])
    #expect(json["variantCount"] as? Int == 0)
  }

  @Test("For a URL that is not stored, explain names the rule by which the last response was refused, and its time")
  func refusal() throws {
    let origin = try LoopbackOrigin { request in
      switch request.path {
      case "/secret": Reply(200, [("Cache-Control", "no-store")], "secret")
      case "/star": Reply(200, [("Cache-Control", "max-age=60"), ("Vary", "*")], "star")
      default: Reply(200, [("Cache-Control", "max-age=60")], "page")
      }
    }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    let start = Date()
    let urls = ["/secret", "/star", "/page"].map { origin.url($0).absoluteString }
    _ = try tool.run(["get"] + urls + ["--directory", directory])
    let rules = [
      "no-store (RFC 9111 5.2.2.5): the response says no-store", "vary-star (RFC 9111 4.1): Vary matches no request",
    ]
    for (url, rule) in zip(urls, rules) {
      let text = try tool.run("explain", directory, url).output
      #expect(text.contains("\nStored   nothing for this URL\nRefused  20"))
      #expect(text.contains(", \(rule)\n"))
      let refused = try #require(try tool.run("explain", directory, url, "--json").json()["refused"] as? [String: Any])
      #expect((refused["rule"] as? [String: String])?["id"].map { rule.hasPrefix($0 + " (RFC ") } == true)
      let time = try #require(
        try (refused["time"] as? String).map {
          try Date($0, strategy: Date.ISO8601FormatStyle(includingFractionalSeconds: true))
        })
      // The time is in whole seconds.
      #expect(time > start - 2 && time <= Date())
    }
    let stored = try tool.run("explain", directory, urls[2], "--json").json()
    #expect(stored["refused"] is NSNull)
    #expect(outcome(stored) == ["hit", "fresh"])
    // A removed response was not refused.
    _ = try tool.run("purge", directory, "--all")
    #expect(try tool.run("explain", directory, urls[2], "--json").json()["refused"] is NSNull)
  }

  @Test("For a URL that is kept in memory only, explain says so")
  func memoryOnly() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=60")], "page") }
    defer { origin.stop() }
    let tool = try Tool()
    let directory = tool.path("cache")
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    // Below the minimum interval of 300 seconds, and without a validator.
    _ = try await cache.data(from: origin.url("/page"))
    cache.flush()
    let text = try tool.run("explain", directory, origin.url("/page").absoluteString).output
    #expect(text.contains("\nStored   nothing for this URL\n"))
    #expect(text.contains(", memory-only (RFC 9111 3): kept in memory only"))
  }

  @Test("A text that is no URL is a usage error, and a missing directory a failure")
  func badInput() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Self.stored([:])])
    let relative = try tool.run("explain", directory, "a\u{1B}b")
    #expect(relative.status == 2)
    #expect(relative.errors.hasPrefix("urlcache explain: 'a?b' is not an http or https URL with a host\n"))
    let missing = try tool.run("explain", tool.path("missing"), Self.url)
    #expect(missing.status == 1)
    #expect(!FileManager.default.fileExists(atPath: tool.path("missing")))
  }
}
