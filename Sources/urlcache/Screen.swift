import Foundation
import Glibc
import LMDBURLCache
import ResponseStore

/// Repeated output: redraws a screen on a terminal, and appends otherwise.
struct Screen {
  /// Whether standard output is a terminal.
  let isTerminal = isatty(STDOUT_FILENO) == 1
  private var isCleared = false

  /// The present size of the terminal in characters.
  var size: (columns: Int, rows: Int) { Self.size(of: STDOUT_FILENO) }

  /// Returns the present size of a terminal in characters; 80 × 24 if it is not known.
  static func size(of terminal: CInt) -> (columns: Int, rows: Int) {
    var size = winsize()
    guard ioctl(terminal, UInt(TIOCGWINSZ), &size) == 0, size.ws_col > 0, size.ws_row > 0 else { return (80, 24) }
    return (Int(size.ws_col), Int(size.ws_row))
  }

  /// Draws lines. On a terminal they replace the previous ones, and are cut to its size.
  mutating func draw(_ lines: [String]) throws {
    guard isTerminal else { return try Output.write(lines.map { $0 + "\n" }.joined()) }
    let size = size
    let shown = lines.prefix(max(size.rows - 1, 1)).map { String($0.prefix(size.columns)) + "\u{1b}[K\n" }
    // Clear the screen once; then overwrite the lines, which does not flicker, and clear what is below.
    try Output.write((isCleared ? "" : "\u{1b}[2J") + "\u{1b}[H" + shown.joined() + "\u{1b}[J")
    isCleared = true
  }
}

/// The shared parts of commands that watch a directory.
struct WatchLoop {
  let directory: CacheDirectory

  /// Begins to watch the requests of all processes.
  func watchEvents() throws -> EventWatch {
    guard let watch = directory.watchEvents() else {
      // The directory may have been deleted since it was opened.
      try directory.checkIsInPlace()
      throw ToolError(
        "Requests cannot be recorded: no cache has opened the directory since an upgrade, or the disk is full.")
    }
    return watch
  }

  /// Waits. Returns at once if standard output is closed or the directory is gone, with an error.
  ///
  /// - Throws: `Output.BrokenPipe`, or `ToolError` if the directory was deleted, moved or has failed.
  func wait(_ duration: Duration) throws {
    let end = ContinuousClock.now + duration
    repeat {
      var output = pollfd(fd: STDOUT_FILENO, events: 0, revents: 0)
      poll(&output, 1, CInt(min(max((end - .now) / .milliseconds(1), 0), 200)))
      if output.revents & Int16(POLLERR) != 0 { throw Output.BrokenPipe() }
      try directory.checkIsInPlace()
    } while ContinuousClock.now < end
  }
}
