import FoundationEssentials

/// Scopes as bytes, in the removal log and in the log of a fleet.
extension RemovalScope {
  private static let maximumByteCount = 448
  private static let maximumEncodedByteCount = 453
  private static let digestedBeginningByteCount = 384

  /// The scope, or a shorter one that covers at least as much, because the removal log stores no long keys.
  package var abbreviated: RemovalScope {
    switch self {
    case .everything, .since, .digested:
      return self
    case .prefix(let bytes), .target(let bytes), .key(let bytes):
      guard bytes.count > Self.maximumByteCount else { return self }
      let digest = Self.digest(of: bytes)
      var isWholeKey = false
      if case .key = self { isWholeKey = true }
      return .digested(
        beginning: Array(bytes.prefix(Self.digestedBeginningByteCount)), byteCount: UInt64(bytes.count),
        isWholeKey: isWholeKey, digest: digest.high, digest.low)
    case .resource(let bytes):
      if bytes.count <= Self.maximumByteCount { return self }
      return RemovalScope.target(Array(RequestKey(storedBytes: bytes).targetPrefix)).abbreviated
    case .tag(let name, let fieldNames, let origin):
      if encoded.count <= Self.maximumEncodedByteCount { return self }
      guard case .bytes(let bytes) = name else {
        // No host of the public domain name system, and no usual names of fields are this long.
        return origin.isEmpty ? .everything : .prefix(Array(origin.prefix(Self.digestedBeginningByteCount)))
      }
      let digest = Self.digest(of: bytes)
      let digested = RemovalScope.TagName.digest(byteCount: UInt64(bytes.count), digest.high, digest.low)
      return RemovalScope.tag(digested, fieldNames: fieldNames, origin: origin).abbreviated
    }
  }

  private enum Kind: UInt8 {
    case everything = 1
    case since, prefix
    // 4 and 8 were cache groups, in earlier formats.
    case target = 5
    case key, digested
    case resource = 9
    case tag, digestedTag
  }

  package var encoded: [UInt8] {
    var writer = ByteWriter()
    func append(_ kind: Kind, _ bytes: [UInt8] = []) { writer.bytes += [kind.rawValue] + bytes }
    switch self {
    case .everything: append(.everything)
    case .since(let date):
      append(.since)
      writer.append(date.timeIntervalSinceReferenceDate)
    case .prefix(let bytes): append(.prefix, bytes)
    case .tag(let name, let fieldNames, let origin):
      switch name {
      case .bytes(let bytes):
        append(.tag)
        writer.append(UInt32(bytes.count))
        writer.bytes += bytes
      case .digest(let byteCount, let high, let low):
        append(.digestedTag)
        for number in [byteCount, high, low] { writer.append(number) }
      }
      writer.append(counted: fieldNames.joined(separator: ","))
      writer.bytes += origin
    case .target(let bytes): append(.target, bytes)
    case .key(let bytes): append(.key, bytes)
    case .digested(let beginning, let byteCount, let isWholeKey, let high, let low):
      append(.digested)
      writer.append(UInt8(isWholeKey ? 1 : 0))
      for number in [byteCount, high, low] { writer.append(number) }
      writer.bytes += beginning
    case .resource(let bytes): append(.resource, bytes)
    }
    return writer.bytes
  }

  /// Decodes ``encoded``; nil if the bytes are malformed. A scope of an unknown kind counts as everything.
  package init?(encoded bytes: UnsafeRawBufferPointer) {
    var reader = ByteReader(bytes)
    guard let number = reader.read(UInt8.self) else { return nil }
    var rest: [UInt8] { [UInt8](bytes[reader.offset...]) }
    switch Kind(rawValue: number) {
    case .everything, nil: self = .everything
    case .since:
      guard let seconds = reader.readDouble() else { return nil }
      self = .since(Date(timeIntervalSinceReferenceDate: seconds))
    case .prefix: self = .prefix(rest)
    case .target: self = .target(rest)
    case .key: self = .key(rest)
    case .digested:
      guard let isWholeKey = reader.read(UInt8.self), let byteCount = reader.read(UInt64.self),
        let high = reader.read(UInt64.self), let low = reader.read(UInt64.self)
      else { return nil }
      self = .digested(
        beginning: rest, byteCount: byteCount, isWholeKey: isWholeKey != 0, digest: high, low)
    case .resource: self = .resource(rest)
    case .tag:
      guard let count = reader.read(UInt32.self), let name = reader.readBytes(Int(count)),
        let fieldNames = reader.readCountedString()
      else { return nil }
      self = .tag(.bytes([UInt8](name)), fieldNames: Self.names(fieldNames), origin: rest)
    case .digestedTag:
      guard let byteCount = reader.read(UInt64.self), let high = reader.read(UInt64.self),
        let low = reader.read(UInt64.self), let fieldNames = reader.readCountedString()
      else { return nil }
      self = .tag(.digest(byteCount: byteCount, high, low), fieldNames: Self.names(fieldNames), origin: rest)
    }
  }

  private static func names(_ joined: String) -> [String] { joined.split(separator: ",").map(String.init) }
}
