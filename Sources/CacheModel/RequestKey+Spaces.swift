/// Keys in a key space: a set of keys that one removal of one key makes unreachable.
///
/// The space has a record under a key of its own, with a nonce that is a part of all keys in the space. Without the
/// record, or with another nonce, no lookup makes these keys again. So a removal does not need to know them.
///
/// | Space | Record | A key in it |
/// |---|---|---|
/// | of a URL: its queries, and responses for one user | the URL, method part `?url` | `?url nonce METHOD` |
/// | of a path: equivalent URLs (No-Vary-Search) | the URL without its query, `?search` | the simplified URL, `?search nonce` |
///
/// A key of a query ends with ` =digest length`: the keyed digest of its content, and the size. A key of a response for
/// one user ends with ` @digest`: that of the credentials. No method makes these parts, because `?` is not a character
/// of a token (RFC 9110, section 9.1).
extension RequestKey {
  /// The mark of the method part of such keys.
  static let spaceMark = UInt8(ascii: "?")
  private static let urlPart: StaticString = "?url"
  private static let searchPart: StaticString = "?search"

  /// The content and the user by which a response differs from the others in its space, as in its key.
  @usableFromInline
  package struct Member: Sendable, Hashable {
    /// The keyed digest of the content of a query and its metadata, and the size of the content; nil without content.
    @usableFromInline package var content: (digest: String, byteCount: Int)?
    /// The keyed digest of the credentials of the user for whom the response is; nil for a response for everybody.
    @usableFromInline package var user: String?

    /// Describes a response by the content of a query, the credentials of a user, or both.
    @usableFromInline
    package init(content: (digest: String, byteCount: Int)? = nil, user: String? = nil) {
      (self.content, self.user) = (content, user)
    }

    fileprivate var byteCount: Int { (content?.digest.utf8.count ?? 0) + (user?.utf8.count ?? 0) + 28 }

    /// Compares both digests, and the size.
    @usableFromInline
    package static func == (left: Member, right: Member) -> Bool {
      left.user == right.user && left.content?.digest == right.content?.digest
        && left.content?.byteCount == right.content?.byteCount
    }

    /// Hashes both digests.
    @usableFromInline
    package func hash(into hasher: inout Hasher) {
      hasher.combine(user)
      hasher.combine(content?.digest)
    }
  }

  // MARK: Making keys

  /// The key of the space of this URL.
  @usableFromInline package var urlSpace: RequestKey {
    guard let method = parts?.method else { return self }
    return assembled(upTo: method.lowerBound, then: method.upperBound, adding: 4) { $0.append(Self.urlPart) }
  }

  /// Returns the key of a response in the space of this URL.
  ///
  /// - Parameters:
  ///   - nonce: The nonce of the space.
  ///   - method: The method of the requests.
  package func inURLSpace(nonce: String, method: String, _ member: Member) -> RequestKey {
    guard let part = parts?.method else { return self }
    let count = nonce.utf8.count + method.utf8.count + member.byteCount + 6
    return assembled(upTo: part.lowerBound, then: part.upperBound, adding: count) {
      $0.append(Self.urlPart)
      $0.append(UInt8(ascii: " "))
      $0.append(nonce)
      $0.append(UInt8(ascii: " "))
      $0.append(method)
      $0.append(member)
    }
  }

  /// The key of the space of the equivalent URLs of this URL's path.
  @usableFromInline package var searchSpace: RequestKey {
    guard let parts else { return self }
    return assembled(upTo: pathEnd(of: parts.target), then: parts.method.upperBound, adding: 8) {
      $0.append(0)
      $0.append(Self.searchPart)
    }
  }

  /// Returns the key that this URL has in the space of its path.
  ///
  /// - Parameters:
  ///   - nonce: The nonce of the space.
  ///   - user: The keyed digest of the credentials of a user; nil for a response for everybody.
  ///   - maximumByteCount: Returns the maximum size of a simplified path and query of a size.
  ///   - simplify: Writes a path and query with the parameters that count to a buffer, and returns its size.
  package func equivalent(
    nonce: String, user: String?, maximumByteCount: (Int) -> Int,
    _ simplify: (UnsafeBufferPointer<UInt8>, _ output: UnsafeMutableBufferPointer<UInt8>) -> Int
  ) -> RequestKey {
    guard let parts else { return self }
    let target = parts.target
    let member = Member(user: user)
    let count = maximumByteCount(target.count) + nonce.utf8.count + member.byteCount + 9
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
      writer.append(member)
    }
  }

  /// The keys of the records of the spaces to which responses for this URL belong, with this key.
  package var withSpaces: [RequestKey] { [self, urlSpace, searchSpace] }

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
  public var isKeySpace: Bool { bytes.withUnsafeBytes { Self.isKeySpace($0) } }

  /// Whether the bytes are those of a key of a space.
  package static func isKeySpace(_ bytes: UnsafeRawBufferPointer) -> Bool {
    bytes.withMemoryRebound(to: UInt8.self) { bytes in
      guard let part = parts(of: bytes)?.method, !part.isEmpty, bytes[part.lowerBound] == spaceMark else {
        return false
      }
      return !bytes[part].contains(UInt8(ascii: " "))
    }
  }

  /// Whether the key is that of the record of a path's space.
  package var isSearchSpace: Bool {
    guard let part = parts?.method else { return false }
    return bytes[part].elementsEqual(Self.bytes(of: Self.searchPart))
  }

  /// Whether the key is that of a response to a URL, for everybody or for one user, and not for a query or for
  /// equivalent URLs, or the key of a space.
  package var isForURL: Bool {
    guard let part = parts?.method, !part.isEmpty else { return true }
    return bytes[part.lowerBound] != Self.spaceMark || isOfUser
  }

  /// Whether the key is that of a response for one user of a URL, and not for a query or for equivalent URLs.
  package var isOfUser: Bool {
    guard let part = parts?.method, bytes[part].starts(with: Self.bytes(of: Self.urlPart)) else { return false }
    return bytes[part].contains(UInt8(ascii: "@")) && !bytes[part].contains(UInt8(ascii: "="))
  }

  /// The method of the requests with this key.
  public var requestMethod: String {
    let words = method.split(separator: " ")
    guard let kind = words.first, kind.utf8.first == Self.spaceMark else { return method }
    return kind == "?url" && words.count > 2 ? String(words[2]) : "GET"
  }

  /// The keyed digest of the content of a query and its metadata, and the size of the content; nil for other keys.
  public var queryContent: (digest: String, byteCount: Int)? {
    let words = method.split(separator: " ")
    guard words.first?.utf8.first == Self.spaceMark, let index = words.firstIndex(where: { $0.first == "=" }),
      index + 1 < words.count, let byteCount = Int(words[index + 1])
    else { return nil }
    return (String(words[index].dropFirst()), byteCount)
  }

  /// The positions of the third and the fourth of the parts, which zeros separate; nil if there are fewer.
  private var parts: (target: Range<Int>, method: Range<Int>)? {
    bytes.withUnsafeBufferPointer { Self.parts(of: $0) }
  }

  private static func parts(of bytes: UnsafeBufferPointer<UInt8>) -> (target: Range<Int>, method: Range<Int>)? {
    guard let before = end(ofPart: 2, in: bytes), let target = find(0, in: bytes, from: before + 1),
      let method = find(0, in: bytes, from: target + 1)
    else { return nil }
    return ((before + 1)..<target, (target + 1)..<method)
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

  /// The end of the path in a target.
  private func pathEnd(of target: Range<Int>) -> Int {
    bytes.withUnsafeBufferPointer { bytes in
      Self.find(UInt8(ascii: "?"), in: bytes, from: target.lowerBound).map { min($0, target.upperBound) }
        ?? target.upperBound
    }
  }

  private static func bytes(of text: StaticString) -> UnsafeBufferPointer<UInt8> {
    UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount)
  }

  // MARK: Coverage

  /// The beginning of this key up to the end of its URL's path.
  package var path: ArraySlice<UInt8> {
    guard let target = parts?.target else { return bytes[...] }
    return bytes[..<pathEnd(of: target)]
  }

  /// Returns the path whose equivalent URLs a removal of all URLs with this beginning covers; nil if the beginning ends
  /// within a path, so that it covers all paths with it.
  ///
  /// - Parameter beginning: The beginning of keys of URLs.
  package static func path(ofURLsWith beginning: [UInt8]) -> ArraySlice<UInt8>? {
    beginning.withUnsafeBufferPointer { bytes -> Int? in
      let targetEnd = end(ofPart: 3, in: bytes)
      // No host and no port contains a question mark. What follows the target is not part of it.
      if let mark = find(UInt8(ascii: "?"), in: bytes, from: 0), targetEnd.map({ mark < $0 }) ?? true { return mark }
      return targetEnd
    }.map { beginning[..<$0] }
  }

  /// Whether `key` is that of the space of a path, or of a URL in it, to which URLs with this beginning may belong.
  ///
  /// - Parameter beginning: The beginning of keys of URLs. If it ends before their query, all paths with it count.
  static func isInSearchSpace(_ key: some Collection<UInt8>, ofURLsWith beginning: [UInt8]) -> Bool {
    let whole = path(ofURLsWith: beginning)
    let path = whole ?? beginning[...]
    guard key.starts(with: path) else { return false }
    let rest = key.dropFirst(path.count)
    if whole != nil, rest.first != 0, rest.first != UInt8(ascii: "?") { return false }
    guard let method = methodPart(of: key) else { return false }
    return method.starts(with: bytes(of: searchPart))
  }

  /// Whether `key` belongs to the URL and partition of `resource`, which is a key of the URL: it has the same method,
  /// is in the space of the URL, or in that of its path.
  static func isOfResource(_ key: some Collection<UInt8>, _ resource: [UInt8]) -> Bool {
    if key.elementsEqual(resource) { return true }
    guard let part = methodPart(of: key), part.first == spaceMark, let own = methodPart(of: resource),
      key[part.endIndex...].elementsEqual(resource[own.endIndex...])
    else { return false }
    let target = resource[..<own.startIndex]
    if part.starts(with: bytes(of: urlPart)) { return key[..<part.startIndex].elementsEqual(target) }
    return isInSearchSpace(key, ofURLsWith: Array(target))
  }

  /// Returns the method part of the bytes of a key; nil if there is none.
  private static func methodPart<Bytes: Collection<UInt8>>(of key: Bytes) -> Bytes.SubSequence? {
    var rest = key[...]
    for _ in 0..<3 {
      guard let zero = rest.firstIndex(of: 0) else { return nil }
      rest = rest[rest.index(after: zero)...]
    }
    return rest.firstIndex(of: 0).map { rest[..<$0] }
  }
}

extension KeyWriter {
  fileprivate mutating func append(_ member: RequestKey.Member) {
    if let content = member.content {
      append(" =" as StaticString)
      append(content.digest)
      append(UInt8(ascii: " "))
      append(decimal: content.byteCount)
    }
    if let user = member.user {
      append(" @" as StaticString)
      append(user)
    }
  }
}
