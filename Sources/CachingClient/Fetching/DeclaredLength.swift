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
    case .exactly(let count) where count > limit: .bodyTooLarge(limit: limit)
    default: nil
    }
  }
}

extension IncomingResponse {
  /// Returns the declared length of the body that the transport delivers.
  func declaredByteCount(for request: CachingClientRequest) -> DeclaredLength {
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
      // HTTP clients ignore a malformed length and read to the end of the connection.
      guard let count = Int(digits: element.trimmingFieldSpace()), declared == nil || declared == count else {
        return .malformed
      }
      declared = count
    }
    return declared.map { .exactly($0) } ?? .malformed
  }

  /// Returns the body of a response that is not stored; reading throws if it ends before the declared length.
  func lengthCheckedBody(for request: CachingClientRequest) -> ResponseBodyStream {
    let length = declaredByteCount(for: request)
    guard case .exactly(let declared) = length, body.bytes?.count != declared else { return body }
    return body.observed {
      var received = 0
      return { chunk in if let chunk { received += chunk.count } else { try length.check(received) } }
    }
  }
}
