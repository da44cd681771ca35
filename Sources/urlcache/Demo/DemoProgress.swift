import Dispatch
import Glibc
import Synchronization

/// Progress of the demonstration on standard error. On a terminal, the current line shows a count.
final class DemoProgress: Sendable {
  private struct State {
    var title = ""
    var total = 0
    var start = ContinuousClock.now
    var shownAt = ContinuousClock.now
  }

  private let state = Mutex(State())
  private let done = Atomic<Int>(0)
  private let isTerminal = isatty(STDERR_FILENO) == 1

  func say(_ text: String) {
    Output.error(text + "\n")
  }

  /// Starts a phase with a number of steps; 0 if they are not counted.
  func begin(_ title: String, total: Int) {
    done.store(0, ordering: .relaxed)
    state.withLock {
      $0 = State(title: title, total: total)
      if isTerminal { Output.error("\(title) …") }
    }
  }

  func step() {
    let count = done.wrappingAdd(1, ordering: .relaxed).newValue
    guard isTerminal, count.isMultiple(of: 16) else { return }
    state.withLock { state in
      guard ContinuousClock.now - state.shownAt > .milliseconds(100) else { return }
      state.shownAt = .now
      Output.error("\r\u{1B}[K\(state.title) … \(Format.count(count)) of \(Format.count(state.total))")
    }
  }

  func end(_ result: String) {
    state.withLock { state in
      let duration = Format.latency(ContinuousClock.now - state.start)
      Output.error("\(isTerminal ? "\r\u{1B}[K" : "")\(state.title): \(result) (\(duration))\n")
    }
  }
}
