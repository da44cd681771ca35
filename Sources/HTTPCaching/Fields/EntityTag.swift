/// An entity tag (RFC 9110, section 8.8.3).
public struct EntityTag: Sendable, Hashable {
  /// Whether the tag is marked as weak.
  public let isWeak: Bool
  /// The opaque part, with its quotes.
  public let opaque: String

  init(isWeak: Bool, opaque: String) {
    self.isWeak = isWeak
    self.opaque = opaque
  }

  /// Parses the value of an `ETag` field; `nil` if it is malformed.
  public init?(_ value: String) {
    let tags = Self.list(value)
    guard let tags, tags.count == 1 else { return nil }
    self = tags[0]
  }

  /// Parses the tag of a stored response. A tag without quotes, which many servers send, counts as weak.
  ///
  /// A weak tag can validate a response, but not combine parts.
  init?(stored fields: HeaderFields) {
    guard let value = fields.single("etag")?.trimmingFieldSpace(), !value.isEmpty else { return nil }
    if let tag = EntityTag(value) {
      self = tag
    } else if value.utf8.allSatisfy({ $0 > 0x20 && $0 != 0x7F && $0 != UInt8(ascii: ",") && $0 != UInt8(ascii: "\"") })
    {
      self.init(isWeak: true, opaque: value)
    } else {
      return nil
    }
  }

  /// The tag as in a field.
  public var rendered: String {
    isWeak && opaque.utf8.first == UInt8(ascii: "\"") ? "W/" + opaque : opaque
  }

  /// Whether both tags are strong and equal: strong comparison (RFC 9110, section 8.8.3.2).
  public func matchesStrongly(_ other: EntityTag) -> Bool { !isWeak && !other.isWeak && matchesWeakly(other) }

  /// Whether the opaque parts are equal: weak comparison.
  public func matchesWeakly(_ other: EntityTag) -> Bool { opaque.hasSameBytes(as: other.opaque) }

  /// Parses a list of tags in linear time, skipping empty elements; `nil` if it is malformed.
  static func list(_ value: String) -> [EntityTag]? {
    let bytes = Array(value.utf8)
    var tags: [EntityTag] = []
    var at = 0
    while true {
      while at < bytes.count, bytes[at].isFieldSpace || bytes[at] == UInt8(ascii: ",") { at += 1 }
      guard at < bytes.count else { return tags }
      var isWeak = false
      if bytes[at] == UInt8(ascii: "W"), at + 1 < bytes.count, bytes[at + 1] == UInt8(ascii: "/") {
        isWeak = true
        at += 2
      }
      guard at < bytes.count, bytes[at] == UInt8(ascii: "\"") else { return nil }
      let start = at
      at += 1
      while at < bytes.count, bytes[at] != UInt8(ascii: "\"") {
        // `etagc`: visible bytes except the quote, and bytes above ASCII.
        guard bytes[at] > 0x20, bytes[at] != 0x7F else { return nil }
        at += 1
      }
      guard at < bytes.count else { return nil }
      at += 1
      tags.append(EntityTag(isWeak: isWeak, opaque: String(decoding: bytes[start..<at], as: UTF8.self)))
      while at < bytes.count, bytes[at].isFieldSpace { at += 1 }
      guard at == bytes.count || bytes[at] == UInt8(ascii: ",") else { return nil }
    }
  }
}
