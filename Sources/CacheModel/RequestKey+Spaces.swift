/// Keys in a key space: a set of keys that one removal of one key makes unreachable.
///
/// The space has a record under a key of its own, with a random nonce that is a part of all keys in the space. Without the
/// record, or with another nonce, nobody makes these keys again. So a removal does not need to know them.
///
/// - The queries of a URL. Space: method part `?QUERY` or `?POST`. Query: `?QUERY nonce digest length`.
/// - The equivalent URLs of a path (No-Vary-Search). Space: the URL without its query, and the method part `?search`.
///   Equivalent URLs: the URL with its simplified query, and the method part `?search nonce`.
///
/// No method makes these parts, because `?` is not a character of a token (RFC 9110, section 9.1).
extension RequestKey {
  /// The mark of the method part of such keys.
  static let spaceMark = UInt8(ascii: "?")
  private static let searchPart = Array("?search".utf8)

  // MARK: Making keys

  /// Returns the key of the space of this URL's queries.
  ///
  /// - Parameter method: The method of the queries.
  package func querySpace(method: String) -> RequestKey { replacingMethodPart("?" + method) }

  /// Returns the key of a query. Call this on the key of its space.
  ///
  /// - Parameters:
  ///   - nonce: The nonce of the space.
  ///   - digest: A keyed digest of the content and its metadata.
  ///   - byteCount: The size of the content.
  package func query(nonce: String, digest: String, byteCount: Int) -> RequestKey {
    replacingMethodPart("?\(requestMethod) \(nonce) \(digest) \(byteCount)")
  }

  /// The key of the space of the equivalent URLs of this URL's path.
  package var searchSpace: RequestKey {
    guard let parts = methodPart else { return self }
    let target = bytes[..<(parts.lowerBound - 1)]
    let path = Self.queryStart(in: target).map { bytes[..<$0] } ?? target
    return RequestKey(storedBytes: Self.joined(path, [0] + Self.searchPart, bytes[parts.upperBound...]))
  }

  /// Returns the key of a URL in the space of its path.
  ///
  /// - Parameters:
  ///   - simplifiedURL: The URL with the parameters of the query that count.
  ///   - partition: The partition.
  ///   - nonce: The nonce of the space.
  package init?(simplifiedURL: String, partition: String, nonce: String) {
    self.init(urlString: simplifiedURL, method: "?search " + nonce, partition: partition)
  }

  // MARK: Reading keys

  /// Whether the key is that of a space, whose record is not a response.
  public var isKeySpace: Bool {
    guard let part = methodPart, bytes[part].first == Self.spaceMark else { return false }
    return !bytes[part].contains(UInt8(ascii: " "))
  }

  /// The method of the requests with this key.
  public var requestMethod: String {
    let method = method
    guard method.utf8.first == Self.spaceMark else { return method }
    let name = method.dropFirst().prefix { $0 != " " }
    return name == "search" ? "GET" : String(name)
  }

  /// The keyed digest of the content of a query and its metadata, and the size of the content; nil for other keys.
  public var queryContent: (digest: String, byteCount: Int)? {
    let parts = method.split(separator: " ")
    guard parts.count == 4, parts[0].utf8.first == Self.spaceMark, let byteCount = Int(parts[3]) else { return nil }
    return (String(parts[2]), byteCount)
  }

  /// The position of the method part: the fourth of the parts, which zeros separate.
  private var methodPart: Range<Int>? {
    var zeros = 0
    var start = 0
    for (index, byte) in bytes.enumerated() where byte == 0 {
      zeros += 1
      if zeros == 3 { start = index + 1 }
      if zeros == 4 { return start..<index }
    }
    return nil
  }

  private func replacingMethodPart(_ part: String) -> RequestKey {
    guard let present = methodPart else { return self }
    return RequestKey(storedBytes: Self.joined(bytes[..<present.lowerBound], part.utf8, bytes[present.upperBound...]))
  }

  private static func joined(
    _ start: ArraySlice<UInt8>, _ middle: some Collection<UInt8>, _ end: ArraySlice<UInt8>
  ) -> [UInt8] {
    var bytes: [UInt8] = []
    bytes.reserveCapacity(start.count + middle.count + end.count)
    bytes += start
    bytes += middle
    bytes += end
    return bytes
  }

  /// The position of the `?` before the query in the beginning of a key; nil without one.
  private static func queryStart(in beginning: ArraySlice<UInt8>) -> Int? {
    var zeros = 0
    for (index, byte) in zip(beginning.indices, beginning) {
      if byte == 0 { zeros += 1 }
      if zeros == 3 { return nil }
      if byte == UInt8(ascii: "?") { return index }
    }
    return nil
  }

  /// Whether `key` is that of the space of a path, or of a URL in it, to which URLs with this beginning may belong.
  ///
  /// - Parameter beginning: The beginning of keys of URLs. If it ends before their query, all paths with it count.
  static func isInSearchSpace(_ key: some Collection<UInt8>, ofURLsWith beginning: [UInt8]) -> Bool {
    let mark = queryStart(in: beginning[...])
    let path = beginning[..<(mark ?? beginning.endIndex)]
    guard key.starts(with: path) else { return false }
    var rest = key.dropFirst(path.count)
    if mark != nil, rest.first != 0, rest.first != UInt8(ascii: "?") { return false }
    // The method part follows the third zero.
    var zeros = path.count { $0 == 0 }
    while zeros < 3 {
      guard let zero = rest.firstIndex(of: 0) else { return false }
      rest = rest[rest.index(after: zero)...]
      zeros += 1
    }
    return zeros == 3 && rest.starts(with: searchPart)
  }
}
