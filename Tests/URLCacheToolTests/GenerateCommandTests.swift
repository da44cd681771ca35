import Foundation
import Testing

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
      #expect(page.hasPrefix(".TH URLCACHE\\-\(manual.name.uppercased()) 1 "))
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
    #expect(try completions(["urlcache", "list", "--s"], tool) == ["--sort"])
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

  @Test("Wrong arguments and a missing directory are errors")
  func badInput() throws {
    let tool = try Tool()
    #expect(try tool.run("generate", "fish").status == 2)
    #expect(try tool.run("generate", "man").status == 2)
    let missing = try tool.run("generate", "man", tool.path("none"))
    #expect(missing.status == 1)
    #expect(missing.errors.contains("none/urlcache.1 cannot be written"))
  }
}
