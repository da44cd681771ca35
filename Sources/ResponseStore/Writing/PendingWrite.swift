import FoundationEssentials
import HTTPCaching
import Synchronization

/// A response on its way to the disk: readable by this process, encoded already so that the writer only copies.
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
  /// The body, unless it is in the header. The caller's own bytes, without a copy: the writer would have to release
  /// memory that the caller's processor has at hand.
  let bodyApart: Data
  let storedAt: Date
  /// Changed only by ``becomeRecord()``.
  nonisolated(unsafe) private(set) var purpose: Purpose
  /// Of an update: the pending write of the record. Of a write that is laid out again: the earlier one.
  private let original: PendingWrite?
  /// Where it stands, unless that is known by the original.
  private let ownRowID: Atomic<UInt64>
  /// The last removal when it was staged, for an update when its body was read: later ones cover this response too.
  let snapshot: UInt64

  /// The key's, which tells its place in the staging area.
  let digest: UInt64

  /// An older response of the same key. Touched only with the lock of the staging area's shard, which makes it safe to
  /// share; so no look for other accesses is needed.
  @exclusivity(unchecked) nonisolated(unsafe) var next: PendingWrite?

  /// Its place in the write queue. Touched only with the queue's lock.
  @exclusivity(unchecked) nonisolated(unsafe) var queuePosition: UInt64 = 0

  /// Its number among all that were accepted. Written with the queue's lock, before the writer sees this object.
  @exclusivity(unchecked) nonisolated(unsafe) var number: UInt64 = 0

  /// glibc collects freed pieces of up to 128 bytes, and clears all of them at once with the lock that its other users
  /// wait for: for 43 to 62 ms, when a long queue had been written. Larger ones it clears one by one; this makes them
  /// larger.
  private let padding: (UInt64, UInt64) = (0, 0)

  /// - Parameters:
  ///   - rowID: The row of the record to update, if it is known.
  ///   - original: The pending write of the record to update, if it was pending when the response was looked up.
  ///   - bodyChecksum: The checksum of the body if it is known; nil to compute it.
  init(
    _ response: NewResponse, storedAt: Date, purpose: Purpose = .insert, rowID: UInt64 = 0,
    original: PendingWrite? = nil, snapshot: UInt64, inlineByteCount: Int, bodyChecksum: UInt64? = nil
  ) {
    self.storedAt = storedAt
    self.purpose = purpose
    self.original = original?.record
    ownRowID = Atomic(rowID)
    self.snapshot = snapshot
    digest = response.key.spreadingDigest
    let bodyChecksum = bodyChecksum ?? response.body.withUnsafeBytes { XXHash.digest64($0) }
    head = RecordHeader(
      response, storedAt: storedAt, removalSequence: snapshot, inlineByteCount: inlineByteCount,
      bodyChecksum: bodyChecksum)
    bodyApart = head.isBodyInline ? Data() : response.body
  }

  /// Nothing, in the place of what is on disk for a variant.
  convenience init(
    discarding vary: VaryKey, of key: RequestKey, freshness: FreshnessInfo, storedAt: Date, snapshot: UInt64
  ) {
    let nothing = NewResponse(key: key, status: 0, fields: HTTPFields(), body: Data(), freshness: freshness, vary: vary)
    self.init(nothing, storedAt: storedAt, purpose: .discard, snapshot: snapshot, inlineByteCount: 0)
  }

  /// Whether it only hides what is on disk, and has the writer delete that.
  var isDiscard: Bool { if case .discard = purpose { true } else { false } }

  /// Whether it only changes the head of a record that stays.
  var isUpdate: Bool { if case .replaceHead = purpose { true } else { false } }

  // Made at each call, of the head's bytes.
  var key: RequestKey { head.key }
  var vary: VaryKey { head.vary }
  var freshness: FreshnessInfo { head.freshness }
  var body: Data { head.isBodyInline ? head.layout { Data($0.inlineBody) } : bodyApart }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    head.isBodyInline ? head.layout { body($0.inlineBody) } : bodyApart.withUnsafeBytes(body)
  }

  /// The same response with a changed header.
  private init(_ other: PendingWrite, head: RecordHeader) {
    self.head = head
    bodyApart = other.bodyApart
    storedAt = other.storedAt
    purpose = other.purpose
    original = other.record
    ownRowID = Atomic(0)
    snapshot = other.snapshot
    digest = other.digest
    number = other.number
  }

  /// The same response for a data file that has free pages, but few of them in a row.
  var withSinglePageChunks: PendingWrite {
    guard case .insert = purpose, !head.isBodyInline else { return self }
    return PendingWrite(self, head: head.withSinglePageChunks)
  }

  /// The same response with a freshness that a soft purge ended.
  func softPurged(at date: Date) -> PendingWrite {
    PendingWrite(self, head: head.softPurged(at: date))
  }

  /// Makes an update a record of its own, where it takes the place of the record that it updates. Only before anybody
  /// else knows this object.
  func becomeRecord() {
    purpose = .insert
  }

  /// The bytes that writing it copies; what a batch is limited by.
  var byteCount: Int { head.bytes.count + bodyApart.count }

  /// The bytes of the head without a body in it.
  var headByteCount: Int { head.layout { $0.head.count } }

  /// The first of a response and its updates: the write that is, or becomes, the record.
  var record: PendingWrite { original ?? self }

  /// The row of the record, 0 until it is committed.
  var rowID: UInt64 { record.ownRowID.load(ordering: .relaxed) }

  func setRowID(_ rowID: UInt64) {
    record.ownRowID.store(rowID, ordering: .relaxed)
  }

  /// Whether both are, or are going to be, one record. Row ids are used again, but an update keeps time and body.
  func isSameRecord(as other: PendingWrite) -> Bool {
    let rowID = rowID
    return (record === other.record || (rowID != 0 && rowID == other.rowID)) && storedAt == other.storedAt
      && head.checksums.body == other.head.checksums.body
  }

  func hasKey(_ key: RequestKey) -> Bool { head.layout { $0.hasKey(key.bytes) } }

  func hasSameKey(as other: PendingWrite) -> Bool {
    head.layout { head in other.head.layout { head.hasSameKey(as: $0) } }
  }

  /// For two responses of one key: whether they have the same Vary selection.
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

  func isCovered(by scope: RemovalScope) -> Bool {
    scope.covers(key: key.bytes, storedAt: storedAt) { CacheGroups.groups(of: head.fields) }
  }
}
