import FoundationEssentials
import HTTPCaching

/// A stored response, copied out of the store: it stays what it is whatever happens there.
///
/// One reference: copies share the bytes, and what is asked for is decoded from them.
public struct StoredResponse: Sendable, StoredResponseView {
  private let source: Source

  /// Where the bytes are.
  private enum Source: Sendable {
    /// In a response that waits for the writer.
    case staged(StagedResponse)
    /// In a copy of the record.
    case copied(CopiedRecord)
  }

  init(_ staged: StagedResponse) { source = .staged(staged) }
  init(_ record: CopiedRecord) { source = .copied(record) }

  /// The record's number; 0 while the response waits for the writer.
  public var rowID: UInt64 {
    switch source {
    case .staged: 0
    case .copied(let record): record.origin.rowID
    }
  }

  /// What the response answers. Made at each call.
  public var key: RequestKey {
    switch source {
    case .staged(let response): response.key
    case .copied: withHead { RequestKey(storedBytes: [UInt8]($0.key)) }
    }
  }

  /// When the response was stored; what ``ResponseStore/removeResponses(since:)`` compares with.
  public var storedAt: Date { withHead { $0.storedAt } }
  /// Date, age and lifetime.
  public var facts: FreshnessFacts { withHead { $0.facts } }
  /// The HTTP status code; 0 for a response that is not HTTP.
  public var status: Int { withHead { $0.status } }
  /// The header fields. Decoded at each call.
  public var fields: HTTPFields { withHead { FieldCoding.decodeFields($0.fields) } }
  /// Calls `body` with name and value of each header field in their order, without making a list of them.
  public func forEachField(_ body: (_ name: String, _ value: String) -> Void) {
    withHead { FieldCoding.forEachField($0.fields, body) }
  }
  /// The bytes that the header fields take as they are stored.
  public var fieldsByteCount: Int { withHead { $0.fields.count } }
  /// The request fields by which this variant was chosen. Decoded at each call.
  public var vary: VarySelection { withHead { FieldCoding.decodeVary($0.vary) } }
  /// Bytes of the layer above, as they were given.
  public var attachment: [UInt8]? { withHead { $0.hasAttachment ? [UInt8]($0.attachment) : nil } }
  /// The body's size in bytes.
  public var bodyByteCount: Int { withHead { $0.bodyByteCount } }

  /// The body. It lies in the response's own memory and keeps it alive; making the `Data` around it takes a small piece
  /// more, which ``withBodyBytes(_:)`` does without.
  public var body: Data {
    switch source {
    case .staged(let response): response.body
    case .copied(let record): record.body
    }
  }

  /// Calls `body` with the bytes of the body, where they lie in the response's own memory.
  @inlinable
  public func withBodyBytes<R>(_ body: (RawSpan) -> R) -> R {
    // Only this is compiled anew for each `R`.
    var result: R?
    lendBody { result = body($0) }
    return result.unsafelyUnwrapped
  }

  @usableFromInline
  func lendBody(_ body: (RawSpan) -> Void) {
    withBody { body($0.bytes) }
  }

  /// Whether other variants are stored for the key, or may be.
  public var hasOtherVariants: Bool {
    switch source {
    // What lies on disk beside it is not known here.
    case .staged: true
    case .copied(let record): record.origin.hasOthers
    }
  }

  /// What waited for the writer when it was looked up; nil for what was read from the disk.
  var staged: StagedResponse? {
    switch source {
    case .staged(let response): response
    case .copied: nil
    }
  }

  /// The transaction that it was read in, or the last one before it was staged. What was removed later covers it.
  var snapshot: UInt64 {
    switch source {
    case .staged(let response): response.snapshot
    case .copied(let record): record.origin.snapshot
    }
  }

  func withHead<R>(_ body: (HeadLayout) -> R) -> R {
    switch source {
    case .staged(let response): response.head.layout(body)
    case .copied(let record): record.withHead(body)
    }
  }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    switch source {
    case .staged(let response): response.withBody(body)
    case .copied(let record): record.withBody(body)
    }
  }
}
