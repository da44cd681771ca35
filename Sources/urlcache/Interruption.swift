import Dispatch
import Glibc

/// Calls a closure when the process gets SIGINT or SIGTERM. The next such signal ends the process.
final class Interruption {
  private static let numbers = [SIGINT, SIGTERM]
  private let sources: [any DispatchSourceSignal]

  /// - Parameter handler: Called on another thread.
  init(_ handler: @escaping @Sendable () -> Void) {
    sources = Self.numbers.map { number in
      signal(number, SIG_IGN)
      let source = DispatchSource.makeSignalSource(signal: number, queue: .global())
      source.setEventHandler {
        handler()
        signal(number, SIG_DFL)
      }
      source.resume()
      return source
    }
  }

  /// Ignores the signals from now on, for work that must not be left half done.
  func end() {
    for source in sources { source.cancel() }
    // After a first signal the handler has restored the default action.
    for number in Self.numbers { signal(number, SIG_IGN) }
  }
}
