import CurlTransport
import Foundation
import Glibc

/// The input of `warm`, in pieces: a file or standard input, decompressed if it is a gzip file.
final class WarmInput {
  private static let pieceByteCount = 256 << 10

  private let descriptor: CInt
  private let name: String
  private var gzip: GzipReader?
  private var isFirst = true

  /// Opens the input.
  ///
  /// - Parameters:
  ///   - file: A path, or `-` for standard input.
  ///   - name: The name for messages.
  /// - Throws: `ToolError`.
  init(file: String, name: String) throws {
    self.name = name
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
  /// - Throws: `ToolError` if it cannot be read, or if a gzip file is damaged or cut.
  func next() throws -> Data? {
    while true {
      if let piece = try gzip?.next() { return piece }
      let raw = try read(atLeast: isFirst ? 2 : 1)
      guard !raw.isEmpty else {
        try gzip?.end()
        return nil
      }
      if isFirst, raw.starts(with: GzipReader.magic) { gzip = GzipReader(name: name) }
      isFirst = false
      guard let gzip else { return raw }
      gzip.append(raw)
    }
  }

  /// Reads a number of bytes or more; fewer only at the end.
  private func read(atLeast least: Int) throws -> Data {
    var bytes = [UInt8](repeating: 0, count: Self.pieceByteCount)
    var count = 0
    while count < least {
      let got = bytes[count...].withUnsafeMutableBytes { Glibc.read(descriptor, $0.baseAddress, $0.count) }
      if got == 0 { break }
      if got < 0, errno != EINTR { throw ToolError("\(name) cannot be read.") }
      count += max(got, 0)
    }
    return Data(bytes[..<count])
  }
}

/// Decompresses a gzip file in pieces.
final class GzipReader {
  static let magic: [UInt8] = [0x1f, 0x8b]
  /// Text rarely shrinks to less than a hundredth.
  private static let maximumExpansionFactor = 1000

  private var decoder = ContentDecoder(.gzip, maximumExpansionFactor: maximumExpansionFactor)
  private let name: String

  init(name: String) { self.name = name }

  func append(_ piece: Data) { decoder.append(piece) }

  func next() throws -> Data? {
    do {
      return try decoder.next()
    } catch {
      throw ToolError("\(name) is not a valid gzip file: \(error).")
    }
  }

  /// Checks that the file is complete.
  func end() throws {
    do {
      try decoder.checkEnd()
    } catch {
      throw ToolError("\(name) is not a complete gzip file.")
    }
  }
}
