import FoundationEssentials
import HTTPCaching

/// What a response head says about the length of its body (RFC 9110 section 8.6, RFC 9112 section 6.3).
enum AnnouncedLength: Sendable, Hashable {
  /// Nothing that could be compared: the transport knows the end of the body by other means.
  case unknown
  case exactly(Int)
  /// Several lengths, or none that is a number or fits one: the end of the body cannot be relied on.
  case malformed

  /// Whether a body of this length is complete.
  func allows(_ byteCount: Int) -> Bool {
    switch self {
    case .unknown: true
    case .exactly(let announced): announced == byteCount
    case .malformed: false
    }
  }

  /// - Throws: ``CachingClientError/incompleteBody(expectedByteCount:receivedByteCount:)`` if a body ended before its length.
  func check(_ byteCount: Int) throws {
    guard case .exactly(let announced) = self, byteCount < announced else { return }
    throw CachingClientError.incompleteBody(expectedByteCount: announced, receivedByteCount: byteCount)
  }

  /// Why a response cannot be stored whatever follows its head.
  func refusal(limit: Int) -> Rule? {
    switch self {
    case .malformed: .incompleteBody
    case .exactly(let count) where count > limit: .bodyTooLarge
    default: nil
    }
  }
}

extension IncomingResponse {
  func announcedByteCount(for request: ClientRequest) -> AnnouncedLength {
    // No body follows these heads, whatever Content-Length describes (RFC 9112 section 6.3).
    if request.head.method == "HEAD" || head.status == 204 || head.status == 304 || head.status < 200 {
      return .unknown
    }
    if head.fields.contains("Transfer-Encoding") { return .unknown }
    if lacksContent { return .unknown }
    if isContentDecoded, head.fields.contains("Content-Encoding") { return .unknown }
    guard let value = head.fields["Content-Length"] else { return .unknown }
    var announced: Int?
    for element in value.utf8.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false) {
      guard let count = Self.byteCount(element), announced == nil || announced == count else { return .malformed }
      announced = count
    }
    return announced.map { .exactly($0) } ?? .malformed
  }

  /// The digits of one Content-Length, between optional spaces; `nil` if there is anything else, or nothing, or a number
  /// beyond `Int`: HTTP clients take such a length for none and read to the end of the connection.
  private static func byteCount(_ element: Substring.UTF8View) -> Int? {
    let isSpace = { (byte: UInt8) in byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }
    var digits = element.drop(while: isSpace)
    while let last = digits.last, isSpace(last) { digits.removeLast() }
    guard !digits.isEmpty else { return nil }
    var count = 0
    for byte in digits {
      guard (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) else { return nil }
      let (tens, overflow) = count.multipliedReportingOverflow(by: 10)
      let (sum, carry) = tens.addingReportingOverflow(Int(byte - UInt8(ascii: "0")))
      guard !overflow, !carry else { return nil }
      count = sum
    }
    return count
  }

  /// The body for a caller whose response is not kept: it throws if it ends before its announced length.
  func checkedBody(for request: ClientRequest) -> ResponseBody {
    guard case .exactly(let announced) = announcedByteCount(for: request) else { return body }
    if let bytes = body.bytes, bytes.count == announced { return body }
    return ResponseBody(LengthCheckedChunks(base: body, announced: announced))
  }
}

/// The chunks of a body that must reach its announced length.
private struct LengthCheckedChunks: AsyncSequence, Sendable {
  let base: ResponseBody
  let announced: Int

  func makeAsyncIterator() -> Iterator {
    Iterator(base: base.makeAsyncIterator(), announced: announced)
  }

  struct Iterator: AsyncIteratorProtocol {
    var base: ResponseBody.AsyncIterator
    let announced: Int
    var received = 0

    mutating func next() async throws -> Data? {
      if let chunk = try await base.next() {
        received += chunk.count
        return chunk
      }
      guard received >= announced else {
        throw CachingClientError.incompleteBody(expectedByteCount: announced, receivedByteCount: received)
      }
      return nil
    }
  }
}
