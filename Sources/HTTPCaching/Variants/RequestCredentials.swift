#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

extension RequestHead {
  /// The credentials of the request: its `Authorization`, and the user of its URL; `nil` without any.
  ///
  /// Clients send the user of a URL as `Authorization`. Store credentials only as a keyed digest.
  package var credentials: String? {
    let field = fields["authorization"]?.trimmingFieldSpace()
    guard let user = url.userInformation else { return field }
    // A field value contains no line feed, so the result differs from that of any request without a user.
    return (field ?? "") + "\n" + user
  }

  /// Whether the request has credentials, in a field or in its URL.
  var hasCredentials: Bool { fields.contains("authorization") || url.hasUserInformation }

  /// Whether its `Host` field names another host than its URL, so that the response is for another URL (RFC 9110, 7.2).
  ///
  /// - Complexity: Linear in the number of fields; compares the lengths of their names.
  public var namesOtherHost: Bool {
    for line in fields.lines where line.name.utf8.count == 4 && line.name.equalsIgnoringCase("host") {
      let value = line.value.trimmingFieldSpace()
      guard !value.isEmpty, !value.utf8.contains(where: Self.endsHost), let scheme = url.scheme,
        let named = URL(string: "\(scheme)://\(value)"), let origin = Invalidation.origin(of: named),
        origin == Invalidation.origin(of: url)
      else { return true }
    }
    return false
  }

  /// Whether a byte cannot occur in a host with port.
  private static func endsHost(_ byte: UInt8) -> Bool {
    switch byte {
    case UInt8(ascii: "/"), UInt8(ascii: "?"), UInt8(ascii: "#"), UInt8(ascii: "@"), UInt8(ascii: "\\"): true
    default: byte <= 0x20
    }
  }
}

extension URL {
  /// The user and password of the authority as in the text; `nil` if there are none (RFC 3986, section 3.2.1).
  var userInformation: String? {
    var text = absoluteString
    return text.withUTF8 { text in
      Self.userInformation(in: text).map { String(decoding: text[$0], as: UTF8.self) }
    }
  }

  /// The text without ``userInformation``, for everything that is written to disk or shown.
  ///
  /// - Complexity: One pass over the authority, if there is no user.
  package var textWithoutUserInformation: String {
    let text = absoluteString
    guard hasUserInformation, let at = text.firstRange(of: "//"), let user = userInformation else { return text }
    // The `@` also goes.
    let rest = text.utf8[at.upperBound...].dropFirst(user.utf8.count + 1)
    return text[..<at.upperBound] + String(Substring(rest))
  }

  /// Whether ``userInformation`` is not `nil`.
  ///
  /// - Complexity: One pass over the authority.
  package var hasUserInformation: Bool {
    var text = absoluteString
    return text.withUTF8 { Self.userInformation(in: $0) != nil }
  }

  /// Returns the range from after `//` to the last `@` before the path.
  private static func userInformation(in text: UnsafeBufferPointer<UInt8>) -> Range<Int>? {
    guard let colon = text.firstIndex(of: UInt8(ascii: ":")), text.count > colon + 2,
      text[colon + 1] == UInt8(ascii: "/"), text[colon + 2] == UInt8(ascii: "/")
    else { return nil }
    let start = colon + 3
    var end = start
    scan: for index in start..<text.count {
      switch text[index] {
      case UInt8(ascii: "/"), UInt8(ascii: "?"), UInt8(ascii: "#"): break scan
      case UInt8(ascii: "@"): end = index
      default: break
      }
    }
    return end > start ? start..<end : nil
  }
}
