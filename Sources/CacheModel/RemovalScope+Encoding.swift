import FoundationEssentials

/// Scopes as bytes, in the removal log and in the log of a fleet.
extension RemovalScope {
  private static let maximumByteCount = 448
  private static let digestedBeginningByteCount = 384

  /// The scope, or a shorter one that covers at least as much, because the removal log stores no long keys.
  package var abbreviated: RemovalScope {
    switch self {
    case .everything, .since, .digested, .digestedGroup:
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
    case .group(let origin, let name):
      if origin.count + name.utf8.count <= Self.maximumByteCount { return self }
      // No host of the public domain name system makes an origin this long.
      guard origin.count <= Self.digestedBeginningByteCount else {
        return .prefix(Array(origin.prefix(Self.digestedBeginningByteCount)))
      }
      let digest = Self.digest(of: Array(name.utf8))
      return .digestedGroup(
        origin: origin, byteCount: UInt64(name.utf8.count), digest: digest.high, digest.low)
    }
  }

  private enum Tag: UInt8 {
    case everything = 1
    case since, prefix, group, target, key, digested, digestedGroup, resource
  }

  package var encoded: [UInt8] {
    var writer = ByteWriter()
    func append(_ tag: Tag, _ bytes: [UInt8] = []) { writer.bytes += [tag.rawValue] + bytes }
    switch self {
    case .everything: append(.everything)
    case .since(let date):
      append(.since)
      writer.append(date.timeIntervalSinceReferenceDate)
    case .prefix(let bytes): append(.prefix, bytes)
    case .group(let origin, let name):
      append(.group)
      writer.append(counted: name)
      writer.bytes += origin
    case .target(let bytes): append(.target, bytes)
    case .key(let bytes): append(.key, bytes)
    case .digested(let beginning, let byteCount, let isWholeKey, let high, let low):
      append(.digested)
      writer.append(UInt8(isWholeKey ? 1 : 0))
      for number in [byteCount, high, low] { writer.append(number) }
      writer.bytes += beginning
    case .digestedGroup(let origin, let byteCount, let high, let low):
      append(.digestedGroup)
      for number in [byteCount, high, low] { writer.append(number) }
      writer.bytes += origin
    case .resource(let bytes): append(.resource, bytes)
    }
    return writer.bytes
  }

  /// Decodes ``encoded``; nil if the bytes are malformed. A scope of an unknown kind counts as everything.
  package init?(encoded bytes: UnsafeRawBufferPointer) {
    var reader = ByteReader(bytes)
    guard let number = reader.read(UInt8.self) else { return nil }
    var rest: [UInt8] { [UInt8](bytes[reader.offset...]) }
    switch Tag(rawValue: number) {
    case .everything, nil: self = .everything
    case .since:
      guard let seconds = reader.readDouble() else { return nil }
      self = .since(Date(timeIntervalSinceReferenceDate: seconds))
    case .prefix: self = .prefix(rest)
    case .group:
      guard let name = reader.readCountedString() else { return nil }
      self = .group(origin: rest, name: name)
    case .target: self = .target(rest)
    case .key: self = .key(rest)
    case .digested:
      guard let isWholeKey = reader.read(UInt8.self), let byteCount = reader.read(UInt64.self),
        let high = reader.read(UInt64.self), let low = reader.read(UInt64.self)
      else { return nil }
      self = .digested(
        beginning: rest, byteCount: byteCount, isWholeKey: isWholeKey != 0, digest: high, low)
    case .digestedGroup:
      guard let byteCount = reader.read(UInt64.self), let high = reader.read(UInt64.self),
        let low = reader.read(UInt64.self)
      else { return nil }
      self = .digestedGroup(origin: rest, byteCount: byteCount, digest: high, low)
    case .resource: self = .resource(rest)
    }
  }
}
