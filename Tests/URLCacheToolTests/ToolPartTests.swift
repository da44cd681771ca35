import CachingClient
import Testing

// Parts of the tool whose whole range no run of a command shows. A command shows its bar only when it is slow.
@testable import urlcache

@Suite("Parts of the tool")
struct ToolPartTests {
  static let commands = URLCacheTool.commands.map { $0.manual }.filter { !$0.isHidden }.map(\.name)

  @Test("A progress bar shows a percentage and a count")
  func progressBar() {
    #expect(ProgressBar.line("Counting", done: 0, total: 0) == "Counting [####################] 100% (0 of 0)")
    let quarter = ProgressBar.line("Counting", done: 1000, total: 4000)
    #expect(quarter == "Counting [#####               ]  25% (1,000 of 4,000)")
    #expect(ProgressBar.line("Counting", done: 9, total: 4) == "Counting [####################] 100% (4 of 4)")
  }

  @Test("A bar fits in the terminal, and is erased when it ends")
  func narrowBar() throws {
    let terminal = try PseudoTerminal(columns: 30)
    do {
      var bar = ProgressBar("Checking", delay: .zero, terminal: terminal.terminal)
      bar.update(done: 1000, total: 4000, note: " more")
      bar.end()
    }
    let line = "Checking [#####" + String(repeating: " ", count: 14)
    #expect(terminal.readToEnd() == TerminalTests.erasure + line + TerminalTests.erasure)
  }

  @Test("A share is a percentage with one digit")
  func percentages() {
    #expect(ActivityReport.percent(0.12345) == "12.3%")
    #expect(ActivityReport.percent(1) == "100.0%")
    #expect(ActivityReport.percent(nil) == "-")
  }

  @Test("A path pattern is compared with the path, and with a query only if it has a question mark")
  func paths() throws {
    func matches(_ pattern: String, _ url: String) throws -> Bool {
      let arguments = try Arguments(["d", "--path", pattern], for: ListCommand.manual)
      return try #require(try PathPattern(arguments)).matches(url: url)
    }
    #expect(try matches("/", "http://a.example"))
    #expect(try matches("/", "http://a.example/?a"))
    #expect(try matches("/?a", "http://a.example?a"))
    #expect(try matches("*.example*", "http://a.example/") == false)
    #expect(try matches("/b", "http://user:p@[::1]:80/b?c#"))
    #expect(try matches("/b?", "http://a/b") == false)
  }
}
