import Foundation
import Glibc

/// The input of `warm`, in pieces: a file or standard input, decompressed if it is a gzip file.
final class WarmInput {
  private static let pieceByteCount = 256 << 10

  private let descriptor: CInt
  private let name: String
  private let content: Decompressor

  /// Opens the input.
  ///
  /// - Parameters:
  ///   - file: A path, or `-` for standard input.
  ///   - name: The name for messages.
  /// - Throws: `ToolError`.
  init(file: String, name: String) throws {
    self.name = name
    content = Decompressor(name: name)
    descriptor = file == "-" ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC)
    if descriptor < 0 {
      throw ToolError(errno == ENOENT ? "\(name) does not exist." : "\(name) cannot be read.")
    }
  }

  deinit {
    if descriptor > STDIN_FILENO { close(descriptor) }
  }

  /// Returns the next piece of the decompressed input; nil at its end.
  ///
  /// - Throws: `ToolError` if it cannot be read, or if a gzip file is corrupt or cut.
  func next() throws -> Data? {
    while true {
      if let piece = try content.next() { return piece }
      let raw = try read()
      guard !raw.isEmpty else { return try content.end() }
      content.append(raw)
    }
  }

  /// Reads some bytes; none only at the end.
  private func read() throws -> Data {
    var bytes = [UInt8](repeating: 0, count: Self.pieceByteCount)
    while true {
      let count = Glibc.read(descriptor, &bytes, bytes.count)
      if count >= 0 { return Data(bytes[..<count]) }
      if errno != EINTR { throw ToolError("\(name) cannot be read.") }
    }
  }
}
