import FoundationEssentials
import Glibc
import HTTPCaching

/// The framing of a response's content, which determines its end (RFC 9112 section 6.3).
enum ContentFraming: Sendable, Hashable {
  /// No content, because of the request's method or the status.
  case noContent
  /// `Content-Length` with this number of bytes.
  case length(Int)
  /// `Transfer-Encoding: chunked`; libcurl checks its end.
  case chunked
  /// Chunks in HTTP/1.0, or with a `Content-Length`: other recipients may find another end (RFC 9112 section 6.1).
  case disputedChunks
  /// The content ends with the connection, which may have ended early.
  case untilClose

  /// Whether there is content with a known length.
  var hasLength: Bool {
    if case .length(let length) = self { length > 0 } else { false }
  }

  /// Whether the end of the content is proven when libcurl has found it.
  var provesEnd: Bool { self != .untilClose && self != .disputedChunks }
}

/// A received final head: its status and its field lines.
///
/// The caller's thread parses the lines, to save time on the I/O thread.
struct ReceivedHead: Sendable {
  let status: Int
  let framing: ContentFraming
  /// The field lines without line ends; a folded line counts as one.
  let lines: [UInt8]
  /// The end of each line in ``lines``.
  let lineEnds: [Int]

  /// The fields, in their order and spelling.
  var fields: HeaderFields {
    var fields = HeaderFields()
    fields.reserveCapacity(lineEnds.count)
    lines.withUnsafeBytes { bytes in
      var start = 0
      for end in lineEnds {
        let line = bytes[start..<end]
        start = end
        guard let colon = line.firstIndex(of: UInt8(ascii: ":")) else { continue }
        fields.append(
          name: FieldText.text(ofBytes: line[..<colon]),
          value: FieldText.text(ofBytes: line[(colon + 1)...].trimmingFieldSpace()))
      }
    }
    return fields
  }
}

/// Collects the lines from libcurl into the final head of a response.
///
/// Drops interim responses (1xx except 101) and trailers. A trailer must not be taken for a field of the head (RFC 9110
/// section 6.5.1).
struct ResponseHeadCollector {
  /// The maximum number of interim responses. libcurl limits only the total size of all heads.
  static let maximumInterimCount = 100
  /// The maximum size of all trailers, the same as libcurl's limit for all heads. libcurl keeps trailers without limit.
  static let maximumTrailerByteCount = 300 << 10

  private enum State {
    case beforeStatusLine
    case inFields
    case complete
  }

  private let isHEAD: Bool
  private var state = State.beforeStatusLine
  private var status = 0
  private var isHTTP10 = false
  private var interimCount = 0
  private var trailerByteCount = 0
  private var lines: [UInt8] = []
  private var lineEnds: [Int] = []

  /// Whether a part of a head has arrived.
  private(set) var hasBegun = false
  /// Whether the final head is complete.
  var isComplete: Bool { state == .complete }
  /// Whether the connection must not be reused after this response, because its framing is ambiguous.
  private(set) var hasOddFraming = false

  init(method: String) {
    isHEAD = method == "HEAD"
  }

  /// Appends a line, with its line end.
  ///
  /// - Returns: The final head if this line completes it.
  /// - Throws: `CurlTransportError` if the head is malformed, or the trailers are too large.
  mutating func append(_ line: UnsafeRawBufferPointer) throws(CurlTransportError) -> ReceivedHead? {
    hasBegun = true
    var line = line[...]
    if line.last == UInt8(ascii: "\n") { line.removeLast() }
    if line.last == UInt8(ascii: "\r") { line.removeLast() }
    switch state {
    case .complete:
      trailerByteCount += line.count
      guard trailerByteCount <= Self.maximumTrailerByteCount else {
        throw CurlTransportError(.badServerResponse, "the trailers of the response are too large")
      }
      return nil
    case .beforeStatusLine:
      try begin(line)
      return nil
    case .inFields:
      if line.isEmpty { return try end() }
      try appendField(line)
      return nil
    }
  }

  private mutating func begin(_ line: Slice<UnsafeRawBufferPointer>) throws(CurlTransportError) {
    // libcurl has checked the form: a version, a space, three digits.
    let parts = line.split(separator: UInt8(ascii: " "), maxSplits: 2, omittingEmptySubsequences: true)
    guard parts.count >= 2, parts[1].count == 3, let code = Int(digits: parts[1]) else {
      throw Self.malformed("its status line")
    }
    status = code
    isHTTP10 = parts[0].elementsEqual("HTTP/1.0".utf8)
    guard isHTTP10 || parts[0].elementsEqual("HTTP/1.1".utf8) else { throw Self.malformed("its version") }
    state = .inFields
    lines.removeAll(keepingCapacity: true)
    lineEnds.removeAll(keepingCapacity: true)
  }

  private mutating func appendField(_ line: Slice<UnsafeRawBufferPointer>) throws(CurlTransportError) {
    if line.first == UInt8(ascii: " ") || line.first == UInt8(ascii: "\t") {
      // A folded line continues the previous one (RFC 9112 section 5.2). libcurl ignores it in a field of the framing.
      guard !lineEnds.isEmpty, !line.contains(UInt8(ascii: "\r")), !lastLine.isOfFraming else {
        throw Self.malformed("a folded field")
      }
      lines.append(UInt8(ascii: " "))
      lines.append(contentsOf: line.trimmingFieldSpace())
      lineEnds[lineEnds.count - 1] = lines.count
      return
    }
    // A space before the colon hides a name from some recipients (RFC 9112 section 5.1), and some treat a bare CR as a
    // line end.
    guard let colon = line.offset(of: UInt8(ascii: ":")), let last = line.prefix(colon).last,
      last != UInt8(ascii: " "), last != UInt8(ascii: "\t"), line.offset(of: UInt8(ascii: "\r")) == nil
    else { throw Self.malformed("a field") }
    lines.append(contentsOf: line)
    lineEnds.append(lines.count)
  }

  private var lastLine: ArraySlice<UInt8> {
    lines[(lineEnds.dropLast().last ?? 0)..<(lineEnds.last ?? 0)]
  }

  private mutating func end() throws(CurlTransportError) -> ReceivedHead? {
    // No HTTP follows a switch of protocols, so 101 is a final head.
    guard status >= 200 || status == 101 else {
      interimCount += 1
      guard interimCount <= Self.maximumInterimCount else {
        throw CurlTransportError(.badServerResponse, "too many interim responses arrived before the response")
      }
      state = .beforeStatusLine
      return nil
    }
    let framing = try framing()
    state = .complete
    return ReceivedHead(status: status, framing: framing, lines: lines, lineEnds: lineEnds)
  }

  /// Determines the framing.
  ///
  /// - Throws: `CurlTransportError` for a framing that libcurl or an intermediary might interpret differently.
  private mutating func framing() throws(CurlTransportError) -> ContentFraming {
    var length: Int?
    var isChunked = false
    var start = 0
    for end in lineEnds {
      let line = lines[start..<end]
      start = end
      if let value = line.value(of: "content-length") {
        for element in value.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false) {
          guard let count = Self.number(element.trimmingFieldSpace()), length == nil || length == count else {
            throw Self.malformed("its Content-Length")
          }
          hasOddFraming = hasOddFraming || length != nil
          length = count
        }
      } else if let value = line.value(of: "transfer-encoding") {
        guard !isChunked, value.equalsIgnoringCase("chunked") else { throw Self.malformed("its Transfer-Encoding") }
        isChunked = true
      }
    }
    if length == Self.unrepresentableLength {
      // Then libcurl reads to the end of the connection, like URLSession.
      hasOddFraming = true
      length = nil
    }
    if isChunked, length != nil || isHTTP10 { hasOddFraming = true }
    if status == 204 || status == 304 {
      if isChunked || status == 204 && length ?? 0 != 0 { hasOddFraming = true }
      return .noContent
    }
    if isHEAD { return .noContent }
    if status == 101 {
      hasOddFraming = true
      return .untilClose
    }
    if isChunked { return length != nil || isHTTP10 ? .disputedChunks : .chunked }
    return length.map { .length($0) } ?? .untilClose
  }

  /// A placeholder for a Content-Length that is too large for an `Int`.
  private static let unrepresentableLength = -1

  /// Parses digits; ``unrepresentableLength`` if the number is too large, nil if there are other characters or none.
  private static func number(_ digits: ArraySlice<UInt8>) -> Int? {
    guard !digits.isEmpty, digits.allSatisfy(\.isDigit) else { return nil }
    return Int(digits: digits) ?? unrepresentableLength
  }

  private static func malformed(_ part: String) -> CurlTransportError {
    CurlTransportError(.badServerResponse, "the head of the response is malformed in \(part)")
  }
}

extension Slice<UnsafeRawBufferPointer> {
  /// Returns how many bytes precede the first one with this value; nil if there is none.
  fileprivate func offset(of byte: UInt8) -> Int? {
    let bytes = UnsafeRawBufferPointer(rebasing: self)
    guard let start = bytes.baseAddress, let found = memchr(start, CInt(byte), bytes.count) else { return nil }
    return UnsafeRawPointer(found) - start
  }
}

extension BidirectionalCollection<UInt8> where SubSequence == Self {
  /// Whether these bytes equal a text in lowercase ASCII, in any case.
  func equalsIgnoringCase(_ lowercased: StaticString) -> Bool {
    guard count == lowercased.utf8CodeUnitCount else { return false }
    var expected = lowercased.utf8Start
    for byte in self {
      let folded = byte &- 0x41 < 26 ? byte | 0x20 : byte
      guard folded == expected.pointee else { return false }
      expected += 1
    }
    return true
  }

  /// Whether this field line is one that determines the end of the content.
  var isOfFraming: Bool { value(of: "transfer-encoding") != nil || value(of: "content-length") != nil }

  /// Returns the value of this field line if the field has this lowercase name.
  func value(of name: StaticString) -> Self? {
    let nameCount = name.utf8CodeUnitCount
    guard count > nameCount else { return nil }
    let end = index(startIndex, offsetBy: nameCount)
    guard self[end] == UInt8(ascii: ":"), self[..<end].equalsIgnoringCase(name) else { return nil }
    return self[index(after: end)...].trimmingFieldSpace()
  }
}
