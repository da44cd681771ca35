import Foundation
import Glibc
import Testing

/// Commands on directories with files of another version, or of other programs.
@Suite("Unusual directories", .timeLimit(.minutes(2)))
struct UnusualDirectoryTests {
  private static let url = "http://a.example/page"

  /// Each command that opens a directory and ends by itself, with its arguments after the directory.
  static let commands: [[String]] = [
    ["stats"], ["stats", "--prometheus"], ["stats", "--watch", "0.1", "--count", "1"], ["list"], ["show", url],
    ["cat", url], ["explain", url], ["log"], ["purges"], ["purge", "--all", "--dry-run"], ["export", "--har", "-"],
    ["verify"],
  ]

  private func arguments(_ command: [String], _ directory: String) -> [String] {
    [command[0], directory] + command.dropFirst()
  }

  @Test("A directory of an earlier format is refused, and stays as it is")
  func otherVersion() throws {
    let tool = try Tool()
    let directory = tool.path("old")
    let golden = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
      .appendingPathComponent("../ResponseStoreTests/Golden/format-4").standardizedFileURL
    try FileManager.default.copyItem(atPath: golden.path, toPath: directory)
    chmod(directory, 0o700)
    let data = try Data(contentsOf: URL(fileURLWithPath: directory + "/data.mdb"))
    for command in Self.commands + [["top"], ["log", "--follow"], ["purge", "--all"]] {
      let result = try tool.run(arguments(command, directory))
      #expect(result.status == 1 && !result.wasKilled, "\(command)")
      #expect(result.output == "", "\(command)")
      #expect(result.errors.contains("earlier format"), "\(command): \(result.errors)")
      #expect(result.errors.split(separator: "\n").count == 1, "\(command)")
    }
    #expect(try Data(contentsOf: URL(fileURLWithPath: directory + "/data.mdb")) == data)
    #expect(!FileManager.default.fileExists(atPath: directory + "/data-1"))
  }

  @Test(
    "Another program's file in place of a file of the cache is no crash, and a failure has a line",
    arguments: [
      "data-1/data.mdb", "data-1/lock.mdb", "users.lock", "LMDBURLCache.store",
      "data-1/LMDBURLCache.removals", "data-1/LMDBURLCache.index", "LMDBURLCache.counters", "LMDBURLCache.events",
    ])
  func foreignFile(name: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: Self.url)])
    let path = directory + "/" + name
    let text = Data(String(repeating: "a file of another program\n", count: 2000).utf8)
    try text.write(to: URL(fileURLWithPath: path))
    let commands = ["stats", "list", "show", "explain", "log", "purges", "export", "verify"]
    for command in Self.commands where commands.contains(command[0]) && !command.contains("--watch") {
      let result = try tool.run(arguments(command, directory))
      #expect(!result.wasKilled && (0...1).contains(result.status), "\(command): \(result.errors)")
      // The line is the command's, or the store's if it counts as failed.
      let hasLine = result.errors.hasPrefix("urlcache \(command[0]): ") || result.errors.hasPrefix("LMDBURLCache: ")
      #expect(result.status == 0 || hasLine, "\(command): \(result.errors)")
      // The data decides, and advisory files do not matter.
      if name.hasSuffix("data.mdb") { #expect(result.status == 1, "\(command)") }
      if name == "LMDBURLCache.events" { #expect(result.status == 0, "\(command): \(result.errors)") }
    }
    // An inspection repairs nothing. Lock files are written by those who use them.
    if !name.hasSuffix(".lock"), !name.hasSuffix("lock.mdb") {
      #expect(try Data(contentsOf: URL(fileURLWithPath: path)) == text)
    }
  }

  /// Returns the names and the contents of the files in a directory.
  private func contents(_ directory: String) throws -> [String: Data] {
    let names = try FileManager.default.subpathsOfDirectory(atPath: directory).filter { $0 != "data-1" }
    return try Dictionary(
      uniqueKeysWithValues: names.map { ($0, try Data(contentsOf: URL(fileURLWithPath: directory + "/" + $0))) })
  }

  /// Expects that each command fails with a line that contains a text, and changes nothing.
  private func expectRefusal(
    _ text: String, _ directory: String, _ tool: Tool, sourceLocation: SourceLocation = #_sourceLocation
  ) throws {
    let before = try contents(directory)
    let others = [["top"], ["log", "--follow"], ["purge", "--all"], ["purge", "--url", Self.url, "--soft"]]
    for command in Self.commands + others {
      let result = try tool.run(arguments(command, directory))
      #expect(result.status == 1 && !result.wasKilled, "\(command)", sourceLocation: sourceLocation)
      #expect(result.output == "", "\(command)", sourceLocation: sourceLocation)
      #expect(result.errors.contains(text), "\(command): \(result.errors)", sourceLocation: sourceLocation)
      #expect(result.errors.split(separator: "\n").count == 1, "\(command)", sourceLocation: sourceLocation)
    }
    #expect(try contents(directory) == before, sourceLocation: sourceLocation)
  }

  @Test("A store whose data has failed is an error, and stays as it is")
  func failedStore() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: Self.url)])
    // The number of the next generation, which all processes share.
    let lock = try #require(FileHandle(forUpdatingAtPath: directory + "/users.lock"))
    try lock.write(contentsOf: Data([2]))
    try expectRefusal("its data has failed", directory, tool)
    try lock.seek(toOffset: 0)
    try lock.write(contentsOf: Data([1]))
    try lock.close()
    #expect(try tool.run("list", directory).status == 0)
  }

  @Test("Commands that open no cache refuse a missing or empty lock file")
  func missingLock() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: Self.url)], capacity: 30 << 20)
    let name = "users.lock"
    #expect(truncate(directory + "/" + name, 0) == 0)
    try expectRefusal("users.lock is incomplete", directory, tool)
    try FileManager.default.removeItem(atPath: directory + "/" + name)
    try expectRefusal("\(name) is missing", directory, tool)
    // A command that opens a cache makes the file.
    let get = try tool.run("get", Self.url, "--policy", "only-cache", "--directory", directory)
    #expect(get.status == 0, "\(get.errors)")
    #expect(FileManager.default.fileExists(atPath: directory + "/" + name))
    _ = try tool.makeCache([Tool.Stored(url: Self.url + "/2")], capacity: 30 << 20)
    #expect(try tool.run("stats", directory, "--json").json()["entryCount"] as? Int == 2)
  }

  @Test("A command whose store fails while it reads says so, and its output does not look complete")
  func failureDuringRead() throws {
    let tool = try Tool()
    let directory = try tool.makeCache(count: 3000)
    let (output, errors) = (Pipe(), Pipe())
    let process = try tool.start(["list", directory, "--json"], standardOutput: output, standardError: errors)
    // The command waits because the pipe is full.
    #expect(try output.fileHandleForReading.read(upToCount: 10)?.count == 10)
    let lock = try #require(FileHandle(forUpdatingAtPath: directory + "/users.lock"))
    try lock.write(contentsOf: Data([2]))
    let text = String(decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    process.waitUntilExit()
    #expect(process.terminationStatus == 1)
    #expect(!text.hasSuffix("]\n}\n"))
    let lines = String(decoding: try errors.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    #expect(lines.contains("urlcache list: The cache in \(directory) was deleted, moved or replaced, or has failed.\n"))
  }

  @Test("A command whose output is closed ends silently")
  func closedPipe() throws {
    let tool = try Tool()
    // Fresh for ten years, so that `warm` sends nothing.
    let directory = try tool.makeCache([Tool.Stored(url: Self.url, fields: ["Cache-Control": "max-age=315360000"])])
    let list = tool.path("urls")
    try Data("\(Self.url)\n".utf8).write(to: URL(fileURLWithPath: list))
    let commands = Self.commands.map { arguments($0, directory) } + [["warm", list, "--directory", directory]]
    // `log` has nothing to write.
    for arguments in commands where arguments[0] != "log" {
      let pipe = Pipe()
      try pipe.fileHandleForReading.close()
      let result = try tool.run(arguments, output: pipe.fileHandleForWriting)
      #expect(result.status == 0 && !result.wasKilled, "\(arguments)")
      #expect(result.errors == "", "\(arguments)")
    }
  }
}
