import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// A zero-copy view of a stored response, valid during a call.
///
/// It exists only within ``ResponseStore/withResponse(_:where:_:)``.
public struct BorrowedResponse: ~Copyable {
  private let head: RecordHeaderView
  private let first: UnsafeRawBufferPointer
  private let rest: [UnsafeRawBufferPointer]

  init(_ head: RecordHeaderView, first: UnsafeRawBufferPointer, rest: [UnsafeRawBufferPointer] = []) {
    self.head = head
    self.first = first
    self.rest = rest
  }

  /// The HTTP status code; 0 for a response that is not HTTP.
  public var status: Int { head.status }
  /// Date, age and lifetime.
  public var freshness: FreshnessInfo { head.freshness }
  /// When the response was stored.
  public var storedAt: Date { head.storedAt }
  /// When a validation last updated the response, or else when it was stored.
  public var updatedAt: Date { head.updatedAt }
  /// The header fields, decoded at each call.
  public var fields: HeaderFields { FieldCoding.decodeFields(head.fields) }
  /// The body's size in bytes.
  public var bodyByteCount: Int { head.bodyByteCount }

  /// Calls `body` with the chunks of the body in their order.
  ///
  /// A body of up to 16 or 64 KiB, depending on the store's capacity, usually has one chunk. A body that was written
  /// while no contiguous pages were free has one chunk per page. An empty body has none.
  public func forEachPiece(_ body: (RawSpan) -> Void) {
    if !first.isEmpty { body(first.bytes) }
    for piece in rest { body(piece.bytes) }
  }
}

extension Reader {
  /// Calls `body` with the stored response for a key, without a copy.
  @inline(__always)
  func borrow(
    _ key: RequestKey, where matches: (VaryKey) -> Bool, _ body: (borrowing BorrowedResponse) -> Void
  ) {
    guard isUsable else { return }
    // The bytes of pending writes are in memory, so they need no transaction.
    if pendingWrites.mightContain(key), pendingWrites.contains(key) {
      guard let found = lookup(key, isCounted: true, where: matches) else { return }
      return found.withHead { head in found.withBody { body(BorrowedResponse(head, first: $0)) } }
    }
    do throws(LMDBError) {
      var isFound = false
      var isOutdated = true
      var tries = 0
      while !isFound, isOutdated, tries < 4 {
        isOutdated = false
        tries += 1
        isFound = try read { (transaction) throws(LMDBError) in
          try borrow(key, in: transaction, isOutdated: &isOutdated, where: matches, body)
        }
      }
      count(isHit: isFound)
    } catch {
      count(isHit: false)
      context.readFailed(error)
    }
  }

  /// Returns false if there is no response.
  private func borrow(
    _ key: RequestKey, in transaction: borrowing ReadTransaction, isOutdated: inout Bool,
    where matches: (VaryKey) -> Bool, _ body: (borrowing BorrowedResponse) -> Void
  ) throws(LMDBError) -> Bool {
    guard let selected = try selectRecord(key, above: nil, in: transaction, isOutdated: &isOutdated, where: matches)
    else {
      return false
    }
    let head = selected.head
    if !isVerified(head, rowID: selected.rowID), try copy(selected, in: transaction) == nil {
      reportCorruptRecord(selected.rowID)
      return false
    }
    recordUse(of: selected)
    if selected.isSoftPurged { return try lendCopy(of: selected, in: transaction, body) }
    let chunks = database.chunks(of: head)
    guard chunks.count > 0 else {
      // The body is in the record, or empty.
      body(BorrowedResponse(head, first: head.inlineBody))
      return true
    }
    let bodyID = head.bodyID(ofRow: selected.rowID)
    guard let first = try database.chunk(0, of: bodyID, chunks, in: transaction) else {
      reportCorruptRecord(selected.rowID)
      return false
    }
    var rest: [UnsafeRawBufferPointer] = []
    rest.reserveCapacity(chunks.count - 1)
    for index in 1..<chunks.count {
      guard let piece = try database.chunk(index, of: bodyID, chunks, in: transaction) else {
        reportCorruptRecord(selected.rowID)
        return false
      }
      rest.append(piece)
    }
    body(BorrowedResponse(head, first: first, rest: rest))
    return true
  }

  /// Calls `body` with a copy of a record that a soft removal covers, as its header in the map does not show that yet.
  @inline(never)
  private func lendCopy(
    of selected: SelectedRecord, in transaction: borrowing ReadTransaction, _ body: (borrowing BorrowedResponse) -> Void
  ) throws(LMDBError) -> Bool {
    guard let record = try copy(selected, in: transaction) else {
      reportCorruptRecord(selected.rowID)
      return false
    }
    record.withHead { head in record.withBody { body(BorrowedResponse(head, first: $0)) } }
    return true
  }
}
