import CachingClient
import Foundation
import Testing

/// Rules in JSON: their form, and what an error says.
@Suite("Caching rules in JSON")
struct CachingRulesFileTests {
  private func withFile<Result>(_ text: String, _ body: (URL) throws -> Result) throws -> Result {
    let file = FileManager.default.temporaryDirectory.appendingPathComponent("rules-\(UUID().uuidString).json")
    try Data(text.utf8).write(to: file)
    defer { try? FileManager.default.removeItem(at: file) }
    return try body(file)
  }

  private static let text = """
    [
      {
        "name": "API", "hosts": ["api.example.com", "*.api.example.com"], "paths": ["/v1/*"], "lifetime": "10m",
        "ignoredQueryParameters": ["token"], "allowsCoalescing": false, "partitionField": "X-Tenant"
      },
      { "name": "images", "mediaTypes": ["image/*"], "lifetime": 90.5, "ignoredResponseFields": ["Set-Cookie"] },
      { "name": "never", "paths": ["/account/*"], "allowsStoring": false },
      { "name": "search", "paths": ["/graphql"], "treatsAsQuery": true, "queryNormalForm": "json" }
    ]
    """

  @Test("A file has rules in their order, and rules become the same rules by way of JSON")
  func file() throws {
    let rules = try withFile(Self.text) { try CachingRules(contentsOf: $0) }
    #expect(
      rules.rules == [
        CachingRule(
          name: "API", hosts: ["api.example.com", "*.api.example.com"], paths: ["/v1/*"], lifetime: 600,
          ignoredQueryParameters: ["token"], allowsCoalescing: false, partitionField: "X-Tenant"),
        CachingRule(
          name: "images", mediaTypes: ["image/*"], lifetime: 90.5, ignoredResponseFields: ["Set-Cookie"]),
        CachingRule(name: "never", paths: ["/account/*"], allowsStoring: false),
        CachingRule(name: "search", paths: ["/graphql"], treatsAsQuery: true, queryNormalForm: "json"),
      ])
    let again = try JSONDecoder().decode(CachingRules.self, from: try JSONEncoder().encode(rules))
    #expect(again == rules)
    #expect(try withFile(" []\n") { try CachingRules(contentsOf: $0) }.isEmpty)
  }

  @Test(
    "An error names the file, the rule, the key, what is wrong and what to write",
    arguments: [
      ("", nil, nil, "the file is empty", "Write [] for no rules"),
      (" \n\t", nil, nil, "the file is empty", "[]"),
      (#"[{"name": "a", "lifetime": "10m"}"#, nil, nil, "not valid JSON", "Write a list of objects"),
      (#"{"name": "a"}"#, nil, nil, "not a list", "Write a list of objects"),
      (#"[7]"#, nil, nil, "the rule is not an object", "Write a list of objects"),
      (#"[{"lifetime": 1}]"#, nil, "name", "the rule has no name", "a name of its own"),
      (#"[{"name": 7, "lifetime": 1}]"#, nil, "name", "another type", "Write a text"),
      (#"[{"name": "a", "lifetime": 1}, {"name": "a", "lifetime": 2}]"#, "a", "name", "another rule", "of its own"),
      (#"[{"name": "a", "lifetimes": 1}]"#, "a", "lifetimes", "no such key", "The keys are name, hosts, paths,"),
      (#"[{"name": "a"}]"#, "a", nil, "sets nothing", "Set one of lifetime,"),
      (#"[{"name": "a", "paths": ["/*"]}]"#, "a", nil, "sets nothing", "Set one of lifetime,"),
      (#"[{"name": "a", "lifetime": "10x"}]"#, "a", "lifetime", "'10x' is not a duration", "such as '10m'"),
      (#"[{"name": "a", "lifetime": "10"}]"#, "a", "lifetime", "'10' is not a duration", "seconds or a number with"),
      (#"[{"name": "a", "lifetime": -1}]"#, "a", "lifetime", "'-1.0' is not valid", "seconds or a number with"),
      (#"[{"name": "a", "lifetime": true}]"#, "a", "lifetime", "another type", "seconds or a number with"),
      (#"[{"name": "a", "hosts": "b.test", "lifetime": 1}]"#, "a", "hosts", "another type", "Write a list with a host"),
      (#"[{"name": "a", "hosts": [], "lifetime": 1}]"#, "a", "hosts", "the list is empty", "Leave the key out"),
      (#"[{"name": "a", "hosts": ["b.test:80"], "lifetime": 1}]"#, "a", "hosts", "'b.test:80'", "without scheme, port"),
      (#"[{"name": "a", "hosts": ["https://b.test"], "lifetime": 1}]"#, "a", "hosts", "is not valid", "without scheme"),
      (#"[{"name": "a", "hosts": ["b*ü.test"], "lifetime": 1}]"#, "a", "hosts", "'b*ü.test' is not valid", "a host"),
      (#"[{"name": "a", "hosts": [""], "lifetime": 1}]"#, "a", "hosts", "'' is not valid", "a host"),
      (#"[{"name": "a", "paths": ["img/*"], "lifetime": 1}]"#, "a", "paths", "'img/*' is not valid", "begins with '/'"),
      (#"[{"name": "a", "mediaTypes": ["image"], "lifetime": 1}]"#, "a", "mediaTypes", "'image'", "'image/*'"),
      (
        #"[{"name": "a", "mediaTypes": ["image/*"], "allowsCoalescing": false}]"#, "a", "allowsCoalescing",
        "the media type is not known yet", "in another rule"
      ),
      (
        #"[{"name": "a", "mediaTypes": ["image/*"], "lifetime": 1, "ignoredQueryParameters": ["t"]}]"#, "a",
        "ignoredQueryParameters", "the media type is not known yet", "in another rule"
      ),
      (
        #"[{"name": "a", "mediaTypes": ["image/*"], "partitionField": "X-A"}]"#, "a", "partitionField",
        "the media type is not known yet", "in another rule"
      ),
      (
        #"[{"name": "a", "mediaTypes": ["image/*"], "treatsAsQuery": true}]"#, "a", "treatsAsQuery",
        "the media type is not known yet", "in another rule"
      ),
      (
        #"[{"name": "a", "mediaTypes": ["image/*"], "queryNormalForm": "json"}]"#, "a", "queryNormalForm",
        "the media type is not known yet", "in another rule"
      ),
      (#"[{"name": "a", "treatsAsQuery": "yes"}]"#, "a", "treatsAsQuery", "another type", "true or false"),
      (#"[{"name": "a", "queryNormalForm": "xml"}]"#, "a", "queryNormalForm", "'xml' is not valid", "'json' or 'none'"),
      (#"[{"name": "a", "queryNormalForm": "JSON"}]"#, "a", "queryNormalForm", "'JSON' is not valid", "'json' or"),
      (#"[{"name": "a", "queryNormalForm": true}]"#, "a", "queryNormalForm", "another type", "'json' or 'none'"),
      (#"[{"name": "a", "partitionField": "X Tenant"}]"#, "a", "partitionField", "'X Tenant'", "one request field"),
      (#"[{"name": "a", "partitionField": "COOKIE"}]"#, "a", "partitionField", "has credentials", "without secrets"),
      (#"[{"name": "a", "ignoredQueryParameters": ["t=1"]}]"#, "a", "ignoredQueryParameters", "'t=1'", "'token'"),
      (#"[{"name": "a", "ignoredResponseFields": ["a:"]}]"#, "a", "ignoredResponseFields", "'a:'", "'Set-Cookie'"),
      (#"[{"name": "a", "hosts": null, "lifetime": 1}]"#, "a", "hosts", "the value is null", "Leave the key out"),
      (#"[{"name": "a", "hosts": [null], "lifetime": 1}]"#, "a", "hosts", "another type", "Write a list with a host"),
      (#"[{"name": null, "lifetime": 1}]"#, nil, "name", "the value is null", "Write a text"),
      (#"[{"name": "a", "lifetime": null, "allowsStoring": false}]"#, "a", "lifetime", "the value is null", "seconds"),
      (#"[{"name": "a", "lifetime": 1, "allowsStoring": null}]"#, "a", "allowsStoring", "the value is null", "true or"),
      (#"[{"name": "a", "lifetime": 1, "partitionField": null}]"#, "a", "partitionField", "is null", "Leave the key"),
      (#"[{"name": "a", "hosts": [".example.com"], "lifetime": 1}]"#, "a", "hosts", "'.example.com'", "a host without"),
      (#"[{"name": "a", "hosts": ["a..example"], "lifetime": 1}]"#, "a", "hosts", "'a..example'", "a host without"),
      (#"[{"name": "a", "hosts": ["*..example"], "lifetime": 1}]"#, "a", "hosts", "'*..example'", "a host without"),
      (#"[{"name": "a", "hosts": ["*.example.."], "lifetime": 1}]"#, "a", "hosts", "'*.example..'", "a host without"),
      (#"[{"name": "a", "paths": ["/b/../a"], "lifetime": 1}]"#, "a", "paths", "'/b/../a'", "the spelling of URLs"),
      (#"[{"name": "a", "paths": ["/a/."], "lifetime": 1}]"#, "a", "paths", "'/a/.'", "the spelling of URLs"),
      (#"[{"name": "a", "paths": ["/s p"], "lifetime": 1}]"#, "a", "paths", "'/s p'", "the spelling of URLs"),
      (#"[{"name": "a", "mediaTypes": ["image/"], "lifetime": 1}]"#, "a", "mediaTypes", "'image/'", "'image/*'"),
      (#"[{"name": "a", "mediaTypes": ["a/b c"], "lifetime": 1}]"#, "a", "mediaTypes", "'a/b c'", "'image/*'"),
      (#"[{"name": "a", "ignoredQueryParameters": ["u_*"]}]"#, "a", "ignoredQueryParameters", "'u_*'", "'token'"),
      (#"[{"name": "a", "ignoredQueryParameters": ["é"]}]"#, "a", "ignoredQueryParameters", "'é'", "'token'"),
      (#"[{"name": "a", "ignoredResponseFields": ["X-*"]}]"#, "a", "ignoredResponseFields", "'X-*'", "'Set-Cookie'"),
      (
        #"[{"name": "a", "ignoredResponseFields": ["location"]}]"#, "a", "ignoredResponseFields", "redirect", "Take out"
      ),
      (#"[{"name": "a", "partitionField": "*"}]"#, "a", "partitionField", "'*'", "one request field"),
      (#"[{"name": "a", "allowsStoring": "no"}]"#, "a", "allowsStoring", "another type", "true or false"),
    ] as [(String, String?, String?, String, String)])
  func errors(text: String, rule: String?, key: String?, reason: String, remedy: String) throws {
    try withFile(text) { file in
      let error = try #require(throws: CachingRulesError.self) { try CachingRules(contentsOf: file) }
      #expect(error.path == file.path)
      #expect(error.rule == rule && error.key == key)
      #expect(error.reason.contains(reason), "\(error)")
      #expect(error.remedy.contains(remedy), "\(error)")
      #expect(error.description.hasPrefix("Cannot use the caching rules in \(file.path): "))
      #expect(error.localizedDescription == error.description)
    }
  }

  @Test("An error of a decoder has the place in the document")
  func decodingError() throws {
    let data = Data(#"[{"name": "a", "lifetime": 1}, {"name": "b", "lifetime": "x"}]"#.utf8)
    let error = try #require(throws: DecodingError.self) { try JSONDecoder().decode(CachingRules.self, from: data) }
    guard case .dataCorrupted(let context) = error else { throw error }
    #expect(context.codingPath.map { $0.intValue.map(String.init) ?? $0.stringValue } == ["1", "lifetime"])
    #expect(context.debugDescription.contains("rule 2 \"b\", key \"lifetime\": 'x' is not a duration"))
  }

  @Test(
    "An error has the number of the rule in the list",
    arguments: [
      (#"{"name": null, "lifetime": 1}"#, "rule 2, key \"name\": the value is null"),
      (#"{"lifetime": 1}"#, "rule 2, key \"name\": the rule has no name"),
      (#"{"name": "a", "lifetime": 1}"#, "rule 2 \"a\", key \"name\": another rule"),
      (#"{"name": "b", "hosts": ["a..b"], "lifetime": 1}"#, "rule 2 \"b\", key \"hosts\": 'a..b' is not valid"),
      (#"null"#, "rule 2: the rule is not an object"),
    ])
  func number(text: String, place: String) throws {
    try withFile("[{\"name\": \"a\", \"lifetime\": 1}, \(text)]") { file in
      let error = try #require(throws: CachingRulesError.self) { try CachingRules(contentsOf: file) }
      #expect(error.ruleNumber == 2)
      #expect(error.description.contains(": \(place)"), "\(error)")
    }
    let error = #expect(throws: CachingRulesError.self) {
      try CachingRules([CachingRule(name: "a", lifetime: 1), CachingRule(name: "b")])
    }
    #expect(error?.ruleNumber == 2)
  }

  @Test("An error says that a file is missing or cannot be read")
  func unreadable() throws {
    let folder = FileManager.default.temporaryDirectory
    let missing = folder.appendingPathComponent("no-\(UUID().uuidString).json")
    let error = try #require(throws: CachingRulesError.self) { try CachingRules(contentsOf: missing) }
    #expect(error.path == missing.path && error.reason == "there is no such file")
    #expect(throws: CachingRulesError.self) { try CachingRules(contentsOf: folder) }
  }
}
