/// The tags of responses, by which many responses can be purged at once: "everything with product 42".
///
/// An origin names the tags of a response in fields, each with a syntax of its own:
///
/// | Field | Syntax |
/// |---|---|
/// | `Cache-Groups` (RFC 9875) | a structured list of strings; a malformed field has no tag |
/// | `Surrogate-Key`, `xkey` | separated by spaces |
/// | `Cache-Tag` | separated by commas, with spaces around them |
/// | any other field | separated by commas, spaces or both |
///
/// Tags are compared byte by byte, so that their case matters. Apart from `Cache-Groups`, an empty tag does not count.
public enum ResponseTags {
  /// The fields whose syntax is known.
  public static let knownFieldNames = ["Cache-Groups", "Surrogate-Key", "Cache-Tag", "xkey"]
  /// The maximum number of tags of a stored response: 1,000.
  public static let maximumCount = 1000
  /// The maximum size of all tags of a stored response: 16 KiB.
  public static let maximumByteCount = 16 << 10

  /// Returns the tags of a response without duplicates.
  ///
  /// - Parameters:
  ///   - fields: The fields of the response.
  ///   - fieldNames: The fields that have tags.
  /// - Returns: The tags as field values (``FieldText``).
  public static func tags(of fields: HeaderFields, in fieldNames: [String]) -> [String] {
    var tags: [String] = []
    var seen: Set<ArraySlice<UInt8>> = []
    _ = contains(fields, in: canonicalNames(fieldNames)) { tag in
      if seen.insert(tag).inserted { tags.append(FieldText.text(ofBytes: tag)) }
      return false
    }
    return tags
  }

  /// Returns names of fields in lowercase and without duplicates.
  package static func canonicalNames(_ names: [String]) -> [String] {
    var canonical: [String] = []
    for name in names.map({ $0.asciiLowercased() }) where !canonical.contains(name) { canonical.append(name) }
    return canonical
  }

  /// Whether a response has a tag that a closure accepts, which gets one tag after the other.
  ///
  /// - Parameter names: As ``canonicalNames(_:)`` returns them.
  package static func contains(
    _ fields: HeaderFields, in names: [String], where accepts: (ArraySlice<UInt8>) -> Bool
  ) -> Bool {
    names.contains { name in
      if name == "cache-groups" { return CacheGroups.groups(of: fields).contains { accepts(Array($0.utf8)[...]) } }
      let (hasCommas, hasSpaces) = (name != "surrogate-key" && name != "xkey", name != "cache-tag")
      return fields.values(of: name).contains { value in
        FieldText.bytes(of: value).split { byte in
          hasCommas && byte == UInt8(ascii: ",") || hasSpaces && byte.isFieldSpace
        }.contains { part in
          let tag = part.trimmingFieldSpace()
          return !tag.isEmpty && accepts(tag)
        }
      }
    }
  }

  /// Whether a response has more or longer tags than a cache stores.
  static func exceedLimits(_ fields: HeaderFields, in fieldNames: [String]) -> Bool {
    guard fieldNames.contains(where: { fields.contains($0) }) else { return false }
    var (count, byteCount) = (0, 0)
    return contains(fields, in: canonicalNames(fieldNames)) { tag in
      count += 1
      byteCount += tag.count
      return count > maximumCount || byteCount > maximumByteCount
    }
  }
}
