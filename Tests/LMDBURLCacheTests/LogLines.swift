import Synchronization

/// Collects log lines.
///
/// The test targets refer to this file through symbolic links.
final class LogLines: Sendable {
  private let lines = Mutex<[String]>([])

  var all: [String] { lines.withLock { $0 } }

  func append(_ line: String) {
    lines.withLock { $0.append(line) }
  }
}
