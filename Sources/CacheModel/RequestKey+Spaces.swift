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
  private static let searchPart: StaticString = "?search"

  // MARK: Making keys

  /// Returns the key of the space of this URL's queries.
  ///
  /// - Parameter name: The method of the queries.
  package func querySpace(method name: String) -> RequestKey {
    guard let method = parts?.method else { return self }
    return assembled(upTo: method.lowerBound, then: method.upperBound, adding: name.utf8.count + 1) {
      $0.append(Self.spaceMark)
      $0.append(name)
    }
  }

  /// Returns the key of a query. Call this on the key of its space.
  ///
  /// - Parameters:
  ///   - nonce: The nonce of the space.
  ///   - digest: A keyed digest of the content and its metadata.
  ///   - byteCount: The size of the content.
  package func query(nonce: String, digest: String, byteCount: Int) -> RequestKey {
    guard let end = parts?.method.upperBound else { return self }
    return assembled(upTo: end, then: end, adding: nonce.utf8.count + digest.utf8.count + 24) {
      $0.append(UInt8(ascii: " "))
      $0.append(nonce)
      $0.append(UInt8(ascii: " "))
      $0.append(digest)
      $0.append(UInt8(ascii: " "))
      $0.append(decimal: byteCount)
    }
  }

  /// The key of the space of the equivalent URLs of this URL's path.
  package var searchSpace: RequestKey {
    guard let parts else { return self }
    let pathEnd = bytes.withUnsafeBufferPointer { bytes in
      Self.find(UInt8(ascii: "?"), in: bytes, from: parts.target.lowerBound).map { min($0, parts.target.upperBound) }
    }
    return assembled(upTo: pathEnd ?? parts.target.upperBound, then: parts.method.upperBound, adding: 8) {
      $0.append(0)
      $0.append(Self.searchPart)
    }
  }

  /// Returns the key that this URL has in the space of its path.
  ///
  /// - Parameters:
  ///   - nonce: The nonce of the space.
  ///   - maximumByteCount: Returns the maximum size of a simplified path and query of a size.
  ///   - simplify: Writes a path and query with the parameters that count to a buffer, and returns its size.
  package func equivalent(
    nonce: String, maximumByteCount: (Int) -> Int,
    _ simplify: (UnsafeBufferPointer<UInt8>, _ output: UnsafeMutableBufferPointer<UInt8>) -> Int
  ) -> RequestKey {
    guard let parts else { return self }
    let target = parts.target
    let count = maximumByteCount(target.count) + nonce.utf8.count + 9
    return assembled(upTo: target.lowerBound, then: parts.method.upperBound, adding: count) { writer in
      bytes.withUnsafeBufferPointer { bytes in
        writer.count += simplify(
          UnsafeBufferPointer(rebasing: bytes[target]),
          UnsafeMutableBufferPointer(rebasing: writer.buffer[writer.count...]))
      }
      writer.append(0)
      writer.append(Self.searchPart)
      writer.append(UInt8(ascii: " "))
      writer.append(nonce)
    }
  }

  /// Returns a key of the beginning and the end of this one, with bytes between them.
  ///
  /// On the stack, as a request's own key is made.
  private func assembled(
    upTo start: Int, then end: Int, adding count: Int, _ body: (inout KeyWriter) -> Void
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
    guard let part = parts?.method, bytes[part].first == Self.spaceMark else { return false }
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

  /// The positions of the third and the fourth of the parts, which zeros separate; nil if there are fewer.
  private var parts: (target: Range<Int>, method: Range<Int>)? {
    bytes.withUnsafeBufferPointer { bytes in
      guard let before = Self.end(ofPart: 2, in: bytes), let target = Self.find(0, in: bytes, from: before + 1),
        let method = Self.find(0, in: bytes, from: target + 1)
      else { return nil }
      return ((before + 1)..<target, (target + 1)..<method)
    }
  }

  /// Returns the position of the zero after a part; nil if there are fewer parts.
  private static func end(ofPart number: Int, in bytes: UnsafeBufferPointer<UInt8>) -> Int? {
    var end = -1
    for _ in 0..<number {
      guard let next = find(0, in: bytes, from: end + 1) else { return nil }
      end = next
    }
    return end
  }

  /// Returns the position of the first such byte from a position. Uses `memchr`, because each lookup creates such keys.
  private static func find(_ byte: UInt8, in bytes: UnsafeBufferPointer<UInt8>, from start: Int) -> Int? {
    URLParts.find(byte, in: UnsafeBufferPointer(rebasing: bytes[start...]), before: bytes.count - start)
      .map { $0 + start }
  }

  /// The position of the `?` before the query in the beginning of a key; nil without one.
  private static func queryStart(in beginning: ArraySlice<UInt8>) -> Int? {
    beginning.withUnsafeBufferPointer { bytes in
      // No host and no port contains one. What follows the target is not part of it.
      guard let found = find(UInt8(ascii: "?"), in: bytes, from: 0),
        end(ofPart: 3, in: bytes).map({ found < $0 }) ?? true
      else { return nil }
      return beginning.startIndex + found
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
    return zeros == 3
      && rest.starts(with: UnsafeBufferPointer(start: searchPart.utf8Start, count: searchPart.utf8CodeUnitCount))
  }
}
