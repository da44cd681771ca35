import FoundationEssentials
import HTTPCaching

/// A copy of a stored response. It stays the same when the store changes.
///
/// One reference: copies share the bytes, and what is asked for is decoded from them.
public struct StoredResponse: Sendable, StoredResponseMetadata {
  private let source: Source

  /// Where the bytes are.
  private enum Source: Sendable {
    /// In a response that waits for the writer.
    case staged(PendingWrite)
    /// In a copy of the record.
    case copied(CopiedRecord)
    /// In a copy of the record's head, and the body still in the store.
    case inPieces(RecordInPieces)
  }

  init(_ staged: PendingWrite) { source = .staged(staged) }
  init(_ record: CopiedRecord) { source = .copied(record) }
  init(_ record: RecordInPieces) { source = .inPieces(record) }

  /// The record's number; 0 while the response waits for the writer.
  public var rowID: UInt64 {
    switch source {
    case .staged: 0
    case .copied(let record): record.origin.rowID
    case .inPieces(let record): record.head.origin.rowID
    }
  }

  /// The cache key. Made at each call.
  public var key: RequestKey {
    switch source {
    case .staged(let response): response.key
    case .copied, .inPieces: withHead { RequestKey(storedBytes: [UInt8]($0.key)) }
    }
  }

  /// When the response was stored; what ``ResponseStore/removeResponses(since:)`` compares with.
  public var storedAt: Date { withHead { $0.storedAt } }
  /// Date, age and lifetime.
  public var freshness: FreshnessInfo { withHead { $0.freshness } }
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
  public var vary: VaryKey { withHead { FieldCoding.decodeVary($0.vary) } }
  /// Bytes of the layer above, as they were given.
  public var attachment: [UInt8]? { withHead { $0.hasAttachment ? [UInt8]($0.attachment) : nil } }
  /// The body's size in bytes.
  public var bodyByteCount: Int { withHead { $0.bodyByteCount } }

  /// The body, in the response's own memory, which it keeps alive.
  ///
  /// The `Data` takes a small allocation, which ``withBodyBytes(_:)`` avoids. Traps if the lookup has left the body in
  /// the store.
  public var body: Data {
    switch source {
    case .staged(let response): response.body
    case .copied(let record): record.body
    case .inPieces: Trap.bodyIsInStore()
    }
  }

  /// The body, where ``ResponseStore/lookup(_:leavingBodiesBeyond:where:)`` has left it in the store; nil if it is at
  /// hand.
  public var storedBody: StoredBody? {
    switch source {
    case .staged, .copied: nil
    case .inPieces(let record): record.body
    }
  }

  /// Calls `body` with the bytes of the body in the response's own memory. Traps if the lookup has left the body in the
  /// store.
  @inlinable
  public func withBodyBytes<R>(_ body: (RawSpan) -> R) -> R {
    // Only this part is specialized for each `R`.
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
    // Other variants on disk are not known here.
    case .staged: true
    case .copied(let record): record.origin.hasOthers
    case .inPieces(let record): record.head.origin.hasOthers
    }
  }

  /// The pending write that was looked up; nil for a record that was read from disk.
  var staged: PendingWrite? {
    switch source {
    case .staged(let response): response
    case .copied, .inPieces: nil
    }
  }

  /// The sequence number of the last removal before the response was stored or looked up. Later removals cover it.
  var snapshot: UInt64 {
    switch source {
    case .staged(let response): response.snapshot
    case .copied(let record): record.origin.snapshot
    case .inPieces(let record): record.head.origin.snapshot
    }
  }

  func withHead<R>(_ body: (RecordHeaderView) -> R) -> R {
    switch source {
    case .staged(let response): response.head.layout(body)
    case .copied(let record): record.withHead(body)
    case .inPieces(let record): record.head.withHead(body)
    }
  }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    switch source {
    case .staged(let response): response.withBody(body)
    case .copied(let record): record.withBody(body)
    case .inPieces: Trap.bodyIsInStore()
    }
  }
}
