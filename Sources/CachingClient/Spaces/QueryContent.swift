import FoundationEssentials
import HTTPCaching

/// The part of a query that its cache key represents: the content, and the fields that change its meaning (RFC 10008,
/// section 2.7).
@usableFromInline
package struct QueryContent: Sendable {
  private let type: String
  private let coding: String
  private let language: String
  private let location: String
  /// The name of the normal form; empty if the content is compared as it is.
  private let formName: String
  /// The content or its normal form.
  private let keyed: Data

  /// The size of the content, or of its normal form.
  package var byteCount: Int { keyed.count }

  init(_ content: Data, fields: HeaderFields, normalForm: QueryNormalForm?) {
    type = fields["Content-Type"] ?? ""
    let coding = fields["Content-Encoding"]
    self.coding = coding ?? ""
    language = fields["Content-Language"] ?? ""
    location = fields["Content-Location"] ?? ""
    // 10008 2.7: no-transform says that no normal form is wanted. Coded content has no form that could be compared.
    if let normalForm, coding == nil, !Self.forbidsTransformation(fields),
      let normal = normalForm.normalized(content, contentType: type.isEmpty ? nil : type)
    {
      // A content that is compared as it is gets no response to another one that has it as its normal form.
      (keyed, formName) = (normal, normalForm.name)
    } else {
      (keyed, formName) = (content, "")
    }
  }

  /// Calls a closure with the bytes whose digest is in the key: each field and the name of the normal form, with their
  /// lengths, then the content or its normal form.
  @usableFromInline
  package func withKeyedBytes(_ body: (UnsafeRawBufferPointer) -> Void) {
    let metadataByteCount =
      type.utf8.count + coding.utf8.count + language.utf8.count + location.utf8.count + formName.utf8.count + 20
    withUnsafeTemporaryAllocation(of: UInt8.self, capacity: metadataByteCount + keyed.count) { buffer in
      var count = 0
      Self.append(type, to: buffer, &count, writing: Self.writeMediaType)
      Self.append(coding, to: buffer, &count, writing: Self.writeLowercased)
      Self.append(language, to: buffer, &count, writing: Self.writeLowercased)
      Self.append(location, to: buffer, &count) { $1.update(fromContentsOf: $0) }
      Self.append(formName, to: buffer, &count) { $1.update(fromContentsOf: $0) }
      let rest = UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[count...])
      keyed.withUnsafeBytes { rest.copyMemory(from: $0) }
      body(UnsafeRawBufferPointer(rebasing: UnsafeRawBufferPointer(buffer)[..<(count + keyed.count)]))
    }
  }

  /// Appends a text after its length, so that no byte can count as part of another text.
  @inline(__always)
  private static func append(
    _ text: String, to buffer: UnsafeMutableBufferPointer<UInt8>, _ count: inout Int,
    writing write: (UnsafeBufferPointer<UInt8>, UnsafeMutableBufferPointer<UInt8>) -> Int
  ) {
    var text = text
    let start = count + 4
    let written = text.withUTF8 { write($0, UnsafeMutableBufferPointer(rebasing: buffer[start...])) }
    for byte in 0..<4 { buffer[count + byte] = UInt8(truncatingIfNeeded: written >> (8 * byte)) }
    count = start + written
  }

  /// Writes a media type in one spelling, and returns its size: its names are case-insensitive, and spaces around `;`
  /// have no meaning (RFC 9110, section 8.3.1). The values of parameters stay as they are, and so does a type with a
  /// quoted one.
  private static func writeMediaType(
    _ type: UnsafeBufferPointer<UInt8>, _ buffer: UnsafeMutableBufferPointer<UInt8>
  ) -> Int {
    if type.contains(UInt8(ascii: "\"")) { return buffer.update(fromContentsOf: type) }
    var count = 0
    // The end of the last byte that is no space.
    var end = 0
    var (isValue, isStart) = (false, true)
    for byte in type {
      let isSpace = byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t")
      if isSpace, isStart { continue }
      isStart = byte == UInt8(ascii: ";")
      if isStart { (count, isValue) = (end, false) }
      if byte == UInt8(ascii: "=") { isValue = true }
      buffer[count] = isValue ? byte : lowercased(byte)
      count += 1
      if !isSpace { end = count }
    }
    return end
  }

  /// Writes a list of case-insensitive elements in lowercase, and returns its size.
  private static func writeLowercased(
    _ text: UnsafeBufferPointer<UInt8>, _ buffer: UnsafeMutableBufferPointer<UInt8>
  ) -> Int {
    for index in text.indices { buffer[index] = lowercased(text[index]) }
    return text.count
  }

  private static func lowercased(_ byte: UInt8) -> UInt8 { byte &- UInt8(ascii: "A") < 26 ? byte | 0x20 : byte }

  private static func forbidsTransformation(_ fields: HeaderFields) -> Bool {
    fields.values(of: "Cache-Control").contains { $0.lowercased().contains("no-transform") }
  }
}

extension CachingClientRequest {
  /// The maximum size of the content of a query that is cached: 1 MiB.
  ///
  /// The content is held in memory until the response is stored, because it is sent again after a lost connection. A
  /// query with more content, or with content that is not ``RequestBodySource/bytes(_:)``, goes past the cache.
  public static let maximumQueryContentByteCount = 1 << 20

  /// Whether the request is a query, whose content is a part of its cache key: QUERY (RFC 10008), or a POST with
  /// ``RequestOverrides/treatsAsQuery``.
  ///
  /// It is safe: its response invalidates nothing.
  @inlinable public var isQuery: Bool { head.method == "QUERY" || head.method == "POST" && overrides.treatsAsQuery }

  /// The query as a part of a key; nil for another request, and for a query that goes past the cache.
  var query: KeySpace.Key.Query? {
    guard isQuery, !head.namesOtherHost else { return nil }
    let content: Data
    switch body {
    case nil: content = Data()
    case .bytes(let bytes) where bytes.count <= Self.maximumQueryContentByteCount: content = bytes
    case .bytes, .inContext: return nil
    }
    return KeySpace.Key.Query(
      method: head.method, body: body,
      content: QueryContent(content, fields: head.fields, normalForm: overrides.queryNormalForm))
  }
}
