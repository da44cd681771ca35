import Foundation
import Glibc

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
