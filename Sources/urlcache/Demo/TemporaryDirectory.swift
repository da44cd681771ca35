import Dispatch
import Foundation
import Glibc

/// A temporary directory that is removed at the end, also when a signal ends the process.
final class TemporaryDirectory {
  private let root: String
  /// Retained, because signals are ignored otherwise.
  private let sources: [any DispatchSourceSignal]

  var cachePath: String { path(of: "cache") }
  func path(of name: String) -> String { root + "/" + name }

  init() throws {
    var template = Array(
      (NSTemporaryDirectory() as NSString).appendingPathComponent("urlcache-demo-XXXXXX").utf8CString)
    guard mkdtemp(&template) != nil else {
      throw ToolError("No temporary directory could be made: \(String(cString: strerror(errno))).")
    }
    let root = template.withUnsafeBufferPointer { String(cString: $0.baseAddress!) }
    self.root = root
    sources = [SIGINT, SIGTERM, SIGHUP].map { number in
      // The dispatch source handles the signal; the default action would end the process first.
      signal(number, SIG_IGN)
      let source = DispatchSource.makeSignalSource(signal: number, queue: .global(qos: .userInitiated))
      source.setEventHandler {
        Self.remove(root)
        // Skip the exit handlers: closing the store would wait for its writer, although the directory is gone.
        _exit(128 + number)
      }
      source.resume()
      return source
    }
  }

  func remove() {
    Self.remove(root)
  }

  private static func remove(_ root: String) {
    // If the demonstration is interrupted, its threads may create files while the directory is emptied.
    let maximumTryCount = 100
    for number in 1...maximumTryCount {
      do {
        try FileManager.default.removeItem(atPath: root)
        return
      } catch  where FileManager.default.fileExists(atPath: root) {
        if number == maximumTryCount { Output.error("urlcache demo: \(root) could not be removed: \(error)\n") }
        usleep(10_000)
      } catch {
        // The directory is already removed.
        return
      }
    }
  }
}
