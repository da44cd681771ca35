import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Returns the body of an entry, or a part of it. A large body may stay in the store until it is read.
  ///
  /// - Parameter positions: The positions of the part; nil for the whole body.
  /// - Returns: Nil if the positions are not within the body.
  func body(of entry: Storage.Entry, at positions: Range<Int>?) -> ResponseBodyStream? {
    guard let positions else { return wholeBody(of: entry) }
    return positions.upperBound <= entry.bodyByteCount ? storage.chunks(of: entry, in: positions) : nil
  }
}

extension Data {
  /// Returns the bytes at positions that are counted from 0.
  package func part(_ positions: Range<Int>) -> Data {
    self[startIndex + positions.lowerBound..<startIndex + positions.upperBound]
  }

  /// Returns the bytes at these positions, or all for nil, as a body; nil if the positions are not within the bytes.
  func body(at positions: Range<Int>?) -> ResponseBodyStream? {
    guard let positions else { return ResponseBodyStream(self) }
    return positions.upperBound <= count ? ResponseBodyStream(part(positions)) : nil
  }
}

/// The form of a response that is made from a stored response.
@usableFromInline
enum ResponseForm: Sendable {
  case whole
  case notModified
  case part(ByteRange)
  case unsatisfiableRange(completeLength: Int)

  func fields(of stored: some StoredResponseMetadata, age: Int) -> HeaderFields {
    switch self {
    case .whole: Reuse.responseFields(for: stored, age: age)
    case .part(let range): PartialContent.head(for: stored, range: range, age: age).fields
    case .unsatisfiableRange(let length): PartialContent.unsatisfiableHead(completeLength: length).fields
    case .notModified: Reuse.notModifiedHead(for: stored, age: age).fields
    }
  }
}

/// A response made from a stored response, without its fields, which can be built later.
struct PreparedResponse {
  let form: ResponseForm
  let status: Int
  let body: ResponseBodyStream
  let age: Int
  let rule: Rule
}

extension PreparedResponse {
  /// Creates the response that a decision selects; `nil` if the decision requires the origin.
  ///
  /// - Parameter body: Returns the stored body, or the part at some positions; nil if it has no such part.
  init?(
    _ decision: ReuseDecision, of stored: some StoredResponseMetadata, for request: CachingClientRequest,
    body: (_ positions: Range<Int>?) -> ResponseBodyStream?
  ) {
    func wholeBody() -> ResponseBodyStream {
      request.head.method == "HEAD" ? .empty : body(nil) ?? .empty
    }
    switch decision {
    case .serve(let age, let rule), .serveStale(let age, _, let rule):
      self.init(form: .whole, status: stored.status, body: wholeBody(), age: age, rule: rule)
    case .notModified(let age, _, let rule):
      self.init(form: .notModified, status: 304, body: .empty, age: age, rule: rule)
    case .unsatisfiableRange(let length, let age, let rule):
      self.init(form: .unsatisfiableRange(completeLength: length), status: 416, body: .empty, age: age, rule: rule)
    case .partial(let range, let age, _, let rule):
      guard let positions = PartialContent.bodyRange(of: range, in: stored), let part = body(positions) else {
        return nil
      }
      self.init(form: .part(range), status: 206, body: part, age: age, rule: rule)
    case .gatewayTimeout, .revalidate, .fetchMissingRange, .fetch: return nil
    }
  }
}
