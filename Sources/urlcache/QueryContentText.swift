/// The content of a query in the output: its size and its digest, never the content itself.
enum QueryContentText {
  /// The number of digits that tell contents apart in a list.
  private static let shortDigitCount = 8

  /// Returns the text for a line that has more to say.
  static func short(digest: String, byteCount: Int) -> String {
    "(content \(Format.bytes(byteCount)), \(Format.visible(String(digest.prefix(shortDigitCount))))…)"
  }

  /// Returns the text for a line of its own.
  static func long(digest: String, byteCount: Int) -> String {
    "\(Format.bytes(byteCount)), digest \(Format.visible(digest))"
  }

  /// Returns the JSON; null without content.
  static func json(_ content: (digest: String, byteCount: Int)?) -> JSON {
    content.map { ["digest": .string($0.digest), "byteCount": .number($0.byteCount)] } ?? .null
  }
}
