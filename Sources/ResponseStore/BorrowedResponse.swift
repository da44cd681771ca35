import FoundationEssentials
import HTTPCaching
import LMDB

/// A stored response in place: its bytes lie in the map and are lent for the length of a call, not copied.
///
/// It exists only within ``ResponseStore/withResponse(_:where:_:)``.
public struct BorrowedResponse: ~Copyable {
  private let head: HeadLayout
  private let first: UnsafeRawBufferPointer
  private let rest: [UnsafeRawBufferPointer]

  init(_ head: HeadLayout, first: UnsafeRawBufferPointer, rest: [UnsafeRawBufferPointer] = []) {
    self.head = head
    self.first = first
    self.rest = rest
  }

  /// The HTTP status code; 0 for a response that is not HTTP.
  public var status: Int { head.status }
  /// Date, age and lifetime.
  public var facts: FreshnessFacts { head.facts }
  /// When the response was stored.
  public var storedAt: Date { head.storedAt }
  /// The header fields. Decoded at each call, into memory of their own.
  public var fields: HTTPFields { FieldCoding.decodeFields(head.fields) }
  /// The body's size in bytes.
  public var bodyByteCount: Int { head.bodyByteCount }

  /// Calls `body` with the pieces of the body in their order: usually one for a body of up to 16 or 64 KiB, depending on the
  /// store's capacity, and one for each page of a body that found no pages in a row; none for an empty one.
  public func forEachPiece(_ body: (RawSpan) -> Void) {
    if !first.isEmpty { body(first.bytes) }
    for piece in rest { body(piece.bytes) }
  }
}

extension ResponseStore {
  /// Calls `body` with the stored response for a key, without copying it; nil if there is none. Which one, and what counts
  /// as a miss, is as for ``lookup(_:where:)``.
  ///
  /// `body` must be short: while it runs, no page that the writer frees can be used anew, in any process, and the store runs
  /// out of room instead. A record's first read by this process copies it once to compare its checksum; with
  /// ``Options/verifiesEveryRead`` every read does. Safe from any thread.
  ///
  /// - Complexity: O(log entries) for each piece of the body.
  @inlinable
  public func withResponse<R>(
    _ key: RequestKey, where matches: (VarySelection) -> Bool = { _ in true }, _ body: (borrowing BorrowedResponse) -> R
  ) -> R? {
    // Only this is compiled anew for each `R`.
    var result: R?
    lend(key, where: matches) { result = body($0) }
    return result
  }

  @usableFromInline
  func lend(
    _ key: RequestKey, where matches: (VarySelection) -> Bool, _ body: (borrowing BorrowedResponse) -> Void
  ) {
    guard isUsable else { return }
    // What waits for the writer is in memory anyway.
    if staging.mayContain(key), staging.concerns(key) {
      guard let found = lookup(key, where: matches) else { return }
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
          try lend(key, in: transaction, isOutdated: &isOutdated, where: matches, body)
        }
      }
      counts.lookups.count(isHit: isFound)
    } catch {
      readFailed(error)
    }
  }

  /// False if there is nothing to lend.
  private func lend(
    _ key: RequestKey, in transaction: borrowing ReadTransaction, isOutdated: inout Bool,
    where matches: (VarySelection) -> Bool, _ body: (borrowing BorrowedResponse) -> Void
  ) throws(LMDBError) -> Bool {
    guard let chosen = try choose(key, above: nil, in: transaction, isOutdated: &isOutdated, where: matches) else {
      return false
    }
    let head = chosen.head
    if !isVerified(head, rowID: chosen.rowID), try copy(chosen, in: transaction) == nil {
      reportDamage(chosen.rowID)
      return false
    }
    noteUse(of: chosen)
    let chunks = file.chunks(of: head)
    guard chunks.count > 0 else {
      body(BorrowedResponse(head, first: head.isBodyInline ? head.inlineBody : .empty))
      return true
    }
    let bodyID = head.bodyID(ofRow: chosen.rowID)
    guard let first = try chunk(0, of: bodyID, chunks, in: transaction) else {
      reportDamage(chosen.rowID)
      return false
    }
    var rest: [UnsafeRawBufferPointer] = []
    rest.reserveCapacity(chunks.count - 1)
    for index in 1..<chunks.count {
      guard let piece = try chunk(index, of: bodyID, chunks, in: transaction) else {
        reportDamage(chosen.rowID)
        return false
      }
      rest.append(piece)
    }
    body(BorrowedResponse(head, first: first, rest: rest))
    return true
  }
}

extension UnsafeRawBufferPointer {
  fileprivate static var empty: UnsafeRawBufferPointer { UnsafeRawBufferPointer(start: nil, count: 0) }
}
