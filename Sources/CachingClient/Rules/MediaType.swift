import HTTPCaching

/// Media types of responses.
package enum MediaType {
  /// The description of a valid pattern.
  package static let form = "a media type without parameters, such as text/html or 'image/*'"

  /// Returns the media type in a Content-Type field, in lower case without parameters, such as `text/html`.
  package static func name(inContentType value: String?) -> String? {
    guard let type = value?.prefix(while: { $0 != ";" && $0 != "," }) else { return nil }
    return String(type).trimmingFieldSpace().asciiLowercased()
  }

  /// Returns a pattern for media types, in which a `*` matches any characters; nil for a text that no media type can
  /// match.
  package static func pattern(_ text: String) -> Wildcards? {
    let parts = text.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
    guard parts.count == 2, parts.allSatisfy({ !$0.isEmpty && $0.allSatisfy(\.isTokenByte) }) else { return nil }
    return Wildcards(text.asciiLowercased())
  }
}
