import FoundationEssentials
import HTTPCaching

/// A response on its way to the disk: readable by this process, encoded already so that the writer only copies.
final class StagedResponse: Sendable {
  enum Purpose: Sendable {
    /// A new record.
    case insert
    /// A new head for the record that ``StagedResponse/row`` leads to, whose body stays; nothing if that one is gone.
    case replaceHead
  }

  let key: RequestKey
  let head: HeadRecord
  let body: Data
  let storedAt: Date
  let facts: FreshnessFacts
  let vary: VarySelection
  let purpose: Purpose
  /// Where it is going to stand, or stands already.
  let row: RowReference
  /// The last removal when it was staged, for an update when its body was read: later ones cover this response too.
  let snapshot: UInt64

  init(
    _ response: NewResponse, storedAt: Date, purpose: Purpose, row: RowReference, snapshot: UInt64,
    inlineByteCount: Int
  ) {
    key = response.key
    body = response.body
    self.storedAt = storedAt
    facts = response.facts
    vary = response.vary
    self.purpose = purpose
    self.row = row
    self.snapshot = snapshot
    let bodyChecksum = response.body.withUnsafeBytes { XXHash.digest64($0) }
    head = HeadRecord(
      response, storedAt: storedAt, removalSequence: snapshot, inlineByteCount: inlineByteCount,
      bodyChecksum: bodyChecksum)
  }

  /// The same response with its body in single pages.
  private init(inSinglePages other: StagedResponse) {
    key = other.key
    head = other.head.inSinglePages
    body = other.body
    storedAt = other.storedAt
    facts = other.facts
    vary = other.vary
    purpose = other.purpose
    row = other.row
    snapshot = other.snapshot
  }

  /// The same response for a data file that has free pages, but few of them in a row.
  var inSinglePages: StagedResponse {
    guard case .insert = purpose, !head.isBodyInline else { return self }
    return StagedResponse(inSinglePages: self)
  }

  /// The bytes that writing it copies; what a batch is limited by.
  var byteCount: Int { head.bytes.count + (head.isBodyInline ? 0 : body.count) }

  /// The bytes of the head without a body in it.
  var headByteCount: Int { head.bytes.count - (head.isBodyInline ? body.count : 0) }

  /// Whether both are, or are going to be, one record. Row ids are used again, but an update keeps time and body.
  func isSameRecord(as other: StagedResponse) -> Bool {
    row.isSame(as: other.row) && storedAt == other.storedAt && head.checksums.body == other.head.checksums.body
  }

  func isCovered(by scope: RemovalScope) -> Bool {
    scope.covers(key: key.bytes, storedAt: storedAt) { CacheGroups.groups(of: head.fields) }
  }
}
