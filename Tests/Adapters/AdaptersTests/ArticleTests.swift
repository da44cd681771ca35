import Foundation
import Testing

@Suite("The articles on other packages")
struct ArticleTests {
  private static let package = URL(fileURLWithPath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
  private static let articles = [
    "UsingWithOpenAPI", "UsingAsyncHTTPClient", "LoggingMetricsLifecycle", "DevelopingOnAMac",
  ]

  private func text(_ article: String) throws -> String {
    let root = Self.package.deletingLastPathComponent().deletingLastPathComponent()
    return try String(
      contentsOf: root.appendingPathComponent("Sources/LMDBURLCache/LMDBURLCache.docc/\(article).md"), encoding: .utf8)
  }

  private func sources(below folder: String) throws -> [String: String] {
    let folder = Self.package.appendingPathComponent(folder)
    let paths = try FileManager.default.subpathsOfDirectory(atPath: folder.path).filter { $0.hasSuffix(".swift") }
    return try Dictionary(
      uniqueKeysWithValues: paths.map {
        ($0, try String(contentsOf: folder.appendingPathComponent($0), encoding: .utf8))
      })
  }

  @Test(
    "Each example is the text of a file that is compiled here, and each file, of at most 60 lines, is in an article")
  func examplesAreCompiled() throws {
    var examples: [String] = []
    var names: Set<String> = []
    for article in Self.articles {
      // Files to copy: cp ../LMDBURLCache/Tests/Adapters/Adapters/{One,Other}.swift
      for match in try text(article).matches(of: /Tests\/Adapters\/Adapters\/\{?([\w,]+)\}?\.swift/) {
        names.formUnion(match.1.split(separator: ",").map { "\($0).swift" })
      }
      for part in try text(article).components(separatedBy: "```swift\n").dropFirst() {
        let block = part.components(separatedBy: "```")[0]
        if block.hasPrefix("import ") { examples.append(block) }
      }
    }
    let sources = try sources(below: "Adapters").merging(sources(below: "Conditional")) { first, _ in first }
    for (name, source) in sources {
      #expect(examples.contains(source) || names.contains(name), "Change \(name) and its article together")
      #expect(source.split(separator: "\n", omittingEmptySubsequences: false).count <= 61, "\(name) is too long")
    }
    for example in examples { #expect(sources.values.contains(example), "No file has this example:\n\(example)") }
    for name in names { #expect(sources[name] != nil, "There is no file \(name)") }
  }

  @Test("Each article names the version that the declarations here follow")
  func versionsAgree() throws {
    let all = try Self.articles.map { try text($0) }.joined()
    // The others only declare names, for the test of names.
    let stubs = try sources(below: "Stubs").filter { $0.value.hasPrefix("// The declarations of ") }
    #expect(stubs.count > 5)
    for (name, source) in stubs {
      let words = source.prefix { $0 != "\n" }.split(separator: " ")
      let package = try #require(words.dropFirst(4).first, "\(name) names no package")
      let version = try #require(words.dropFirst(5).first, "\(name) names no version")
      #expect(all.contains("/\(package).git\", from: \"\(version)\")"), "No article depends on \(package) \(version)")
    }
  }
}
