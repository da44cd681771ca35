import CurlTransport
import Foundation

/// A file that arrives in pieces, decompressed if it is a gzip file.
final class Decompressor {
  private static let magic: [UInt8] = [0x1f, 0x8b]
  /// A tenth of what gzip can do. Lists, sitemaps and HAR files expand to less. Applies from 16 MiB on, so that a file
  /// made to expand to gigabytes is refused at once.
  private static let maximumExpansionFactor = 100

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
    } catch  where error.code == .excessiveExpansion {
      throw ToolError(
        "\(name) expands to more than \(Self.maximumExpansionFactor) times its size, which no list of URLs does.")
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
