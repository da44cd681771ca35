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

  let head: HeadRecord
  /// Where the body is not in the head; empty otherwise. What the caller's objects hold is not kept twice: the writer would have to
  /// let go of memory that the caller's processor has at hand.
  let bodyApart: Data
  let storedAt: Date
  let purpose: Purpose
  /// Where it is going to stand, or stands already.
  let row: RowReference
  /// The last removal when it was staged, for an update when its body was read: later ones cover this response too.
  let snapshot: UInt64

  /// Its place in the staging area.
  struct Link {
    var digest: UInt64 = 0
    /// An older response at the same place.
    var next: StagedResponse?
  }

  /// Touched only with the staging area's lock, which makes it safe to share; so no look for other accesses is needed.
  @exclusivity(unchecked) nonisolated(unsafe) var link = Link()

  init(
    _ response: NewResponse, storedAt: Date, purpose: Purpose, row: RowReference, snapshot: UInt64,
    inlineByteCount: Int
  ) {
    self.storedAt = storedAt
    self.purpose = purpose
    self.row = row
    self.snapshot = snapshot
    let bodyChecksum = response.body.withUnsafeBytes { XXHash.digest64($0) }
    head = HeadRecord(
      response, storedAt: storedAt, removalSequence: snapshot, inlineByteCount: inlineByteCount,
      bodyChecksum: bodyChecksum)
    bodyApart = head.isBodyInline ? Data() : response.body
  }

  // Made at each call, of the head's bytes.
  var key: RequestKey { head.key }
  var vary: VarySelection { head.vary }
  var facts: FreshnessFacts { head.facts }
  var body: Data { head.isBodyInline ? head.layout { Data($0.inlineBody) } : bodyApart }

  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    head.isBodyInline ? head.layout { body($0.inlineBody) } : bodyApart.withUnsafeBytes(body)
  }

  /// The same response with its body in single pages.
  private init(inSinglePages other: StagedResponse) {
    head = other.head.inSinglePages
    bodyApart = other.bodyApart
    storedAt = other.storedAt
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
  var byteCount: Int { head.bytes.count + bodyApart.count }

  /// The bytes of the head without a body in it.
  var headByteCount: Int { head.layout { $0.head.count } }

  /// Whether both are, or are going to be, one record. Row ids are used again, but an update keeps time and body.
  func isSameRecord(as other: StagedResponse) -> Bool {
    row.isSame(as: other.row) && storedAt == other.storedAt && head.checksums.body == other.head.checksums.body
  }

  func isCovered(by scope: RemovalScope) -> Bool {
    scope.covers(key: key.bytes, storedAt: storedAt) { CacheGroups.groups(of: head.fields) }
  }
}
