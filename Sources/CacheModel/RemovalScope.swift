import FoundationEssentials
import HTTPCaching

/// The set of responses that a removal covers.
///
/// Create scopes with the static methods, for the removals of a store. The cases hold bytes of a
/// ``RequestKey``, as they are written to disk.
public enum RemovalScope: Sendable, Hashable {
  /// All responses.
  case everything
  /// Responses stored or updated after the date.
  case since(Date)
  /// Keys that begin with these bytes: a host or a URL prefix.
  case prefix([UInt8])
  /// Members of a cache group (RFC 9875) of the origin whose keys begin with these bytes.
  case group(origin: [UInt8], name: String)
  /// One URL with all methods, partitions and variants, as the beginning of its keys.
  case target([UInt8])
  /// One key with all its variants.
  case key([UInt8])
  /// One URL in one partition, as the key of a request for it: with its variants, its queries, the responses for each of
  /// its users, and the equivalent URLs of its path.
  case resource([UInt8])
  /// A prefix, target or key that is too long for the removal log: its beginning, length and digest.
  case digested(beginning: [UInt8], byteCount: UInt64, isWholeKey: Bool, digest: UInt64, UInt64)
  /// Members of a cache group whose name is too long for the removal log: the length and digest of the name.
  case digestedGroup(origin: [UInt8], byteCount: UInt64, digest: UInt64, UInt64)

  /// Covers no response. Takes the place of a removal that its process did not complete.
  package static let nothing = RemovalScope.since(Date(timeIntervalSinceReferenceDate: .infinity))

  /// Whether the scope covers an entry. Calls `groups` only if the result depends on it.
  ///
  /// A scope of URLs with a query also covers the equivalent URLs of their path (No-Vary-Search), because a response that is
  /// stored for one of them may answer the others.
  ///
  /// Programs of different versions use a directory one after another, and their removals must mean the same. If this
  /// meaning changes, raise the version of the storage format and that of the fleet's log.
  public func covers(key: some Collection<UInt8>, storedAt: Date, groups: () -> [String]) -> Bool {
    switch self {
    case .everything: true
    case .since(let date): storedAt > date
    case .prefix(let prefix), .target(let prefix):
      key.starts(with: prefix) || RequestKey.isInSearchSpace(key, ofURLsWith: prefix)
    case .group(let origin, let name): key.starts(with: origin) && groups().contains(name)
    case .key(let bytes): key.elementsEqual(bytes)
    case .resource(let bytes): RequestKey.isOfResource(key, bytes)
    case .digested(let beginning, let byteCount, let isWholeKey, let high, let low):
      (isWholeKey ? key.count == byteCount : key.count >= byteCount) && key.starts(with: beginning)
        && Self.digest(of: Array(key.prefix(Int(clamping: byteCount)))) == (high, low)
        || !isWholeKey && RequestKey.isInSearchSpace(key, ofURLsWith: beginning)
    case .digestedGroup(let origin, let byteCount, let high, let low):
      key.starts(with: origin)
        && groups().contains {
          $0.utf8.count == byteCount && Self.digest(of: Array($0.utf8)) == (high, low)
        }
    }
  }

  /// Whether the scope may cover a response in flight. It is newer than any date, and its groups are unknown.
  package func mayCover(_ key: RequestKey) -> Bool {
    switch self {
    case .group(let origin, _), .digestedGroup(let origin, _, _, _): return key.bytes.starts(with: origin)
    default: break
    }
    return covers(key: key.bytes, storedAt: .distantFuture) { [] }
  }

  /// The beginning of the covered keys; nil if keys of any host can be covered.
  package var hostPrefix: [UInt8]? {
    switch self {
    case .prefix(let bytes), .target(let bytes), .key(let bytes), .resource(let bytes), .group(let bytes, _),
      .digested(let bytes, _, _, _, _), .digestedGroup(let bytes, _, _, _):
      bytes
    case .everything, .since: nil
    }
  }

  /// The keys whose records must be deleted so that no lookup finds a response that the scope covers; nil if they are not
  /// known. The responses in the spaces of a resource become unreachable with the records of these.
  package var keys: [[UInt8]]? {
    switch self {
    case .key(let bytes): [bytes]
    case .resource(let bytes): RequestKey(storedBytes: bytes).withSpaces.map(\.bytes)
    default: nil
    }
  }

  private static func digest(of bytes: [UInt8]) -> (high: UInt64, low: UInt64) {
    bytes.withUnsafeBytes { XXHash.digest128($0) }
  }

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
      guard origin.count <= Self.maximumByteCount else { return .prefix(Array(origin.prefix(Self.maximumByteCount))) }
      let digest = Self.digest(of: Array(name.utf8))
      return .digestedGroup(
        origin: origin, byteCount: UInt64(name.utf8.count), digest: digest.high, digest.low)
    }
  }

  /// Covers all responses of a host, with any scheme and port. Not those of its subdomains.
  ///
  /// - Parameter host: A host in any spelling. Text that is not one host alone covers nothing.
  public static func host(_ host: String) -> RemovalScope {
    .host(validating: host) ?? .prefix(Array(host.utf8) + [0])
  }

  /// Covers all responses of a host, as ``host(_:)``; nil if the text is not one host alone.
  package static func host(validating text: String) -> RemovalScope? {
    RequestKey.prefix(host: text).map { .prefix($0) }
  }

  /// Covers URLs that begin with this one: same scheme, host and port, and a path and query with this prefix. Nil for a
  /// URL that cannot be cached.
  public static func urlPrefix(_ url: URL) -> RemovalScope? {
    RequestKey.prefix(url: url).map { .prefix($0) }
  }

  /// Covers one URL with all methods, partitions and variants (RFC 9111, section 4.4); nil for a URL that cannot be
  /// cached.
  public static func target(of url: URL) -> RemovalScope? {
    RequestKey(url: url).map { .target(Array($0.targetPrefix)) }
  }

  /// Covers one URL in one partition.
  ///
  /// - Parameter key: The key of a request for the URL.
  package static func resource(_ key: RequestKey) -> RemovalScope { .resource(key.bytes) }

  /// Covers the members of a cache group (RFC 9875) of the URL's origin; nil for a URL that cannot be cached.
  public static func group(_ name: String, ofOrigin url: URL) -> RemovalScope? {
    RequestKey.prefix(url: url, isOrigin: true).map { .group(origin: $0, name: name) }
  }

  private enum Tag: UInt8 {
    case everything = 1
    case since, prefix, group, target, key, digestedAsSpelled, digestedGroup
    /// Of keys with letters among the digits of percent-encoding, and of keys that the scope does not have as a whole.
    ///
    /// Earlier versions, which may be in the same fleet, have these digits as a URL spells them. They do not know these
    /// tags, and remove everything.
    case encodedPrefix, encodedTarget, encodedKey, digested
    case resource
  }

  package var encoded: [UInt8] {
    var writer = ByteWriter()
    switch self {
    case .everything: return [Tag.everything.rawValue]
    case .prefix(let prefix): return [Self.tag(.prefix, or: .encodedPrefix, for: prefix)] + prefix
    case .target(let prefix): return [Self.tag(.target, or: .encodedTarget, for: prefix)] + prefix
    case .key(let key): return [Self.tag(.key, or: .encodedKey, for: key)] + key
    case .resource(let key): return [Tag.resource.rawValue] + key
    case .since(let date):
      writer.append(Tag.since.rawValue)
      writer.append(date.timeIntervalSinceReferenceDate)
    case .group(let origin, let name):
      writer.append(Tag.group.rawValue)
      writer.append(counted: name)
      writer.bytes += origin
    case .digested(let beginning, let byteCount, let isWholeKey, let high, let low):
      writer.append(Tag.digested.rawValue)
      writer.append(UInt8(isWholeKey ? 1 : 0))
      for number in [byteCount, high, low] { writer.append(number) }
      writer.bytes += beginning
    case .digestedGroup(let origin, let byteCount, let high, let low):
      writer.append(Tag.digestedGroup.rawValue)
      for number in [byteCount, high, low] { writer.append(number) }
      writer.bytes += origin
    }
    return writer.bytes
  }

  private static func tag(_ tag: Tag, or encoded: Tag, for bytes: [UInt8]) -> UInt8 {
    PercentEncoding.hasLetters(inTargetOf: bytes) ? encoded.rawValue : tag.rawValue
  }

  /// Decodes ``encoded``; nil if the bytes are malformed. A scope of an unknown kind counts as everything.
  package init?(encoded bytes: UnsafeRawBufferPointer) {
    var reader = ByteReader(bytes)
    guard let number = reader.read(UInt8.self) else { return nil }
    guard let tag = Tag(rawValue: number) else {
      self = .everything
      return
    }
    // The bytes of an earlier version may have lowercase digits.
    var rest: [UInt8] { PercentEncoding.uppercasingDigits(inTargetOf: [UInt8](bytes[reader.offset...])) }
    switch tag {
    case .everything: self = .everything
    case .since:
      guard let seconds = reader.readDouble() else { return nil }
      self = .since(Date(timeIntervalSinceReferenceDate: seconds))
    case .prefix, .encodedPrefix: self = .prefix(rest)
    case .group:
      guard let name = reader.readCountedString() else { return nil }
      self = .group(origin: rest, name: name)
    case .target, .encodedTarget: self = .target(rest)
    case .key, .encodedKey: self = .key(rest)
    case .digestedAsSpelled:
      // The digest is that of other bytes if these have lowercase digits. Cover at least as much.
      guard reader.readBytes(25) != nil else { return nil }
      self = .prefix(Array(rest.prefix { $0 != UInt8(ascii: "%") }))
    case .resource: self = .resource(rest)
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
    }
  }
}
