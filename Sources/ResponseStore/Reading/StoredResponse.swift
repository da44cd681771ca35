import CacheModel
import FoundationEssentials
import HTTPCaching

/// A copy of a stored response. It does not change when the store changes.
///
/// Copies of this value share the bytes. Properties are decoded from the bytes at each call.
///
/// `@unchecked Sendable`: a pending write is `Sendable`, and the memory of a copy is filled before it is shared, and
/// then never changed.
public struct StoredResponse: @unchecked Sendable, StoredResponseMetadata {
  private let source: Source

  /// The location of the bytes.
  private enum Source {
    /// In a pending write.
    case pending(PendingWrite)
    /// In a copy of the record.
    case copied(Copy)
  }

  init(_ write: PendingWrite) { source = .pending(write) }

  /// The record's row ID; 0 for a pending write.
  public var rowID: UInt64 { copy?.record.rowID ?? 0 }

  /// The cache key.
  public var key: RequestKey {
    switch source {
    case .pending(let write): write.key
    case .copied: withHead { RequestKey(storedBytes: [UInt8]($0.key)) }
    }
  }

  /// When the response was stored.
  public var storedAt: Date { withHead { $0.storedAt } }
  /// When a validation last updated the response, or else when it was stored.
  ///
  /// ``/CacheModel/RemovalScope/since(_:)`` compares this time.
  public var updatedAt: Date { withHead { $0.updatedAt } }
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
    case .copied(let copy): copy.body
    }
  }

  /// The body in the store, if ``ResponseStore/lookup(_:leavingBodiesBeyond:where:)`` left it there; otherwise nil.
  public var storedBody: StoredBody? {
    copy?.storedBody.map { StoredBody($0.location, of: self, in: $0.store) }
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
    // A pending write does not know the variants on disk.
    copy?.record.hasOthers ?? true
  }

  /// The pending write that was looked up; nil for a record that was read from disk.
  var pendingWrite: PendingWrite? {
    switch source {
    case .pending(let write): write
    case .copied(let copy): copy.pendingWrite
    }
  }

  private var copy: Copy? {
    if case .copied(let copy) = source { copy } else { nil }
  }

  /// The sequence number of the last removal before the response was stored or looked up. Later removals cover it.
  var removalSequence: UInt64 {
    switch source {
    case .pending(let write): write.removalSequence
    case .copied(let copy): copy.record.removalSequence
    }
  }

  func withHead<R>(_ body: (RecordHeaderView) -> R) -> R {
    switch source {
    case .pending(let write): write.head.layout(body)
    case .copied(let copy): withExtendedLifetime(copy) { body(copy.head) }
    }
  }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    if case .pending(let write) = source { return write.withBody(body) }
    // Get the address before the call. Otherwise the compiler retains the copy during the call.
    let bytes = copiedBody
    return withExtendedLifetime(self) { body(bytes) }
  }

  /// The body of a copied record; empty for a pending write.
  private var copiedBody: UnsafeRawBufferPointer {
    switch source {
    case .pending: UnsafeRawBufferPointer(start: nil, count: 0)
    case .copied(let copy): copy.bodyBytes
    }
  }
}

// MARK: Copies of records

extension StoredResponse {
  /// The record of a copy, and the layout of the memory.
  ///
  /// An inline body follows the header directly, because the header's checksum covers both.
  private struct Record {
    let rowID: UInt64
    /// The last removal before the lookup.
    let removalSequence: UInt64
    /// Whether the key has other records.
    let hasOthers: Bool
    /// The bytes of the record in its record log: the header and an inline body.
    let byteCount: Int
    let bodyOffset: Int
    let bodyByteCount: Int
  }

  /// A body that stays in a store. An object, so that copies of other responses need no space for it.
  final class BodyInStore: Sendable {
    let location: StoredBody.Location
    let store: ResponseStore

    init(_ location: StoredBody.Location, in store: ResponseStore) {
      self.location = location
      self.store = store
    }
  }

  private struct CopyHeader {
    let record: Record
    let storedBody: BodyInStore?
    /// The pending write whose header was copied, because its body is in the store.
    let pendingWrite: PendingWrite?
    /// The memory, if it is not that of the buffer's elements.
    let block: UnsafeMutableRawPointer?
  }

  /// A record header, then the body unless it stays in the store, in one piece of memory.
  private final class Copy: ManagedBuffer<CopyHeader, UInt8> {
    deinit {
      if let block = withUnsafeMutablePointerToHeader({ $0.pointee.block }) { CopyMemory.giveBack(block) }
    }

    // Use a pointer, because each access to the property `header` would be checked for exclusivity.
    var record: Record { withUnsafeMutablePointerToHeader { $0.pointee.record } }
    var storedBody: BodyInStore? { withUnsafeMutablePointerToHeader { $0.pointee.storedBody } }
    var pendingWrite: PendingWrite? { withUnsafeMutablePointerToHeader { $0.pointee.pendingWrite } }
    var memory: UnsafeMutableRawPointer {
      withUnsafeMutablePointers { $0.pointee.block ?? UnsafeMutableRawPointer($1) }
    }

    /// The record header with an inline body, valid while this object exists.
    var head: RecordHeaderView {
      RecordHeaderView(checked: UnsafeRawBufferPointer(start: memory, count: record.byteCount))
    }

    /// The bytes of the body, valid while this object exists. Traps if the body is still in the store.
    var bodyBytes: UnsafeRawBufferPointer {
      withUnsafeMutablePointerToHeader { header in
        if header.pointee.storedBody != nil { Trap.bodyIsInStore() }
        let record = header.pointee.record
        return UnsafeRawBufferPointer(start: memory + record.bodyOffset, count: record.bodyByteCount)
      }
    }

    /// The body, without a copy. The `Data` keeps this object alive. Traps if the body is still in the store.
    var body: Data {
      let bytes = bodyBytes
      guard let start = bytes.baseAddress, !bytes.isEmpty else { return Data() }
      return Data(
        bytesNoCopy: UnsafeMutableRawPointer(mutating: start), count: bytes.count,
        deallocator: .custom { [self] _, _ in withExtendedLifetime(self) {} })
    }
  }

  /// Copies a record with an inline body. The memory for another body is left uninitialized.
  ///
  /// - Parameters:
  ///   - storedBody: The body, if it stays in the store; only the header is copied then.
  ///   - pendingWrite: The pending write of the record; nil if it was read from disk.
  init(
    copying record: RecordHeaderView, rowID: UInt64, removalSequence: UInt64, hasOthers: Bool,
    storedBody: BodyInStore? = nil, pendingWrite: PendingWrite? = nil
  ) {
    let bodyByteCount = storedBody == nil ? record.bodyByteCount : 0
    let byteCount = record.raw.count
    let bodyOffset = record.isBodyInline ? byteCount - bodyByteCount : (byteCount + 15) & ~15
    let copyByteCount = bodyOffset + bodyByteCount
    let block = CopyMemory.copyByteCounts.contains(copyByteCount) ? CopyMemory.take() : nil
    let made = Copy.create(minimumCapacity: block == nil ? copyByteCount : 0) { _ in
      CopyHeader(
        record: Record(
          rowID: rowID, removalSequence: removalSequence, hasOthers: hasOthers, byteCount: byteCount,
          bodyOffset: bodyOffset, bodyByteCount: bodyByteCount), storedBody: storedBody,
        pendingWrite: pendingWrite, block: block)
    }
    // `create` returns an object of this class, but its static type is the superclass.
    let copy = unsafeDowncast(made, to: Copy.self)
    copy.memory.copyMemory(from: record.raw.baseAddress!, byteCount: byteCount)
    source = .copied(copy)
  }

  /// The memory of the body of a copy, which the creator fills.
  var bodyMemory: UnsafeMutableRawPointer? { copy.map { $0.memory + $0.record.bodyOffset } }

  /// Ends the freshness in a copy, like a soft purge. Call this before the copy is shared.
  func endFreshness(at date: Date) {
    guard let copy else { return }
    RecordHeader.putFreshness(
      copy.head.freshness.softPurged(at: date),
      into: UnsafeMutableRawBufferPointer(start: copy.memory, count: copy.record.byteCount))
  }

  /// Whether header and body of a copy match their checksums.
  var isIntact: Bool {
    withHead { $0.hasRightChecksum && $0.bodyChecksum == BodyChecksum.digest(of: copiedBody) }
  }
}
