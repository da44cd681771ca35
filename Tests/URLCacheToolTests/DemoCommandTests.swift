import Foundation
import Glibc
import Testing

@Suite("urlcache demo")
struct DemoCommandTests {
  /// Creates a folder with files of many sizes in the tool's directory and returns its path.
  private func makeFiles(_ tool: Tool, count: Int) throws -> String {
    let folder = tool.path("files")
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    for number in 0..<count {
      let data = Data((0..<(1_000 + number * number * 300)).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ number) })
      try data.write(to: URL(fileURLWithPath: folder + "/file \(number).txt"))
    }
    return folder
  }

  private func leftovers(_ tool: Tool) throws -> [String] {
    try FileManager.default.contentsOfDirectory(atPath: tool.root.path).filter { $0.hasPrefix("urlcache-demo") }
  }

  @Test("The demonstration completes, and its counts are consistent")
  func demo() throws {
    let tool = try Tool()
    let folder = try makeFiles(tool, count: 20)
    let result = try tool.run("demo", "--files", "20", "--readers", "3", "--folder", folder, "--json")
    #expect(result.status == 0, "\(result.errors)")
    let json = try result.json()
    // Three readers read 20 files in seven passes. A quarter of the files is purged and fetched again; a fifth expires.
    let expected = [
      "fileCount": 20, "readerCount": 3, "requestCount": 7 * 60, "missCount": 25, "revalidatedCount": 4,
      "coalescedCount": 0, "hitCount": 7 * 60 - 29, "originRequestCount": 29,
    ]
    for (key, value) in expected { #expect(json[key] as? Int == value, "\(key)") }
    #expect(json["failures"] as? [String] == [])
    let purge = try #require(json["purge"] as? [String: Any])
    #expect(purge["removedCount"] as? Int == 5)
    #expect(purge["keptCount"] as? Int == 15)
    // Ten rounds, of which only the first is a miss, and one after a purge.
    let queries = try #require(json["queries"] as? [String: Any])
    #expect(queries["contentCount"] as? Int == 20)
    #expect(queries["missCount"] as? Int == 40 && queries["hitCount"] as? Int == 180)
    let rows = try #require(json["rows"] as? [[String: Any]])
    #expect(
      rows.map { "\($0["interface"] ?? "") \($0["phase"] ?? "") \($0["kind"] ?? "") \($0["requestCount"] ?? "")" } == [
        "URLSession first time miss 20", "URLSession first time hit 40", "URLSession again hit 60",
        "data(for:) as before hit 60", "data(for:) again hit 60", "URLSession after the purge miss 5",
        "URLSession after the purge hit 55", "data(for:) an hour later revalidated 4",
        "data(for:) an hour later hit 56",
        "2nd process origin stopped hit 60",
      ])
    for row in rows {
      let p50 = try #require(row["p50"] as? Double)
      #expect(try p50 > 0 && p50 <= #require(row["p99"] as? Double))
    }
    #expect(try leftovers(tool) == [])
  }

  @Test("The text output has progress lines, a table and a summary")
  func text() throws {
    let tool = try Tool()
    let folder = try makeFiles(tool, count: 12)
    let result = try tool.run("demo", "--files", "10", "--readers", "2", "--folder", folder)
    #expect(result.status == 0)
    #expect(result.errors.contains("\nURLSession, again: 20 hit ("))
    #expect(result.output.contains("requests"))
    #expect(result.output.contains("\ndisk    "))
    #expect(result.output.contains("\nqueries 20 different contents of QUERY at one URL"))
    #expect(result.output.hasSuffix("without the origin; and every body was identical to its file.\n"))
  }

  @Test("A folder with too few files is an error")
  func tooFewFiles() throws {
    let tool = try Tool()
    let folder = try makeFiles(tool, count: 5)
    let result = try tool.run("demo", "--files", "10", "--folder", folder)
    #expect(result.status == 1)
    #expect(
      result.errors.hasSuffix(
        "urlcache demo: The demonstration needs 10 readable files of 1 KB to 1 MB: \(folder) has 5. "
          + "Use a smaller --files, or select a folder with --folder.\n"))
    #expect(try leftovers(tool) == [])
  }

  /// Starts a long demonstration and returns when its second pass begins.
  private func startHalfway(_ tool: Tool) throws -> Process {
    let folder = try makeFiles(tool, count: 20)
    let pipe = Pipe()
    let process = try tool.start(
      ["demo", "--files", "20", "--readers", "64", "--folder", folder], standardError: pipe)
    var text = Data()
    while !text.contains("first time:".utf8) {
      let more = pipe.fileHandleForReading.availableData
      try #require(!more.isEmpty, "The demonstration ended too early")
      text += more
    }
    return process
  }

  @Test("Interrupting the demonstration removes its directory", arguments: [SIGINT, SIGTERM])
  func interrupted(signal: Int32) throws {
    let tool = try Tool()
    let process = try startHalfway(tool)
    #expect(try leftovers(tool).count == 1)
    kill(process.processIdentifier, signal)
    process.waitUntilExit()
    #expect(process.terminationStatus == 128 + signal)
    #expect(try leftovers(tool) == [])
  }

  @Test("Killing the demonstration leaves an intact cache directory")
  func killed() throws {
    let tool = try Tool()
    let process = try startHalfway(tool)
    kill(process.processIdentifier, SIGKILL)
    process.waitUntilExit()
    let name = try #require(try leftovers(tool).first)
    let result = try tool.run("verify", tool.path(name + "/cache"))
    #expect(result.status == 0, "\(result.output)\(result.errors)")
    #expect(result.output.hasPrefix("OK: "))
  }
}

extension Data {
  fileprivate func contains(_ text: String.UTF8View) -> Bool { range(of: Data(text)) != nil }
}
