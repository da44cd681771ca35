import Foundation
import Glibc
import LoopbackOrigin
import Testing

/// Output to a terminal: progress bars, and screens that are redrawn.
@Suite("Output to a terminal", .timeLimit(.minutes(2)))
struct TerminalTests {
  /// Returns to the beginning of the line and erases it.
  static let erasure = "\r\u{1b}[K"

  /// Runs `warm` with URLs that begin over two seconds, so that the bar appears.
  private func warm(_ tool: Tool, standardError: FileHandle) throws -> String {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "body") }
    defer { origin.stop() }
    let list = tool.path("urls-\(UUID().uuidString)")
    let urls = (0..<6).map { origin.url("/\($0)").absoluteString + "\n" }.joined()
    try Data(urls.utf8).write(to: URL(fileURLWithPath: list))
    let output = Pipe()
    let process = try tool.start(
      ["warm", list, "--directory", tool.path("cache"), "--rate", "3"], standardOutput: output,
      standardError: standardError)
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    return String(decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
  }

  @Test("warm shows a bar with rate and time left on a terminal, and erases it at the end")
  func warmBar() throws {
    let tool = try Tool()
    let terminal = try PseudoTerminal()
    let output = try warm(tool, standardError: terminal.handle)
    let text = terminal.readToEnd()
    #expect(text.contains(/Warming \[#+ *\] +\d+% \(\d of 6\) \d+\/s, \d+ s left/), "\(text)")
    #expect(text.hasSuffix(Self.erasure))
    #expect(output.hasPrefix("Warmed 6 URLs of 6 in "))
  }

  @Test("Without a terminal, warm shows no bar")
  func warmWithoutTerminal() throws {
    let tool = try Tool()
    let file = tool.path("errors")
    #expect(FileManager.default.createFile(atPath: file, contents: nil))
    let output = try warm(tool, standardError: try #require(FileHandle(forWritingAtPath: file)))
    #expect(output.hasPrefix("Warmed 6 URLs of 6 in "))
    #expect(try Data(contentsOf: URL(fileURLWithPath: file)).isEmpty)
  }

  @Test("A command that is interrupted erases its bar, and ends by the signal", arguments: [SIGINT, SIGTERM])
  func interruption(signal: CInt) throws {
    let tool = try Tool()
    let directory = try tool.makeCache(count: 3000)
    let (terminal, output) = (try PseudoTerminal(), Pipe())
    let process = try tool.start(
      ["list", directory, "--json"], standardOutput: output, standardError: terminal.handle)
    terminal.close()
    // The command waits because the pipe is full. After a second, it shows the bar when it goes on. The time passes in
    // that process, which has no other clock.
    #expect(try output.fileHandleForReading.read(upToCount: 10)?.count == 10)
    usleep(1_100_000)
    while !terminal.hasText, let piece = try output.fileHandleForReading.read(upToCount: 4096), !piece.isEmpty {}
    kill(process.processIdentifier, signal)
    process.waitUntilExit()
    #expect(process.terminationReason == .uncaughtSignal && process.terminationStatus == signal)
    let text = terminal.readToEnd()
    #expect(text.contains("Listing ["))
    #expect(text.hasSuffix(Self.erasure))
  }

  @Test("A screen that is redrawn has the terminal's present size", arguments: ["stats", "top"])
  func resizing(_ command: String) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let terminal = try PseudoTerminal()
    let process = try tool.start(
      [command, directory] + (command == "stats" ? ["--watch", "0.1"] : ["--interval", "1"]),
      standardOutput: terminal.handle)
    terminal.close()
    /// The complete screens of a text.
    func screens(_ text: String) -> [String] { text.components(separatedBy: "\u{1b}[J").dropLast() }
    /// Whether a screen has less than 5 lines of at most 30 characters.
    func isSmall(_ screen: String) -> Bool {
      let lines = screen.replacing(/\u{1b}\[2?[JKH]/, with: "").split { $0.isNewline }
      return lines.count < 5 && lines.allSatisfy { $0.count <= 30 }
    }
    let first = try #require(screens(terminal.read { !screens($0).isEmpty }).first)
    #expect(!isSmall(first))
    terminal.resize(columns: 30, rows: 5)
    let last = try #require(screens(terminal.read { screens($0).last.map(isSmall) ?? false }).last)
    #expect(isSmall(last))
    kill(process.processIdentifier, SIGINT)
    process.waitUntilExit()
    #expect(process.terminationReason == .uncaughtSignal && process.terminationStatus == SIGINT)
    // The screen neither hides the cursor nor changes another mode, so there is nothing to restore.
    #expect(terminal.readToEnd().replacing(/\u{1b}\[2?[JKH]/, with: "").contains("\u{1b}") == false)
  }

  /// Starts a command that redraws its screen only when it is asked to, and waits until it reads keys.
  private func watch(
    _ command: String, _ tool: Tool, keys: PseudoTerminal, output: PseudoTerminal
  ) throws -> Process {
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let process = try tool.start(
      [command, directory, command == "stats" ? "--watch" : "--interval", "3600"], standardInput: keys.handle,
      standardOutput: output.handle)
    waitUntil { !keys.isInLines }
    return process
  }

  @Test(
    "stats --watch and top show their keys, answer ?, a new size and q, and restore the terminal",
    arguments: ["stats", "top"])
  func keys(_ command: String) throws {
    let tool = try Tool()
    let terminal = try PseudoTerminal()
    let process = try watch(command, tool, keys: terminal, output: terminal)
    terminal.type("?")
    terminal.read { $0.contains("\u{1b}[24;1Hq quit  ? hide help  ") }
    terminal.type("x?")
    terminal.read { $0.contains(/\u{1b}\[24;1Hq quit  \? help$/) }
    terminal.resize(columns: 40, rows: 10)
    let text = terminal.read { $0.hasSuffix("\u{1b}[10;1Hq quit  ? help") }
    let screen = try #require(text.components(separatedBy: "\u{1b}[H").last)
    #expect(screen.replacing(/\u{1b}\[[0-9;]*[JKH]/, with: "").split { $0.isNewline }.allSatisfy { $0.count <= 40 })
    terminal.type("q")
    process.waitUntilExit()
    #expect(process.terminationReason == .exit && process.terminationStatus == 0)
    #expect(terminal.isInLines)
    #expect(terminal.readToEnd().hasSuffix("? help\r\n"))
  }

  @Test("A signal restores the mode of the terminal, and ends the command", arguments: [SIGINT, SIGQUIT, SIGTERM])
  func modeAfterSignal(signal: CInt) throws {
    let tool = try Tool()
    let terminal = try PseudoTerminal()
    let process = try watch("top", tool, keys: terminal, output: terminal)
    // Ctrl-C sends a signal.
    #expect(terminal.mode.c_lflag & tcflag_t(ISIG) != 0)
    kill(process.processIdentifier, signal)
    process.waitUntilExit()
    #expect(process.terminationReason == .uncaughtSignal && process.terminationStatus == signal)
    #expect(terminal.isInLines)
  }

  @Test("A command that was suspended answers keys again, and redraws its screen", arguments: [SIGTSTP, SIGSTOP])
  func suspension(signal: CInt) throws {
    let tool = try Tool()
    let terminal = try PseudoTerminal()
    let process = try watch("top", tool, keys: terminal, output: terminal)
    terminal.type("?")
    terminal.read { $0.contains("hide help") }
    kill(process.processIdentifier, signal)
    waitUntil { isSuspended(process.processIdentifier) }
    // Ctrl-Z restores the mode. After SIGSTOP, a shell does that.
    if signal == SIGTSTP { #expect(terminal.isInLines) } else { terminal.setInLines() }
    kill(process.processIdentifier, SIGCONT)
    waitUntil { !terminal.isInLines }
    terminal.read { $0.components(separatedBy: "hide help").count == 3 }
    terminal.type("q")
    process.waitUntilExit()
    #expect(process.terminationReason == .exit && process.terminationStatus == 0)
    #expect(terminal.isInLines)
  }

  @Test("On a terminal whose reads wait for keys, a screen follows the size without a key")
  func otherMode() throws {
    let tool = try Tool()
    let terminal = try PseudoTerminal()
    terminal.setWaitingForKeys()
    let process = try watch("top", tool, keys: terminal, output: terminal)
    terminal.type("?")
    terminal.read { $0.contains("hide help") }
    terminal.resize(columns: 40, rows: 10)
    terminal.read { $0.contains("\u{1b}[10;1Hq quit") }
    terminal.type("q")
    process.waitUntilExit()
    #expect(process.terminationReason == .exit && process.terminationStatus == 0)
    #expect(terminal.mode.c_cc.6 == 1)
  }

  private func isSuspended(_ process: pid_t) -> Bool {
    let status = (try? String(contentsOfFile: "/proc/\(process)/stat", encoding: .utf8)) ?? ""
    return status.split(separator: ")").last?.split(separator: " ").first == "T"
  }

  @Test(
    "The mode of the terminal is restored when another terminal for the output is closed",
    arguments: ["stats", "top"])
  func modeAfterClosedOutput(_ command: String) throws {
    let tool = try Tool()
    let terminal = try PseudoTerminal()
    var output: PseudoTerminal? = try PseudoTerminal()
    let process = try watch(command, tool, keys: terminal, output: try #require(output))
    output = nil
    process.waitUntilExit()
    #expect(process.terminationReason == .exit && process.terminationStatus == 0)
    #expect(terminal.isInLines)
  }

  @Test("Without a terminal for the keys, or for JSON, a command changes no mode", arguments: [false, true])
  func modeWithoutKeys(isJSON: Bool) throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/")])
    let terminal = try PseudoTerminal()
    let process = try tool.start(
      ["top", directory, "--interval", "1", "--count", "1"] + (isJSON ? ["--json"] : []),
      standardInput: isJSON ? terminal.handle : nil, standardOutput: terminal.handle)
    while process.isRunning, terminal.isInLines { usleep(10_000) }
    #expect(terminal.isInLines)
    process.waitUntilExit()
    #expect(process.terminationStatus == 0)
    #expect(!terminal.readToEnd().contains("q quit"))
  }
}
