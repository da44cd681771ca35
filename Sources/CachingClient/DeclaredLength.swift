import FoundationEssentials
import HTTPCaching

/// The body length that a response head declares (RFC 9110 section 8.6, RFC 9112 section 6.3).
enum DeclaredLength: Sendable, Hashable {
  /// No length to compare with: the transport finds the end of the body by other means.
  case unknown
  /// One length in bytes.
  case exactly(Int)
  /// Different lengths, or a value that is not a number or does not fit in `Int`. The end of the body is unreliable.
  case malformed

  /// Returns whether a body of `byteCount` bytes is complete.
  func allows(_ byteCount: Int) -> Bool {
    switch self {
    case .unknown: true
    case .exactly(let declared): declared == byteCount
    case .malformed: false
    }
  }

  /// Checks that a body that has ended is not too short.
  ///
  /// - Throws: ``CachingClientError/incompleteBody(expectedByteCount:receivedByteCount:)`` if the body ended before the
  ///   declared length.
  func check(_ byteCount: Int) throws {
    guard case .exactly(let declared) = self, byteCount < declared else { return }
    throw CachingClientError.incompleteBody(expectedByteCount: declared, receivedByteCount: byteCount)
  }

  /// Returns the reason why a response cannot be stored, if the head alone decides that.
  func refusal(limit: Int) -> Rule? {
    switch self {
    case .malformed: .incompleteBody
    case .exactly(let count) where count > limit: .bodyTooLarge
    default: nil
    }
  }
}

extension IncomingResponse {
  /// Returns the declared length of the body that the transport delivers.
  func declaredByteCount(for request: ClientRequest) -> DeclaredLength {
    // No body follows these heads, regardless of Content-Length (RFC 9112 section 6.3).
    if request.head.method == "HEAD" || head.status == 204 || head.status == 304 || head.status < 200 {
      return .unknown
    }
    if head.fields.contains("Transfer-Encoding") { return .unknown }
    if lacksContent { return .unknown }
    if isContentDecoded, head.fields.contains("Content-Encoding") { return .unknown }
    guard let value = head.fields["Content-Length"] else { return .unknown }
    var declared: Int?
    for element in value.utf8.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false) {
      guard let count = Self.byteCount(element), declared == nil || declared == count else { return .malformed }
      declared = count
    }
    return declared.map { .exactly($0) } ?? .malformed
  }

  /// Returns the number in one Content-Length, which may have spaces and tabs around its digits.
  ///
  /// Returns `nil` without digits, with any other character, or if the number does not fit in `Int`. HTTP clients
  /// ignore such a length and read to the end of the connection.
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

  /// Returns the body of a response that is not stored; reading throws if it ends before the declared length.
  func lengthCheckedBody(for request: ClientRequest) -> ResponseBody {
    guard case .exactly(let declared) = declaredByteCount(for: request) else { return body }
    if let bytes = body.bytes, bytes.count == declared { return body }
    return ResponseBody(LengthCheckedChunks(base: body, declared: declared))
  }
}

/// The chunks of a body; throws if the body ends before its declared length.
private struct LengthCheckedChunks: AsyncSequence, Sendable {
  let base: ResponseBody
  let declared: Int

  func makeAsyncIterator() -> Iterator {
    Iterator(base: base.makeAsyncIterator(), declared: declared)
  }

  struct Iterator: AsyncIteratorProtocol {
    var base: ResponseBody.AsyncIterator
    let declared: Int
    var received = 0

    mutating func next() async throws -> Data? {
      if let chunk = try await base.next() {
        received += chunk.count
        return chunk
      }
      guard received >= declared else {
        throw CachingClientError.incompleteBody(expectedByteCount: declared, receivedByteCount: received)
      }
      return nil
    }
  }
}
