import Foundation
import Glibc
import Testing

/// A pseudo terminal for the output of the tool.
final class PseudoTerminal {
  private let main: CInt
  /// The descriptor for the tool; -1 after ``close()``.
  private(set) var terminal: CInt
  private var text = ""

  /// Opens a terminal of a size in characters.
  init(columns: UInt16 = 80, rows: UInt16 = 24) throws {
    main = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)
    var (isLocked, number) = (CInt(0), CUnsignedInt(0))
    // TIOCSPTLCK and TIOCGPTN, as unlockpt and ptsname do.
    try #require(ioctl(main, 0x4004_5431, &isLocked) == 0 && ioctl(main, 0x8004_5430, &number) == 0)
    terminal = open("/dev/pts/\(number)", O_RDWR | O_NOCTTY | O_CLOEXEC)
    resize(columns: columns, rows: rows)
  }

  deinit {
    close()
    Glibc.close(main)
  }

  /// The descriptor as a handle, for a process that is started.
  var handle: FileHandle { FileHandle(fileDescriptor: terminal) }

  /// Whether there is text to read.
  var hasText: Bool {
    var waiting = pollfd(fd: main, events: Int16(POLLIN), revents: 0)
    return poll(&waiting, 1, 0) > 0 && waiting.revents & Int16(POLLIN) != 0
  }

  func resize(columns: UInt16, rows: UInt16) {
    var size = winsize(ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0)
    #expect(ioctl(main, UInt(TIOCSWINSZ), &size) == 0)
  }

  /// The terminal's present mode.
  var mode: termios {
    var mode = termios()
    #expect(tcgetattr(main, &mode) == 0)
    return mode
  }

  /// Whether it shows what is typed, and hands it on in whole lines, as it does at first.
  var isInLines: Bool { mode.c_lflag & tcflag_t(ICANON | ECHO) == tcflag_t(ICANON | ECHO) }

  /// Gives it the mode of ``isInLines``.
  func setInLines() {
    var mode = mode
    mode.c_lflag |= tcflag_t(ICANON | ECHO)
    #expect(tcsetattr(main, TCSANOW, &mode) == 0)
  }

  /// Gives it a mode in which a read waits for a key, as `stty -icanon -echo min 1` does.
  func setWaitingForKeys() {
    var mode = mode
    mode.c_lflag &= ~tcflag_t(ICANON | ECHO)
    (mode.c_cc.5, mode.c_cc.6) = (0, 1)
    #expect(tcsetattr(main, TCSANOW, &mode) == 0)
  }

  /// Types text.
  func type(_ text: String) {
    #expect(write(main, text, text.utf8.count) == text.utf8.count)
  }

  /// Closes this process's descriptor, so that ``readToEnd()`` ends when the tool has ended.
  func close() {
    if terminal >= 0 { Glibc.close(terminal) }
    terminal = -1
  }

  /// Reads until the whole text satisfies a condition, or no process has the terminal open. Returns the whole text.
  @discardableResult
  func read(until isEnough: (String) -> Bool) -> String {
    var bytes = [UInt8](repeating: 0, count: 1 << 12)
    while !isEnough(text) {
      let count = Glibc.read(main, &bytes, bytes.count)
      if count < 0, errno == EINTR { continue }
      guard count > 0 else { break }
      text += String(decoding: bytes.prefix(count), as: UTF8.self)
    }
    return text
  }

  /// Reads until no process has the terminal open. Returns the whole text.
  func readToEnd() -> String {
    close()
    return read { _ in false }
  }
}
