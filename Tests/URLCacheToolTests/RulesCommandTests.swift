import Foundation
import LoopbackOrigin
import Testing

/// `--rules` of `get`, `warm` and `explain`.
@Suite("urlcache --rules")
struct RulesCommandTests {
  private static let rules = """
    [
      { "name": "tokens", "hosts": ["127.0.0.1"], "ignoredQueryParameters": ["token"] },
      { "name": "images", "mediaTypes": ["image/*"], "lifetime": "1d" },
      { "name": "tenants", "paths": ["/tenant/*"], "partitionField": "X-Tenant" },
      { "name": "never", "paths": ["/account/*"], "allowsStoring": false }
    ]
    """

  private func write(_ text: String, _ tool: Tool) throws -> String {
    let file = tool.path("rules.json")
    try Data(text.utf8).write(to: URL(fileURLWithPath: file))
    return file
  }

  private func origin() throws -> LoopbackOrigin {
    try LoopbackOrigin { _ in Reply(200, [("Content-Type", "image/png"), ("Cache-Control", "no-store")], "image") }
  }

  @Test("get uses the rules and names those that apply, and explain shows what each sets")
  func rules() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let (file, directory) = (try write(Self.rules, tool), tool.path("cache"))
    func get(_ path: String, _ options: String...) throws -> [String: Any] {
      let result = try tool.run(
        ["get", origin.url(path).absoluteString, "--directory", directory, "--rules", file, "--json"] + options)
      #expect(result.status == 0)
      return try ToolResult(status: 0, wasKilled: false, output: result.errors, errors: "").json()
    }
    let first = try get("/tenant/1?token=a", "--header", "X-Tenant: acme")
    #expect(first["source"] as? String == "miss" && first["refusal"] is NSNull)
    #expect(first["cachingRules"] as? [String] == ["tokens", "images", "tenants"])
    #expect(try get("/tenant/1?token=b", "--header", "X-Tenant: acme")["source"] as? String == "hit")
    #expect(try get("/tenant/1?token=b")["source"] as? String == "miss")
    #expect(try get("/account/1")["refusal"] as? String == "storing-disallowed")

    func explain(_ path: String, _ options: String...) throws -> String {
      let arguments = ["explain", directory, origin.url(path).absoluteString, "--rules", file] + options
      let result = try tool.run(arguments)
      #expect(result.status == 0 && result.errors == "")
      return result.output
    }
    let stored = try explain("/tenant/1?token=c", "--header", "X-Tenant: acme")
    #expect(stored.contains("\nResult     answered from the cache with status 200, fresh; the origin is not asked\n"))
    #expect(
      stored.contains(
        """

        Override   "tokens": ignoredQueryParameters token
        Override   "images": lifetime 1d
        Override   "tenants": partitionField X-Tenant
        Partition  {x-tenant=acme}

        """))
    let missing = try explain("/tenant/2")
    #expect(missing.contains("\nOverride   \"images\": if the response is image/*: lifetime 1d\n"))
    #expect(missing.contains("\nPartition  {x-tenant}\n"))
    let refused = try explain("/account/1")
    #expect(refused.contains("\nOverride  \"never\": allowsStoring false\n"))
    #expect(
      refused.contains(", storing-disallowed (RFC 9111 3): a rule or an override of the program forbids storing\n"))
    // Without the rules the key is another one.
    let without = try tool.run("explain", directory, origin.url("/tenant/1?token=c").absoluteString)
    #expect(without.output.contains("\nStored  nothing for this URL"))
    #expect(!without.output.contains("Override"))
  }

  @Test("explain shows the rules as JSON")
  func json() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let (file, directory) = (try write(Self.rules, tool), tool.path("cache"))
    let url = origin.url("/tenant/1").absoluteString
    #expect(try tool.run("get", url, "--directory", directory, "--rules", file).status == 0)
    let json = try tool.run("explain", directory, url, "--rules", file, "--json").json()
    let rules = try #require(json["cachingRules"] as? [[String: Any]])
    #expect(rules.map { $0["name"] as? String } == ["tokens", "images", "tenants"])
    #expect(rules.map { $0["applies"] as? Bool } == [true, true, true])
    #expect(rules[1]["sets"] as? [String: String] == ["lifetime": "1d"])
    #expect(json["partition"] as? String == "{x-tenant}")
    let other = try tool.run("explain", directory, origin.url("/2").absoluteString, "--rules", file, "--json").json()
    #expect((other["cachingRules"] as? [[String: Any]])?.map { $0["applies"] is NSNull } == [false, true])
  }

  @Test("A rule makes a POST a query, for get and explain")
  func query() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let file = try write(
      #"[{"name": "q", "paths": ["/q"], "lifetime": "1d", "treatsAsQuery": true, "queryNormalForm": "json"}]"#, tool)
    let url = origin.url("/q").absoluteString
    func request(_ content: String) -> [String] {
      ["--rules", file, "--method", "POST", "--data", content, "--content-type", "application/json", "--json"]
    }
    func get(_ content: String) throws -> String? {
      let result = try tool.run(["get", url, "--directory", tool.path("cache")] + request(content))
      return try ToolResult(status: 0, wasKilled: false, output: result.errors, errors: "").json()["source"] as? String
    }
    #expect(try get(#"{"a": 1, "b": 2}"#) == "miss")
    #expect(try get(#"{"b":2,"a":1}"#) == "hit")
    #expect(try get(#"{"b":2,"a":3}"#) == "miss")
    for (content, outcome) in [(#"{"b": 2, "a": 1}"#, "hit"), ("{}", "fetch")] {
      let json = try tool.run(["explain", tool.path("cache"), url] + request(content)).json()
      #expect(json["outcome"] as? String == outcome)
      let rules = try #require(json["cachingRules"] as? [[String: Any]])
      #expect(
        rules[0]["sets"] as? [String: String] == ["lifetime": "1d", "treatsAsQuery": "true", "queryNormalForm": "json"])
    }
    #expect(origin.requestCount == 2)
  }

  @Test("warm stores by the rules")
  func warm() throws {
    let origin = try origin()
    defer { origin.stop() }
    let tool = try Tool()
    let file = try write(Self.rules, tool)
    let list = tool.path("urls.txt")
    let urls = ["/1?token=1", "/1?token=2", "/account/1"].map { origin.url($0).absoluteString }
    try Data(urls.joined(separator: "\n").utf8).write(to: URL(fileURLWithPath: list))
    let result = try tool.run(
      "warm", list, "--directory", tool.path("cache"), "--rules", file, "--jobs", "1", "--json")
    let json = try result.json()
    #expect(json["storedCount"] as? Int == 1 && json["freshCount"] as? Int == 1)
    #expect(json["refusals"] as? [String: Int] == ["storing-disallowed": 1])
  }

  @Test(
    "A file with an error is not used, and the error names the rule and what to write", arguments: ["get", "explain"])
  func error(command: String) throws {
    let tool = try Tool()
    let file = try write(#"[{"name": "a", "lifetime": 60}, {"name": "b", "lifetime": "soon"}]"#, tool)
    let url = "http://127.0.0.1:1/"
    let operands = command == "get" ? [url, "--directory", tool.path("cache")] : [tool.path("cache"), url]
    let result = try tool.run([command] + operands + ["--rules", file])
    #expect(result.status == 1 && result.output == "")
    #expect(
      result.errors
        == "urlcache \(command): Cannot use the caching rules in \(file): rule 2 \"b\", key \"lifetime\": 'soon' is not "
        + "a duration. Write seconds or a number with s, m, h, d or w, such as '10m'.\n")
    #expect(!FileManager.default.fileExists(atPath: tool.path("cache")))
  }
}
