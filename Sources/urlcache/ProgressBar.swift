import Glibc

/// A progress bar on standard error for work that takes more than a second. Shown only on a terminal.
struct ProgressBar: ~Copyable {
  private static let interval = Duration.milliseconds(100)
  /// Returns to the beginning of the line and erases it.
  private static let erasure: StaticString = "\r\u{1B}[K"

  private let title: String
  private let terminal: CInt
  private let isEnabled: Bool
  private var nextUpdate: ContinuousClock.Instant
  private var isShown = false

  /// Creates a progress bar.
  ///
  /// - Parameters:
  ///   - sharesTerminal: Whether other output is written to the terminal at the same time, so that the bar is hidden.
  ///   - delay: The time until the bar appears.
  ///   - terminal: The descriptor of the terminal.
  init(
    _ title: String, sharesTerminal: Bool = false, delay: Duration = .seconds(1), terminal: CInt = STDERR_FILENO
  ) {
    self.title = title
    self.terminal = terminal
    isEnabled = isatty(terminal) == 1 && !(sharesTerminal && isatty(STDOUT_FILENO) == 1)
    nextUpdate = .now + delay
  }

  deinit {
    if isShown { Output.write(Self.erasure.description, toTerminal: terminal) }
  }

  /// Removes the bar before other output.
  consuming func end() {}

  /// Hides the bar before a line on standard error, until the next update.
  mutating func hide() {
    guard isShown else { return }
    Output.write(Self.erasure.description, toTerminal: terminal)
    isShown = false
    nextUpdate = .now
  }

  /// Updates the bar. Call this often: it usually only reads the clock.
  ///
  /// - Parameter note: A text after the count.
  mutating func update(done: Int, total: Int, note: @autoclosure () -> String = "") {
    update { title in Self.line(title, done: done, total: total) + note() }
  }

  /// Updates the bar of a transfer.
  ///
  /// - Parameter total: The number of bytes; nil if it is unknown.
  mutating func update(doneByteCount: Int, total: Int?) {
    update { title in Self.line(title, doneByteCount: doneByteCount, total: total) }
  }

  private mutating func update(_ text: (_ title: String) -> String) {
    guard isEnabled, case let now = ContinuousClock.now, now >= nextUpdate else { return }
    nextUpdate = now + Self.interval
    if !isShown { Self.eraseWhenInterrupted() }
    isShown = true
    // A line that the terminal wraps could not be erased.
    let line = text(title).prefix(Screen.size(of: terminal).columns - 1)
    Output.write("\(Self.erasure)\(line)", toTerminal: terminal)
  }

  /// Erases the bar before a signal ends the process, unless the command handles the signal.
  private static func eraseWhenInterrupted() {
    for number in [SIGINT, SIGTERM] {
      var present = sigaction()
      guard sigaction(number, nil, &present) == 0, present.__sigaction_handler.sa_handler == nil else { continue }
      signal(number) { number in
        let erasure: StaticString = "\r\u{1B}[K"
        _ = write(STDERR_FILENO, erasure.utf8Start, erasure.utf8CodeUnitCount)
        signal(number, SIG_DFL)
        kill(getpid(), number)
      }
    }
  }

  /// Formats like `Checking [#####               ]  25% (1,000 of 4,000)`.
  static func line(_ title: String, done: Int, total: Int) -> String {
    let shown = min(max(done, 0), max(total, 0))
    return "\(bar(title, done: done, total: total)) (\(Format.count(shown)) of \(Format.count(total)))"
  }

  /// Formats like `Fetching [#####               ]  25% (12 MiB of 48 MiB)`, or `Fetching 12 MiB`.
  static func line(_ title: String, doneByteCount: Int, total: Int?) -> String {
    guard let total else { return "\(title) \(Format.bytes(doneByteCount))" }
    let bar = bar(title, done: doneByteCount, total: total)
    return "\(bar) (\(Format.bytes(doneByteCount)) of \(Format.bytes(total)))"
  }

  private static func bar(_ title: String, done: Int, total: Int) -> String {
    let width = 20
    let done = min(max(done, 0), max(total, 0))
    let filled = total > 0 ? done * width / total : width
    let percent = total > 0 ? done * 100 / total : 100
    let bar = String(repeating: "#", count: filled).padded(to: width)
    return "\(title) [\(bar)] \(String(percent).aligned(to: 3))%"
  }
}
