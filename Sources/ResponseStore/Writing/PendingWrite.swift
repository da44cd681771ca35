import CacheModel
import FoundationEssentials
import HTTPCaching
import Synchronization

/// A response that was accepted and is not committed yet.
///
/// It is readable in this process, and already encoded, so that the writer only copies it.
final class PendingWrite: Sendable {
  enum Purpose: Sendable {
    /// A new record.
    case insert
    /// A new header for a record whose body stays; dropped if the record no longer exists.
    case replaceHead
    /// The deletion of a record: a newer response exists that is not stored.
    case discard
  }

  let head: RecordHeader
  /// The body, unless it is in the record header: the caller's own bytes, without a copy.
  let bodyApart: Data
  /// The location of the body if it is in the store: that of a record whose header this write only replaces, or one
  /// that was written while it arrived. Then the write has no body itself.
  let storedBody: StoredBody.Location?
  let storedAt: Date
  /// Changed only by ``becomeRecord()``.
  nonisolated(unsafe) private(set) var purpose: Purpose
  /// The pending write that this write updates, or whose body it stores in single-page chunks; nil for other writes.
  private let original: PendingWrite?
  /// The row of the record; not used if there is an `original`, which has the row.
  private let ownRowID: Atomic<UInt64>
  /// The last removal before the response was stored or, for an update, looked up. Later removals cover the response.
  let removalSequence: UInt64

  /// The digest of the key, which selects the shard in ``PendingWrites``.
  let digest: UInt64

  /// The next older pending write of the same key. Accessed only with the lock of its shard in ``PendingWrites``.
  @exclusivity(unchecked) nonisolated(unsafe) var next: PendingWrite?

  /// The position in the write queue. Accessed only with the queue's lock.
  @exclusivity(unchecked) nonisolated(unsafe) var queuePosition: UInt64 = 0

  /// The number of the write among all accepted writes. Set with the queue's lock, before the writer sees this object.
  @exclusivity(unchecked) nonisolated(unsafe) var number: UInt64 = 0

  /// Makes the object larger than 128 bytes. glibc collects smaller freed blocks, and consolidates all of them at once
  /// while other threads wait for its lock. After a long queue, that would block them for many milliseconds.
  private let padding: (UInt64, UInt64) = (0, 0)

  /// Encodes a response.
  ///
  /// - Parameters:
  ///   - attachment: Bytes of the caller that are stored with the response.
  ///   - updatedAt: The time of an update; nil for another write.
  ///   - rowID: The row of the record to update; 0 if unknown.
  ///   - original: The pending write of the record to update, if it was pending when the response was looked up.
  ///   - bodyChecksum: The checksum of the body if it is known; nil to compute it.
  ///   - storedBody: See ``storedBody``. Requires the checksum.
  init(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]? = nil, storedAt: Date,
    updatedAt: Date? = nil, purpose: Purpose = .insert, rowID: UInt64 = 0, original: PendingWrite? = nil,
    removalSequence: UInt64,
    inlineByteCount: Int, bodyChecksum: UInt64? = nil, storedBody: StoredBody.Location? = nil
  ) {
    self.storedAt = storedAt
    self.purpose = purpose
    self.original = original?.record
    ownRowID = Atomic(rowID)
    self.removalSequence = removalSequence
    digest = key.spreadingDigest
    let bodyChecksum = bodyChecksum ?? response.body.withUnsafeBytes { BodyChecksum.digest(of: $0) }
    head = RecordHeader(
      response, for: key, attachment: attachment, storedAt: storedAt, updatedAt: updatedAt,
      removalSequence: removalSequence, inlineByteCount: inlineByteCount, bodyChecksum: bodyChecksum,
      storedBodyByteCount: storedBody?.byteCount)
    self.storedBody = storedBody
    bodyApart = head.isBodyInline ? Data() : response.body
  }

  /// Creates a discard, which hides the stored record of a variant until the writer deletes it.
  convenience init(
    discarding vary: VaryKey, of key: RequestKey, freshness: FreshnessInfo, storedAt: Date, removalSequence: UInt64
  ) {
    let empty = CacheableResponse(status: 0, fields: HeaderFields(), body: Data(), freshness: freshness, vary: vary)
    self.init(
      empty, for: key, storedAt: storedAt, purpose: .discard, removalSequence: removalSequence, inlineByteCount: 0)
  }

  /// Whether this write only deletes a stored record.
  var isDiscard: Bool { purpose == .discard }

  /// Whether this write only replaces the record header of a stored record.
  var isUpdate: Bool { purpose == .replaceHead }

  // Decoded from the record header at each call.
  var key: RequestKey { head.key }
  var vary: VaryKey { head.vary }
  var freshness: FreshnessInfo { head.freshness }
  /// The body. Empty if it is in the store; see ``storedBody``.
  var body: Data { head.isBodyInline ? head.layout { Data($0.inlineBody) } : bodyApart }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    head.isBodyInline ? head.layout { body($0.inlineBody) } : bodyApart.withUnsafeBytes(body)
  }

  /// The same response with a changed header, or with its body in the store.
  private init(_ other: PendingWrite, head: RecordHeader, storedBody: StoredBody.Location? = nil) {
    self.head = head
    bodyApart = storedBody == nil ? other.bodyApart : Data()
    self.storedBody = storedBody ?? other.storedBody
    storedAt = other.storedAt
    purpose = other.purpose
    original = other.record
    ownRowID = Atomic(0)
    removalSequence = other.removalSequence
    digest = other.digest
    number = other.number
  }

  /// The same write with its body in single-page chunks, for a data file whose free pages are not contiguous.
  var withSinglePageChunks: PendingWrite {
    guard purpose == .insert, !head.isBodyInline, storedBody == nil else { return self }
    return PendingWrite(self, head: head.withSinglePageChunks)
  }

  /// Returns the same write, whose body was written to the store.
  func withBody(in location: StoredBody.Location) -> PendingWrite {
    PendingWrite(self, head: head, storedBody: location)
  }

  /// Returns the same write with a freshness that a soft purge ended.
  func softPurged(at date: Date) -> PendingWrite {
    PendingWrite(self, head: head.softPurged(at: date))
  }

  /// Turns an update into an insertion, because it replaces the queued write that it updates.
  ///
  /// Call this before another thread can access this object.
  func becomeRecord() {
    purpose = .insert
  }

  /// The number of bytes that the writer copies. It counts toward the limits of batch and queue.
  var byteCount: Int { head.bytes.count + bodyApart.count }

  /// The size of the record header in bytes, without an inline body.
  var headByteCount: Int { head.layout { $0.head.count } }

  /// The write that created the record, or will create it: this write, or the one that it updates.
  var record: PendingWrite { original ?? self }

  /// The row of the record; 0 until it is committed.
  var rowID: UInt64 { record.ownRowID.load(ordering: .relaxed) }

  func setRowID(_ rowID: UInt64) {
    record.ownRowID.store(rowID, ordering: .relaxed)
  }

  /// Whether both writes are for the same record. An update keeps the record's time and body.
  func isSameRecord(as other: PendingWrite) -> Bool {
    let rowID = rowID
    return (record === other.record || (rowID != 0 && rowID == other.rowID)) && storedAt == other.storedAt
      && head.bodyChecksum == other.head.bodyChecksum
  }

  func hasKey(_ key: RequestKey) -> Bool { head.layout { $0.hasKey(key.bytes) } }

  func hasSameKey(as other: PendingWrite) -> Bool {
    head.layout { head in other.head.layout { head.hasSameKey(as: $0) } }
  }

  /// Whether both have the same Vary key. Only for writes of one key.
  func hasSameVariant(as other: PendingWrite) -> Bool {
    head.layout { head in other.head.layout { head.hasSameVary(as: $0) } }
  }

  /// The response after removals; nil if one of them covers it and is hard.
  func applying(_ effect: RemovalEffect) -> PendingWrite? {
    switch effect {
    case .none: self
    case .stale(let date): softPurged(at: date)
    case .removed: nil
    }
  }
}
