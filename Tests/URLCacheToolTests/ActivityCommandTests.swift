import Foundation
import LoopbackOrigin
import ResponseStore
import Testing

@Suite("Activity of a directory")
struct ActivityCommandTests {
  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      switch request.path {
      case "/checked":
        request["If-None-Match"] == "\"1\""
          ? Reply(304, [("ETag", "\"1\""), ("Cache-Control", "no-cache")])
          : Reply(200, [("ETag", "\"1\""), ("Cache-Control", "no-cache")], "checked\n")
      case "/error": Reply(503, [], "error\n")
      case "/secret": Reply(200, [("Cache-Control", "no-store")], "secret\n")
      default: Reply(200, [("Cache-Control", "max-age=600")], "fresh\n")
      }
    }
  }

  /// Runs `get` for the path, each time in a process of its own.
  private func get(_ tool: Tool, _ origin: LoopbackOrigin, _ path: String, times: Int) throws {
    for _ in 0..<times {
      _ = try tool.run("get", origin.url(path).absoluteString, "--directory", tool.path("cache"))
    }
  }

  @Test("stats adds up the requests of all processes, also as JSON")
  func counts() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    try get(tool, origin, "/fresh", times: 3)
    try get(tool, origin, "/checked", times: 2)
    try get(tool, origin, "/secret", times: 2)
    try get(tool, origin, "/error", times: 1)
    let json = try tool.run("stats", tool.path("cache"), "--json").json()
    let activity = try #require(json["activity"] as? [String: Any])
    let requests = try #require(activity["requests"] as? [String: Int])
    #expect(requests.filter { $0.value > 0 } == ["hit": 2, "miss": 5, "revalidated": 1])
    #expect(activity["hitRatio"] as? Double == 0.25)
    #expect((activity["storageRefusals"] as? [String: Int])?["no-store"] == 2)
    #expect(activity["hitByteCount"] as? Int == 12)
    #expect(activity["originByteCount"] as? Int == 34)
    #expect(activity["originServerErrors"] as? Int == 1)
    #expect(activity["originFailures"] as? Int == 0)
    #expect(activity["writes"] as? Int == 2)
    #expect(activity["updates"] as? Int == 1)
    #expect(activity["opens"] as? Int == 8)
    #expect((activity["fetchSeconds"] as? [String: Any])?["count"] as? Int == 6)
    #expect((activity["hitSeconds"] as? [String: Any])?["p99"] is Double)
    let text = try tool.run("stats", tool.path("cache")).output
    #expect(text.contains("\nRequests    8 since 20"))
    #expect(text.contains("\nHit ratio   25.0%\n"))
    #expect(text.contains("\nOutcomes    hit 2, revalidated 1, miss 5\n"))
    #expect(text.contains("\nNot stored  no-store 2"))
  }

  @Test("stats --prometheus is valid for a scraper")
  func prometheus() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    try get(tool, origin, "/fresh", times: 2)
    let result = try tool.run("stats", tool.path("cache"), "--prometheus")
    #expect(result.status == 0)
    let document = try PrometheusDocument(result.output)
    let directory = "directory=\"\(tool.path("cache"))\""
    #expect(document.samples["urlcache_requests_total{\(directory),outcome=\"hit\"}"] == 1)
    #expect(document.samples["urlcache_requests_total{\(directory),outcome=\"miss\"}"] == 1)
    #expect(document.samples["urlcache_entries{\(directory)}"] == 1)
    #expect(document.samples["urlcache_fetch_duration_seconds_count{\(directory)}"] == 1)
    #expect(document.samples["urlcache_fetch_duration_seconds_bucket{\(directory),le=\"+Inf\"}"] == 1)
    #expect(try #require(document.samples["urlcache_fetch_duration_seconds_sum{\(directory)}"]) > 0)
    for (name, type) in document.types where type == "counter" { #expect(name.hasSuffix("_total"), "\(name)") }
    #expect(try tool.run("stats", tool.path("cache"), "--prometheus", "--json").status == 2)
  }

  @Test("A directory with characters that Prometheus escapes keeps its samples on one line")
  func escaping() throws {
    let tool = try Tool()
    let cache = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let name = tool.path("a\"b\\c\nd")
    try FileManager.default.moveItem(atPath: cache, toPath: name)
    let document = try PrometheusDocument(try tool.run("stats", name, "--prometheus").output)
    #expect(document.samples.keys.contains { $0.contains("a\\\"b\\\\c\\nd") })
  }
}

/// A document in Prometheus' text format, checked line by line.
struct PrometheusDocument {
  private(set) var types: [String: String] = [:]
  private(set) var samples: [String: Double] = [:]

  init(_ text: String) throws {
    #expect(text.hasSuffix("\n"))
    var helped: Set<String> = []
    for line in text.split(separator: "\n", omittingEmptySubsequences: true).map(String.init) {
      if let match = line.wholeMatch(of: /# HELP ([a-z_]+) .+/) {
        #expect(helped.insert(String(match.1)).inserted, "\(line)")
      } else if let match = line.wholeMatch(of: /# TYPE ([a-z_]+) (counter|gauge|histogram)/) {
        #expect(helped.contains(String(match.1)), "\(line)")
        #expect(types.updateValue(String(match.2), forKey: String(match.1)) == nil, "\(line)")
      } else {
        let label = /[a-z_]+="(?:[^"\\\n]|\\["\\n])*"/
        let sample = try Regex("([a-z_]+)(\\{.*\\})? ([0-9.e+-]+|\\+Inf)")
        let match = try #require(try sample.wholeMatch(in: line), "\(line)")
        let name = String(try #require(match[1].substring))
        let base = ["_bucket", "_sum", "_count"].first { name.hasSuffix($0) }.map { String(name.dropLast($0.count)) }
        #expect(types[name] != nil || base.map { types[$0] == "histogram" } == true, "\(line)")
        if let labels = match[2].substring?.dropFirst().dropLast() {
          var rest = labels
          while let found = rest.prefixMatch(of: label) {
            rest = rest[found.range.upperBound...]
            if rest.first == "," { rest.removeFirst() }
          }
          #expect(rest.isEmpty, "\(line)")
        }
        let digits = try #require(match[3].substring)
        let value = try #require(Double(String(digits)))
        let key = String(line.dropLast(digits.count + 1))
        #expect(samples.updateValue(value, forKey: key) == nil, "\(line)")
      }
    }
  }
}
