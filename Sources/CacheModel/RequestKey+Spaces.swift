/// Keys in a key space: a set of keys that one removal of one key makes unreachable.
///
/// The space has a record under a key of its own, with a random nonce that is a part of all keys in the space. Without the
/// record, or with another nonce, no lookup makes these keys again. So a removal does not need to know them.
///
/// - The queries of a URL. Space: method part `?QUERY` or `?POST`. Query: `?QUERY nonce digest length`.
/// - The equivalent URLs of a path (No-Vary-Search). Space: the URL without its query, and the method part `?search`.
///   Equivalent URLs: the URL with its simplified query, and the method part `?search nonce`.
///
/// No method makes these parts, because `?` is not a character of a token (RFC 9110, section 9.1).
extension RequestKey {
  /// The mark of the method part of such keys.
  static let spaceMark = UInt8(ascii: "?")
  private static let searchPart = "?search"

  // MARK: Making keys

  /// Returns the key of the space of this URL's queries.
  ///
  /// - Parameter method: The method of the queries.
  package func querySpace(method: String) -> RequestKey {
    guard let part = methodPart else { return self }
    return Self.assembled(from: bytes, upTo: part.lowerBound, then: part.upperBound, adding: method.utf8.count + 1) {
      $0.append(Self.spaceMark)
      $0.append(method)
    }
  }

  /// Returns the key of a query. Call this on the key of its space.
  ///
  /// - Parameters:
  ///   - method: The method of the queries.
  ///   - nonce: The nonce of the space.
  ///   - digest: A keyed digest of the content and its metadata.
  ///   - byteCount: The size of the content.
  package func query(method: String, nonce: String, digest: String, byteCount: Int) -> RequestKey {
    guard let part = methodPart else { return self }
    let count = method.utf8.count + nonce.utf8.count + digest.utf8.count + 24
    return Self.assembled(from: bytes, upTo: part.lowerBound, then: part.upperBound, adding: count) {
      $0.append(Self.spaceMark)
      $0.append(method)
      for text in [nonce, digest, String(byteCount)] {
        $0.append(UInt8(ascii: " "))
        $0.append(text)
      }
    }
  }

  /// The key of the space of the equivalent URLs of this URL's path.
  package var searchSpace: RequestKey {
    guard let part = methodPart else { return self }
    let targetEnd = part.lowerBound - 1
    let pathEnd = Self.queryStart(in: bytes[..<targetEnd]) ?? targetEnd
    return Self.assembled(from: bytes, upTo: pathEnd, then: part.upperBound, adding: Self.searchPart.utf8.count + 1) {
      $0.append(0)
      $0.append(Self.searchPart)
    }
  }

  /// Returns the key that this URL has in the space of its path.
  ///
  /// - Parameters:
  ///   - nonce: The nonce of the space.
  ///   - simplify: Returns a path and query with the parameters that count.
  package func equivalent(nonce: String, _ simplify: (String) -> String) -> RequestKey {
    guard let part = methodPart else { return self }
    let targetEnd = part.lowerBound - 1
    var start = targetEnd
    bytes.withUnsafeBufferPointer { bytes in
      while start > 0, bytes[start - 1] != 0 { start -= 1 }
    }
    let target = simplify(String(decoding: bytes[start..<targetEnd], as: UTF8.self))
    let count = target.utf8.count + Self.searchPart.utf8.count + nonce.utf8.count + 2
    return Self.assembled(from: bytes, upTo: start, then: part.upperBound, adding: count) {
      $0.append(target)
      $0.append(0)
      $0.append(Self.searchPart)
      $0.append(UInt8(ascii: " "))
      $0.append(nonce)
    }
  }

  /// Returns a key of a beginning and an end of another one, with bytes between them.
  ///
  /// On the stack, as a request's own key is made.
  private static func assembled(
    from bytes: [UInt8], upTo start: Int, then end: Int, adding count: Int, _ body: (inout KeyWriter) -> Void
  ) -> RequestKey {
    withUnsafeTemporaryAllocation(of: UInt8.self, capacity: bytes.count + count) { buffer in
      var writer = KeyWriter(buffer: buffer)
      bytes.withUnsafeBufferPointer { bytes in
        writer.append(UnsafeBufferPointer(rebasing: bytes[..<start]))
        body(&writer)
        writer.append(UnsafeBufferPointer(rebasing: bytes[end...]))
      }
      return RequestKey(storedBytes: [UInt8](UnsafeBufferPointer(rebasing: buffer[..<writer.count])))
    }
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
    bytes.withUnsafeBufferPointer { bytes in
      var zeros = 0
      var start = 0
      for index in bytes.indices where bytes[index] == 0 {
        zeros += 1
        if zeros == 3 { start = index + 1 }
        if zeros == 4 { return start..<index }
      }
      return nil
    }
  }

  /// The position of the `?` before the query in the beginning of a key; nil without one.
  private static func queryStart(in beginning: ArraySlice<UInt8>) -> Int? {
    beginning.withUnsafeBufferPointer { bytes in
      var zeros = 0
      for index in bytes.indices {
        if bytes[index] == 0 { zeros += 1 }
        if zeros == 3 { return nil }
        if bytes[index] == UInt8(ascii: "?") { return beginning.startIndex + index }
      }
      return nil
    }
  }

  /// Whether `key` is that of the space of a path, or of a URL in it, to which URLs with this beginning may belong.
  ///
  /// - Parameter beginning: The beginning of keys of URLs. If it ends before their query, all paths with it count.
  static func isInSearchSpace(_ key: some Collection<UInt8>, ofURLsWith beginning: [UInt8]) -> Bool {
    // A whole URL without a query ends with the zero after it.
    let isWhole = beginning.last == 0 && beginning.count { $0 == 0 } == 3
    let mark = queryStart(in: beginning[...]) ?? (isWhole ? beginning.endIndex - 1 : nil)
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
    return zeros == 3 && rest.starts(with: searchPart.utf8)
  }
}
