import CacheModel
import FoundationEssentials
import HTTPCaching

/// A copy of a stored response. It does not change when the store changes.
///
/// Copies of this value share the bytes. Properties are decoded from the bytes at each call.
public struct StoredResponse: Sendable, StoredResponseMetadata {
  private let source: Source

  /// The location of the bytes.
  private enum Source: Sendable {
    /// In a pending write.
    case pending(PendingWrite)
    /// In a copy of the record.
    case copied(CopiedRecord)
  }

  init(_ write: PendingWrite) { source = .pending(write) }
  init(_ record: CopiedRecord) { source = .copied(record) }

  /// The record's row ID; 0 for a pending write.
  public var rowID: UInt64 {
    switch source {
    case .pending: 0
    case .copied(let record): record.origin.rowID
    }
  }

  /// The cache key.
  public var key: RequestKey {
    switch source {
    case .pending(let write): write.key
    case .copied: withHead { RequestKey(storedBytes: [UInt8]($0.key)) }
    }
  }

  /// When the response was stored. ``/CacheModel/RemovalScope/since(_:)`` compares this time.
  public var storedAt: Date { withHead { $0.storedAt } }
  /// Date, age and lifetime.
  public var freshness: FreshnessInfo { withHead { $0.freshness } }
  /// The HTTP status code; 0 for a response that is not HTTP.
  public var status: Int { withHead { $0.status } }
  /// The header fields.
  public var fields: HeaderFields { withHead { FieldCoding.decodeFields($0.fields) } }
  /// Calls `body` with the name and value of each header field in order, without creating a list.
  public func forEachField(_ body: (_ name: String, _ value: String) -> Void) {
    withHead { FieldCoding.forEachField($0.fields, body) }
  }
  /// The size of the encoded header fields in bytes.
  public var fieldsByteCount: Int { withHead { $0.fields.count } }
  /// The Vary key: the request fields that the response's `Vary` names.
  public var vary: VaryKey { withHead { FieldCoding.decodeVary($0.vary) } }
  /// The caller's bytes that were stored with the response.
  public var attachment: [UInt8]? { withHead { $0.hasAttachment ? [UInt8]($0.attachment) : nil } }
  /// The body's size in bytes.
  public var bodyByteCount: Int { withHead { $0.bodyByteCount } }

  /// The body, without a copy. The `Data` keeps the memory of this response alive.
  ///
  /// Do not change it in place: that changes this response, so that another call returns the changed bytes. To change
  /// the bytes, copy them first, for example into an array.
  ///
  /// Costs a small allocation, which ``withBodyBytes(_:)`` avoids. Traps if the lookup left the body in the store; see
  /// ``storedBody``.
  public var body: Data {
    switch source {
    case .pending(let write): write.body
    case .copied(let record): record.body
    }
  }

  /// The body in the store, if ``ResponseStore/lookup(_:leavingBodiesBeyond:where:)`` left it there; otherwise nil.
  public var storedBody: StoredBody? {
    switch source {
    case .pending: nil
    case .copied(let record): record.storedBody
    }
  }

  /// Calls `body` with the bytes of the body, without a copy.
  ///
  /// Traps if the lookup left the body in the store; see ``storedBody``.
  @inlinable
  public func withBodyBytes<R>(_ body: (RawSpan) -> R) -> R {
    // Only this part is specialized for each `R`.
    var result: R?
    borrowBody { result = body($0) }
    return result.unsafelyUnwrapped
  }

  @usableFromInline
  func borrowBody(_ body: (RawSpan) -> Void) {
    withBody { body($0.bytes) }
  }

  /// Whether other variants of the key are stored, or may be.
  public var hasOtherVariants: Bool {
    switch source {
    // A pending write does not know the variants on disk.
    case .pending: true
    case .copied(let record): record.origin.hasOthers
    }
  }

  /// The pending write that was looked up; nil for a record that was read from disk.
  var pendingWrite: PendingWrite? {
    switch source {
    case .pending(let write): write
    case .copied: nil
    }
  }

  /// The sequence number of the last removal before the response was stored or looked up. Later removals cover it.
  var removalSequence: UInt64 {
    switch source {
    case .pending(let write): write.removalSequence
    case .copied(let record): record.origin.removalSequence
    }
  }

  func withHead<R>(_ body: (RecordHeaderView) -> R) -> R {
    switch source {
    case .pending(let write): write.head.layout(body)
    case .copied(let record): record.withHead(body)
    }
  }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    if let write = pendingWrite { return write.withBody(body) }
    // Get the address before the call. Otherwise the compiler retains the record during the call.
    let bytes = copiedBody
    return withExtendedLifetime(self) { body(bytes) }
  }

  /// The body of a copied record; empty for a pending write.
  private var copiedBody: UnsafeRawBufferPointer {
    switch source {
    case .pending: UnsafeRawBufferPointer(start: nil, count: 0)
    case .copied(let record): record.bodyBytes
    }
  }
}
