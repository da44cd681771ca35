import Glibc

/// A progress bar on standard error for work that takes more than a second. Shown only on a terminal.
struct ProgressBar: ~Copyable {
  private static let delay = Duration.seconds(1)
  private static let interval = Duration.milliseconds(100)

  private let title: String
  private let isEnabled: Bool
  private var nextUpdate: ContinuousClock.Instant
  private var isShown = false

  /// Creates a progress bar.
  ///
  /// - Parameter sharesTerminal: Whether other output is written to the terminal at the same time, so that the bar is
  ///   hidden.
  init(_ title: String, sharesTerminal: Bool = false) {
    self.title = title
    isEnabled = isatty(STDERR_FILENO) == 1 && !(sharesTerminal && isatty(STDOUT_FILENO) == 1)
    nextUpdate = .now + Self.delay
  }

  deinit {
    if isShown { Output.error("\r\u{1B}[K") }
  }

  /// Removes the bar before other output.
  consuming func end() {}

  /// Hides the bar before a line on standard error, until the next update.
  mutating func hide() {
    guard isShown else { return }
    Output.error("\r\u{1B}[K")
    isShown = false
    nextUpdate = .now
  }

  /// Updates the bar. Call this often: it usually only reads the clock.
  ///
  /// - Parameter note: A text after the count.
  mutating func update(done: Int, total: Int, note: @autoclosure () -> String = "") {
    guard isEnabled, case let now = ContinuousClock.now, now >= nextUpdate else { return }
    nextUpdate = now + Self.interval
    isShown = true
    Output.error("\r\u{1B}[K" + Self.line(title, done: done, total: total) + note())
  }

  /// Formats like `Checking [#####               ]  25% (1,000 of 4,000)`.
  static func line(_ title: String, done: Int, total: Int) -> String {
    let width = 20
    let done = min(max(done, 0), max(total, 0))
    let filled = total > 0 ? done * width / total : width
    let percent = total > 0 ? done * 100 / total : 100
    let bar = String(repeating: "#", count: filled).padded(to: width)
    return "\(title) [\(bar)] \(String(percent).aligned(to: 3))% (\(Format.count(done)) of \(Format.count(total)))"
  }
}
