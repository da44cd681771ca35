// The fields of a response that are stored (RFC 9111, section 3.1) and that are valid (RFC 9110, section 5.5).

extension HeaderFields {
  /// Whether every name is a token and no value contains CR, LF or NUL.
  public var isWellFormed: Bool {
    lines.allSatisfy { line in
      !line.name.isEmpty && line.name.allBytesSatisfy(\.isTokenByte)
        && line.value.allBytesSatisfy { $0 != 0x0D && $0 != 0x0A && $0 != 0 }
    }
  }

  /// Returns the fields without lines with invalid names, and with CR, LF and NUL in values replaced by spaces.
  public func sanitized() -> HeaderFields {
    guard !isWellFormed else { return self }
    var clean = HeaderFields()
    for line in lines where !line.name.isEmpty && line.name.utf8.allSatisfy(\.isTokenByte) {
      let bytes = line.value.utf8.map { $0 == 0x0D || $0 == 0x0A || $0 == 0 ? 0x20 : $0 }
      clean.append(name: line.name, value: String(decoding: bytes, as: UTF8.self))
    }
    return clean
  }

  /// Fields that later decisions need. No directive and no `Connection` removes them.
  ///
  /// Without its `Vary`, for example, a response would be served to all users.
  static let decisive: Set<String> = [
    "age", "cache-control", "content-encoding", "content-length", "content-range", "content-type", "date", "etag",
    "expires", "last-modified", "vary",
  ]

  /// Returns the fields without hop-by-hop fields, fields named by `Connection`, and the lowercase `names`.
  ///
  /// A gateway passes these on (RFC 9110, section 7.6.1). Fields on which caching depends, such as `Vary`, are kept.
  public func withoutHopByHop(and names: [String] = []) -> HeaderFields {
    var named: Set<String> = []
    for value in values(of: "connection") {
      // Usually these are all hop-by-hop fields.
      for name in value.listElements where !Self.isHopByHop(name) && !Self.decisive.contains(name) {
        named.insert(name)
      }
    }
    for name in names where !Self.decisive.contains(name) { named.insert(name) }
    var kept = HeaderFields()
    kept.reserveCapacity(lines.count)
    for line in lines
    where !Self.isHopByHop(line.name) && (named.isEmpty || !named.contains(line.name.asciiLowercased())) {
      kept.lines.append(line)
    }
    return kept
  }

  private static func isHopByHop(_ name: String) -> Bool {
    UnsharedFields.ofConnection.contains { $0.equalsIgnoringCase(name) }
  }

  /// Returns the value of a field that may have only one; `nil` without a line, or if its lines differ.
  func single(_ name: String) -> String? {
    var first: String?
    for line in lines where line.name.equalsIgnoringCase(name) {
      guard let first else {
        first = line.value
        continue
      }
      if !line.value.hasSameBytes(as: first) { return nil }
    }
    return first
  }
}

extension String {
  /// Whether a condition holds for each byte. A loop over the string's UTF-8 view takes several times as long.
  fileprivate func allBytesSatisfy(_ condition: (UInt8) -> Bool) -> Bool {
    utf8.withContiguousStorageIfAvailable { $0.allSatisfy(condition) } ?? utf8.allSatisfy(condition)
  }
}
