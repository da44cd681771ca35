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
  /// Responses with a tag, such as the members of a cache group (RFC 9875), in one of these fields.
  ///
  /// The names of the fields are part of the scope, so that it means the same in programs with other options. The
  /// origin is the beginning of the keys that can be covered; empty for all keys.
  case tag(TagName, fieldNames: [String], origin: [UInt8])
  /// One URL with all methods, partitions and variants, as the beginning of its keys.
  case target([UInt8])
  /// One key with all its variants.
  case key([UInt8])
  /// One URL in one partition, as the key of a request for it: with its variants, its queries, the responses for each
  /// of its users, and the equivalent URLs of its path.
  case resource([UInt8])
  /// A prefix, target or key that is too long for the removal log: its beginning, length and digest.
  case digested(beginning: [UInt8], byteCount: UInt64, isWholeKey: Bool, digest: UInt64, UInt64)

  /// The name of a tag.
  public enum TagName: Sendable, Hashable {
    /// The bytes of the name.
    case bytes([UInt8])
    /// A name that is too long for the removal log: its length and digest.
    case digest(byteCount: UInt64, UInt64, UInt64)

    func isName(of tag: ArraySlice<UInt8>) -> Bool {
      switch self {
      case .bytes(let bytes): tag == bytes[...]
      case .digest(let byteCount, let high, let low):
        tag.count == byteCount && RemovalScope.digest(of: Array(tag)) == (high, low)
      }
    }
  }

  /// Covers no response. Takes the place of a removal that its process did not complete.
  package static let nothing = RemovalScope.since(Date(timeIntervalSinceReferenceDate: .infinity))

  /// Whether the scope covers a response. This is the only place that decides it.
  ///
  /// A scope of URLs with a query also covers the equivalent URLs of their path (No-Vary-Search), because a response
  /// that is stored for one of them may answer the others.
  ///
  /// Programs of different versions use a directory one after another, and their removals must mean the same. If this
  /// meaning changes, raise the version of the storage format and that of the fleet's log.
  ///
  /// - Parameters:
  ///   - key: The cache key of the response.
  ///   - storedAt: When the response was last updated or stored.
  ///   - fields: Returns the fields of the response; nil if they are unknown, so that any scope of fields covers them.
  ///     Called only if the result depends on it.
  public func covers(key: some Collection<UInt8>, storedAt: Date, fields: () -> HeaderFields?) -> Bool {
    switch self {
    case .everything: true
    case .since(let date): storedAt > date
    case .prefix(let prefix), .target(let prefix):
      key.starts(with: prefix) || RequestKey.isInSearchSpace(key, ofURLsWith: prefix)
    case .tag(let name, let fieldNames, let origin):
      key.starts(with: origin)
        && (fields().map { ResponseTags.contains($0, in: fieldNames, where: name.isName) } ?? true)
    case .key(let bytes): key.elementsEqual(bytes)
    case .resource(let bytes): RequestKey.isOfResource(key, bytes)
    case .digested(let beginning, let byteCount, let isWholeKey, let high, let low):
      (isWholeKey ? key.count == byteCount : key.count >= byteCount) && key.starts(with: beginning)
        && Self.digest(of: Array(key.prefix(Int(clamping: byteCount)))) == (high, low)
        || !isWholeKey && RequestKey.isInSearchSpace(key, ofURLsWith: beginning)
    }
  }

  /// Whether the scope may cover a response in flight. It is newer than any date, and its fields are unknown.
  package func mayCover(_ key: RequestKey) -> Bool {
    covers(key: key.bytes, storedAt: .distantFuture) { nil }
  }

  /// The beginning of the covered keys; nil if keys of any host can be covered.
  ///
  /// The keys of spaces of equivalent URLs have the beginning ``path`` instead.
  package var beginning: [UInt8]? {
    switch self {
    case .prefix(let bytes), .target(let bytes), .key(let bytes), .digested(let bytes, _, _, _, _): bytes
    case .tag(_, _, let origin): origin.isEmpty ? nil : origin
    case .resource(let bytes): Array(RequestKey(storedBytes: bytes).targetPrefix)
    default: nil
    }
  }

  /// The path whose equivalent URLs the scope covers; nil if there is none, or all covered keys have the ``beginning``.
  var path: ArraySlice<UInt8>? {
    switch self {
    case .prefix, .target, .resource, .digested(_, _, isWholeKey: false, _, _):
      beginning.flatMap { RequestKey.path(ofURLsWith: $0) }
    default: nil
    }
  }

  /// The keys whose records must be deleted so that no lookup finds a response that the scope covers; nil if they are
  /// not known. The responses in the spaces of a resource become unreachable with the records of these.
  package var keys: [[UInt8]]? {
    switch self {
    case .key(let bytes): [bytes]
    case .resource(let bytes): RequestKey(storedBytes: bytes).withSpaces.map(\.bytes)
    default: nil
    }
  }

  static func digest(of bytes: [UInt8]) -> (high: UInt64, low: UInt64) {
    bytes.withUnsafeBytes { XXHash.digest128($0) }
  }

  // MARK: Creating

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
    RequestKey.prefix(url: url, isOrigin: true).map {
      .tag(.bytes(Array(name.utf8)), fieldNames: groupFieldNames, origin: $0)
    }
  }

  private static let groupFieldNames = ["cache-groups"]

  /// Covers the responses with a tag (``/HTTPCaching/ResponseTags``).
  ///
  /// - Parameters:
  ///   - name: The tag as a field value (``/HTTPCaching/FieldText``).
  ///   - fieldNames: The fields that have tags.
  ///   - url: Any URL of the origin of the responses; nil for all hosts.
  /// - Returns: Nil for an empty tag, without fields, and for a URL that cannot be cached.
  public static func tag(_ name: String, in fieldNames: [String], ofOrigin url: URL? = nil) -> RemovalScope? {
    guard !name.isEmpty, !fieldNames.isEmpty,
      let origin = url.map({ RequestKey.prefix(url: $0, isOrigin: true) }) ?? []
    else { return nil }
    // Equal scopes are equal values.
    let names = ResponseTags.canonicalNames(fieldNames).sorted()
    return .tag(.bytes(FieldText.bytes(of: name)), fieldNames: names, origin: origin)
  }
}

extension RemovalScope: CustomStringConvertible {
  /// The scope as in the options of `urlcache purge`, such as `host api.example.com`. It contains the query of a URL.
  public var description: String { summary.value.isEmpty ? summary.kind : "\(summary.kind) \(summary.value)" }

  /// The scope in words and URLs, as in the options of `urlcache purge`.
  ///
  /// It contains the query, so do not write it to default logs.
  package var summary: (kind: String, value: String) {
    func url(_ bytes: [UInt8]) -> String { RequestKey(storedBytes: bytes + [0, 0, 0]).urlString }
    switch self {
    case .everything: return ("all", "")
    case .since(let date): return ("since", date.formatted(.iso8601))
    case .prefix(let bytes):
      guard bytes.last == 0, bytes.dropLast().contains(0) == false else { return ("prefix", url(bytes)) }
      return ("host", String(decoding: bytes.dropLast(), as: UTF8.self))
    case .tag(let name, let fieldNames, let origin):
      let name =
        switch name {
        case .bytes(let bytes): FieldText.displayed(FieldText.text(ofBytes: bytes))
        case .digest(let byteCount, _, _): "a name of \(byteCount) bytes"
        }
      guard !origin.isEmpty else { return ("tag", name) }
      return (fieldNames == Self.groupFieldNames ? "group" : "tag", "\(name) of \(url(origin))")
    case .target(let bytes): return ("url", url(bytes))
    case .key(let bytes), .resource(let bytes): return ("request", RequestKey(storedBytes: bytes).description)
    case .digested(let beginning, let byteCount, _, _, _):
      return ("prefix", "\(url(beginning))… (\(byteCount) bytes)")
    }
  }
}
