import Foundation
import Glibc

/// Unbuffered standard output and standard error.
enum Output {
  /// The error after the reader of the output has closed it.
  struct BrokenPipe: Error {}

  /// Writes to standard output.
  ///
  /// - Throws: `BrokenPipe`, or a `ToolError` if writing fails for another reason.
  static func write(_ text: String) throws {
    try write(Data(ProcessArguments.withGivenNames(text).utf8))
  }

  /// Writes to standard output, or to another descriptor with this name.
  static func write(_ data: Data, to descriptor: CInt = STDOUT_FILENO, name: String = "standard output") throws {
    try data.withUnsafeBytes { bytes in
      var rest = bytes[...]
      while !rest.isEmpty {
        let count = Glibc.write(descriptor, UnsafeRawBufferPointer(rebasing: rest).baseAddress, rest.count)
        if count >= 0 {
          rest = rest.dropFirst(count)
        } else if errno == EPIPE {
          throw BrokenPipe()
        } else if errno == EAGAIN {
          var waiting = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
          poll(&waiting, 1, -1)
        } else if errno != EINTR {
          throw ToolError("Writing to \(name) failed: \(String(cString: strerror(errno)))")
        }
      }
    }
  }

  /// Writes to standard error. A failure is ignored, because it cannot be reported.
  static func error(_ text: String) {
    write(ProcessArguments.withGivenNames(text), toTerminal: STDERR_FILENO)
  }

  /// Writes to the terminal with this descriptor. A failure is ignored, because it cannot be reported.
  static func write(_ text: String, toTerminal terminal: CInt) {
    let bytes = Array(text.utf8)
    _ = Glibc.write(terminal, bytes, bytes.count)
  }
}
