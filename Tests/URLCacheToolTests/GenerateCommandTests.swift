import Foundation
import Testing

// The options of all commands, with which the generated texts are compared.
@testable import urlcache

/// Manual pages and shell completions.
@Suite("urlcache generate")
struct GenerateCommandTests {
  private static let manuals = URLCacheTool.commands.map { $0.manual }.filter { !$0.isHidden }

  @Test("There is a manual page for the tool and for each command, with all of its options")
  func manualPages() throws {
    let tool = try Tool()
    let directory = tool.path("man")
    try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
    #expect(try tool.run("generate", "man", directory).status == 0)
    let names = try FileManager.default.contentsOfDirectory(atPath: directory)
    #expect(Set(names) == Set(["urlcache.1"] + Self.manuals.map { "urlcache-\($0.name).1" }))
    let overview = try String(contentsOfFile: directory + "/urlcache.1", encoding: .utf8)
    for manual in Self.manuals {
      #expect(overview.contains(".BR urlcache\\-\(manual.name) (1)\n"))
      let page = try String(contentsOfFile: directory + "/urlcache-\(manual.name).1", encoding: .utf8)
      #expect(page.contains(#/^\.TH URLCACHE\\-[A-Z]+ 1 "\d{4}-\d\d-\d\d" "urlcache \d/#))
      for option in manual.allOptions {
        let name = option.name.replacingOccurrences(of: "-", with: "\\-")
        #expect(page.contains("\n\\fB\\-\\-\(name)\\fR"), "\(manual.name) --\(option.name)")
      }
      // Only requests begin with a period, and no line with an apostrophe.
      let lines = page.split(separator: "\n")
      #expect(lines.allSatisfy { !$0.hasPrefix("'") && (!$0.hasPrefix(".") || $0.contains(/^\.[A-Za-z]/)) })
      #expect(!page.contains(tool.root.path))
    }
  }

  /// Returns the words that the completion for bash offers for the last word.
  private func completions(_ words: [String], _ tool: Tool) throws -> [String] {
    let script = tool.path("completion.bash")
    try Data(try tool.run("generate", "bash").output.utf8).write(to: URL(fileURLWithPath: script))
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/bin/bash")
    process.arguments =
      [
        "-c",
        "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _urlcache; printf '%s\\n' \"${COMPREPLY[@]}\"",
        "bash", script,
      ] + words
    process.currentDirectoryURL = tool.root
    let pipe = Pipe()
    process.standardOutput = pipe
    try process.run()
    let output = try pipe.fileHandleForReading.readToEnd() ?? Data()
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    return String(decoding: output, as: UTF8.self).split(separator: "\n").map(String.init)
  }

  @Test("The completion for bash offers commands, options, their values, files and directories")
  func bash() throws {
    let tool = try Tool()
    let file = tool.path("list.txt")
    #expect(FileManager.default.createFile(atPath: file, contents: nil))
    try FileManager.default.createDirectory(atPath: tool.path("listed"), withIntermediateDirectories: true)
    #expect(try completions(["urlcache", "e"], tool) == ["explain", "export"])
    #expect(try completions(["urlcache", "list", "--s"], tool) == ["--sort", "--since", "--status"])
    #expect(try completions(["urlcache", "list", "--sort", ""], tool) == ["time", "url", "size"])
    #expect(try completions(["urlcache", "list", "--sort", "=", "u"], tool) == ["url"])
    #expect(try completions(["urlcache", "get", "--policy", "only"], tool) == ["only-cache"])
    #expect(try completions(["urlcache", "show", "list"], tool) == ["listed"])
    #expect(Set(try completions(["urlcache", "warm", "list"], tool)) == ["list.txt", "listed"])
    #expect(try completions(["urlcache", "warm", "--directory", "li"], tool) == ["listed"])
    #expect(try completions(["urlcache", "demo", "--folder", "li"], tool) == ["listed"])
    #expect(try completions(["urlcache", "help", "pur"], tool) == ["purge", "purges"])
    #expect(try completions(["urlcache", "nonsense", "--"], tool) == [])
    for manual in Self.manuals {
      #expect(try completions(["urlcache", manual.name, "--"], tool) == manual.allOptions.map { "--" + $0.name })
    }
  }

  @Test("The completion for zsh has each command and option")
  func zsh() throws {
    let script = try Tool().run("generate", "zsh").output
    #expect(script.hasPrefix("#compdef urlcache\n"))
    for manual in Self.manuals {
      let part = try #require(script.components(separatedBy: "\n        \(manual.name))\n").last)
      let specifications = part.components(separatedBy: " ;;\n")[0]
      for option in manual.allOptions {
        #expect(specifications.contains("--\(option.name)\(option.placeholder == nil ? "" : "=")["), "\(option.name)")
      }
    }
  }

  private static let fishPath = "/usr/bin/fish"

  @Test(
    "The completion for fish offers commands, options, their values, files and directories",
    .enabled(if: FileManager.default.fileExists(atPath: fishPath), "fish is not installed"))
  func fish() throws {
    let tool = try Tool()
    let script = tool.path("completion.fish")
    try Data(try tool.run("generate", "fish").output.utf8).write(to: URL(fileURLWithPath: script))
    #expect(FileManager.default.createFile(atPath: tool.path("list.txt"), contents: nil))
    try FileManager.default.createDirectory(atPath: tool.path("listed"), withIntermediateDirectories: true)
    let lines = [
      ("e", ["explain", "export"]), ("list --so", ["--sort"]), ("list --sort ", ["size", "time", "url"]),
      ("list --status 4", ["4xx"]), ("get --policy only", ["only-cache"]), ("show list", ["listed/"]),
      ("warm list", ["list.txt", "listed/"]), ("warm --directory li", ["listed/"]), ("help pur", ["purge", "purges"]),
      ("fleet ", ["status"]), ("purge list --host list --ti", ["--timeout"]),
    ]
    // All in one process, because fish starts slowly.
    let process = Process()
    process.executableURL = URL(fileURLWithPath: Self.fishPath)
    process.arguments =
      [
        "--no-config", "-c",
        "source $argv[1]; for line in $argv[2..]; complete -C \"urlcache $line\"; echo =; end", script,
      ] + lines.map(\.0)
    process.currentDirectoryURL = tool.root
    process.environment = ["HOME": tool.root.path, "PATH": "/usr/bin:/bin"]
    let pipe = Pipe()
    process.standardOutput = pipe
    try process.run()
    let output = String(decoding: try pipe.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    process.waitUntilExit()
    let found = output.components(separatedBy: "=\n").dropLast().map { part in
      part.split(separator: "\n").map { String($0.prefix { $0 != "\t" }) }.sorted()
    }
    #expect(found == lines.map { $0.1.sorted() })
  }

  @Test("Each option with a fixed set of values completes them, and refuses others")
  func values() throws {
    let tool = try Tool()
    for manual in Self.manuals {
      for option in manual.options where !option.values.isEmpty {
        #expect(try completions(["urlcache", manual.name, "--\(option.name)", ""], tool) == option.values)
        // Any method is valid.
        guard option.name != "method" else { continue }
        let operands = ["d", "http://a/"].prefix(manual.name == "get" ? 1 : manual.operandCount.lowerBound)
        let wrong = try tool.run([manual.name] + operands + ["--\(option.name)", "x"])
        #expect(wrong.status == 2, "\(manual.name) --\(option.name)")
      }
    }
    let names = Set(Self.manuals.flatMap { $0.options }.filter { !$0.values.isEmpty }.map(\.name))
    #expect(names == ["by", "outcome", "policy", "sort", "status", "method"])
  }

  @Test("Wrong arguments and a missing directory are errors")
  func badInput() throws {
    let tool = try Tool()
    #expect(try tool.run("generate", "csh").status == 2)
    #expect(try tool.run("generate", "man").status == 2)
    let missing = try tool.run("generate", "man", tool.path("none"))
    #expect(missing.status == 1)
    #expect(missing.errors.contains("none/urlcache.1 cannot be written"))
  }
}
