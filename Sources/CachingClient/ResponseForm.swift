import FoundationEssentials
import HTTPCaching

/// The content of a stored response, as the source of a response body.
protocol StoredContent {
  /// The complete content.
  var whole: ResponseBody { get }
  /// Returns the content at these positions; nil if they are not within the content.
  func part(_ positions: Range<Int>) -> ResponseBody?
}

/// Content whose bytes are in memory.
struct BufferedContent: StoredContent {
  let bytes: Data

  var whole: ResponseBody { ResponseBody(bytes) }

  func part(_ positions: Range<Int>) -> ResponseBody? {
    positions.upperBound <= bytes.count ? ResponseBody(bytes.part(positions)) : nil
  }
}

/// The content of an entry, in memory or read in pieces, as the request requires.
struct EntryContent<Storage: ResponseStorage>: StoredContent {
  let storage: Storage
  let entry: Storage.Entry
  let readsInPieces: Bool

  var whole: ResponseBody {
    readsInPieces
      ? storage.chunks(of: entry, in: 0..<entry.bodyByteCount) : BufferedContent(bytes: storage.body(of: entry)).whole
  }

  func part(_ positions: Range<Int>) -> ResponseBody? {
    guard readsInPieces else { return BufferedContent(bytes: storage.body(of: entry)).part(positions) }
    return positions.upperBound <= entry.bodyByteCount ? storage.chunks(of: entry, in: positions) : nil
  }
}

extension CachingClient {
  /// Returns the content of an entry for a request.
  func content(of entry: Storage.Entry, for request: ClientRequest) -> EntryContent<Storage> {
    EntryContent(storage: storage, entry: entry, readsInPieces: request.readsBodyInPieces)
  }
}

extension Data {
  /// Returns the bytes at positions that are counted from 0.
  func part(_ positions: Range<Int>) -> Data {
    self[startIndex + positions.lowerBound..<startIndex + positions.upperBound]
  }
}

/// The form of a response that is made from a stored response.
@usableFromInline
enum ResponseForm: Sendable {
  case whole
  case notModified
  case part(ByteRange)
  case unsatisfiableRange(completeLength: Int)

  /// Returns the fields of a response in this form.
  func fields(of stored: some StoredResponseMetadata, age: Int) -> HTTPFields {
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
  let body: ResponseBody
  let age: Int
  let rule: Rule
}

extension PreparedResponse {
  /// Creates the response that a decision selects; `nil` if the decision requires the origin.
  init?(
    _ decision: ReuseDecision, of stored: some StoredResponseMetadata, for request: ClientRequest,
    body storedBody: some StoredContent
  ) {
    func wholeBody() -> ResponseBody {
      request.head.method == "HEAD" ? .empty : storedBody.whole
    }
    switch decision {
    case .serve(let age, let rule), .serveStale(let age, _, let rule):
      self.init(form: .whole, status: stored.status, body: wholeBody(), age: age, rule: rule)
    case .notModified(let age, _, let rule):
      self.init(form: .notModified, status: 304, body: .empty, age: age, rule: rule)
    case .unsatisfiableRange(let length, let age, let rule):
      self.init(form: .unsatisfiableRange(completeLength: length), status: 416, body: .empty, age: age, rule: rule)
    case .partial(let range, let age, _, let rule):
      // If the transport decoded the stored content, the range counts other bytes than the stored ones. A server may
      // ignore ranges (RFC 9110 section 14.2), so such a request receives the complete response.
      guard !stored.fields.contains("Content-Encoding") else {
        guard !stored.freshness.flags.contains(.incomplete) else { return nil }
        self.init(form: .whole, status: stored.status, body: wholeBody(), age: age, rule: rule)
        return
      }
      guard let positions = PartialContent.bodyRange(of: range, in: stored), let part = storedBody.part(positions)
      else {
        return nil
      }
      self.init(form: .part(range), status: 206, body: part, age: age, rule: rule)
    case .gatewayTimeout, .revalidate, .fetchMissingRange, .fetch: return nil
    }
  }
}
