import Foundation
import Glibc

/// Repeated output: redraws a screen on a terminal, and appends otherwise.
///
/// If standard input is a terminal, too, it answers keys. ``end()`` must be called then.
struct Screen {
  /// A task of a command that redraws a screen, before its next refresh.
  enum Request {
    case quit, redraw
  }

  /// Whether standard output is a terminal.
  let isTerminal = isatty(STDOUT_FILENO) == 1
  /// The text of the last line after `?`.
  private let help: String
  private let keyboard: Keyboard?
  private var showsHelp = false
  /// The size of the terminal for which it was drawn last.
  private var drawnSize: (columns: Int, rows: Int)?

  /// - Parameters:
  ///   - help: A text about the screen, for the line after `?`.
  ///   - hasKeys: Whether it answers keys.
  init(help: String, hasKeys: Bool = true) {
    self.help = help
    keyboard = hasKeys && isTerminal ? Keyboard() : nil
  }

  /// Gives the terminal its former mode back.
  func end() { keyboard?.end() }

  /// The present size of the terminal in characters.
  var size: (columns: Int, rows: Int) { Self.size(of: STDOUT_FILENO) }

  /// The descriptor that is readable after a key; -1 if there are no keys.
  var keyDescriptor: CInt { keyboard == nil ? -1 : STDIN_FILENO }

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
    let keys = showsHelp ? "q quit  ? hide help  \(help)" : "q quit  ? help"
    let lastLine = keyboard == nil ? "" : "\u{1b}[\(size.rows);1H" + keys.prefix(size.columns - 1)
    // Clear the screen once; then overwrite the lines, which does not flicker, and clear what is below.
    try Output.write(
      (drawnSize == nil ? "\u{1b}[2J" : "") + "\u{1b}[H" + shown.joined() + "\u{1b}[J" + lastLine)
    drawnSize = size
  }

  /// Returns what the keys since the last call, or another size of the terminal, ask for.
  mutating func request() -> Request? {
    var isOutdated = drawnSize.map { $0 != size } ?? false
    // Others have written on the screen of a command that was suspended.
    if keyboard?.takeTerminal() == true { isOutdated = true }
    while let key = keyboard?.next() {
      switch key {
      case UInt8(ascii: "q"), UInt8(ascii: "Q"): return .quit
      case UInt8(ascii: "?"):
        showsHelp.toggle()
        isOutdated = true
      default: break
      }
    }
    return isOutdated ? .redraw : nil
  }
}

/// Keys of the terminal on standard input, one by one, and not shown.
///
/// A signal that ends or suspends the process restores the mode of the terminal first.
struct Keyboard {
  /// The mode of the terminal before. A handler of signals has no other way to it. It is written before there is one.
  private nonisolated(unsafe) static var formerMode = termios()

  /// Nil if standard input is no terminal, or one that another process reads now.
  init?() {
    guard Self.isInForeground, tcgetattr(STDIN_FILENO, &Self.formerMode) == 0 else { return nil }
    takeTerminal()
  }

  /// Sets the mode of the terminal, if it has another one: at first, and after a suspension. Returns whether it did.
  @discardableResult
  func takeTerminal() -> Bool {
    var mode = termios()
    let flags = tcflag_t(ICANON | ECHO)
    guard Self.isInForeground, tcgetattr(STDIN_FILENO, &mode) == 0,
      mode.c_lflag & flags != 0 || mode.c_cc.5 != 0 || mode.c_cc.6 != 0
    else { return false }
    for number in [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP] {
      signal(number) { number in
        Keyboard.restore()
        signal(number, SIG_DFL)
        kill(getpid(), number)
      }
    }
    mode.c_lflag &= ~flags
    // VTIME and VMIN, the control characters 5 and 6, so that a read returns at once.
    mode.c_cc.5 = 0
    mode.c_cc.6 = 0
    tcsetattr(STDIN_FILENO, TCSANOW, &mode)
    return true
  }

  /// Whether this process may change the mode; one in the background would be suspended.
  private static var isInForeground: Bool {
    let foreground = tcgetpgrp(STDIN_FILENO)
    return foreground == -1 || foreground == getpgrp()
  }

  /// Restores the mode of the terminal, below the last line of the screen.
  func end() { Self.restore() }

  /// Returns the next key that was pressed; nil without one.
  func next() -> UInt8? {
    var key: UInt8 = 0
    return read(STDIN_FILENO, &key, 1) == 1 ? key : nil
  }

  /// Calls only functions that a handler of signals may call.
  private static func restore() {
    tcsetattr(STDIN_FILENO, TCSANOW, &formerMode)
    let newline: StaticString = "\n"
    _ = write(STDOUT_FILENO, newline.utf8Start, newline.utf8CodeUnitCount)
  }
}
