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

  @Test("A directory of another format version is refused with its number, and stays as it is")
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
      #expect(result.errors.contains("format 4"), "\(command): \(result.errors)")
      #expect(result.errors.split(separator: "\n").count == 1, "\(command)")
    }
    #expect(try Data(contentsOf: URL(fileURLWithPath: directory + "/data.mdb")) == data)
    #expect(!FileManager.default.fileExists(atPath: directory + "/data.mdb.other-version"))
  }

  @Test(
    "Another program's file in place of a file of the cache is no crash, and a failure has a line",
    arguments: [
      "data.mdb", "lock.mdb", "users.lock", "open.lock", "LMDBURLCache.store", "LMDBURLCache.removals",
      "LMDBURLCache.index", "LMDBURLCache.counters", "LMDBURLCache.events",
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
      if name == "data.mdb" { #expect(result.status == 1, "\(command)") }
      if name == "LMDBURLCache.events" { #expect(result.status == 0, "\(command): \(result.errors)") }
    }
    // An inspection repairs nothing. Lock files are written by those who use them.
    if !name.hasSuffix(".lock"), name != "lock.mdb" {
      #expect(try Data(contentsOf: URL(fileURLWithPath: path)) == text)
    }
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
