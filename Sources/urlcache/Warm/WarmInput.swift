import CurlTransport
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

/// A file that arrives in pieces, decompressed if it is a gzip file.
final class Decompressor {
  private static let magic: [UInt8] = [0x1f, 0x8b]
  /// About the maximum of gzip, so that no list of URLs is refused. The limits of lines, sitemaps and requests bound
  /// the memory.
  private static let maximumExpansionFactor = 1000

  private let name: String
  private var decoder: ContentDecoder?
  /// The received bytes that neither a caller nor the decoder has.
  private var unread = Data()
  /// Whether enough bytes have arrived to tell a gzip file from others.
  private var isFormKnown = false

  init(name: String) { self.name = name }

  func append(_ piece: Data) {
    unread.append(piece)
    if !isFormKnown, unread.count >= Self.magic.count {
      isFormKnown = true
      if unread.starts(with: Self.magic) {
        decoder = ContentDecoder(.gzip, maximumExpansionFactor: Self.maximumExpansionFactor)
      }
    }
    if decoder != nil { decoder?.append(takeUnread() ?? Data()) }
  }

  private func takeUnread() -> Data? {
    defer { unread = Data() }
    return unread.isEmpty ? nil : unread
  }

  /// Returns a piece of the content; nil until more is appended.
  func next() throws -> Data? {
    guard isFormKnown else { return nil }
    guard decoder != nil else { return takeUnread() }
    do {
      return try decoder?.next()
    } catch {
      throw ToolError("\(name) is not a valid gzip file: \(error).")
    }
  }

  /// Returns the rest of a file that is too short to have a form; nil if there is none.
  ///
  /// - Throws: `ToolError` if a gzip file is not complete.
  func end() throws -> Data? {
    do {
      try decoder?.checkEnd()
    } catch {
      throw ToolError("\(name) is not a complete gzip file.")
    }
    return takeUnread()
  }
}
