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

  /// Calls `body` with the pieces of the body in their order: one for a body of up to 16 or 64 KiB, depending on the
  /// store's capacity, none for an empty one.
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
  public func withResponse<R>(
    _ key: RequestKey, where matches: (VarySelection) -> Bool = { _ in true }, _ body: (borrowing BorrowedResponse) -> R
  ) -> R? {
    guard isUsable else { return nil }
    // What waits for the writer is in memory anyway.
    if !staging.isEmpty, staging.concerns(key) {
      guard let found = lookup(key, where: matches) else { return nil }
      return found.body.withUnsafeBytes { bytes in found.head.layout { body(BorrowedResponse($0, first: bytes)) } }
    }
    do {
      let result = try file.environment.read { (transaction) throws(LMDBError) in
        try lend(key, in: transaction, where: matches, body)
      }
      if result == nil { counts.misses.add(1, ordering: .relaxed) } else { counts.hits.add(1, ordering: .relaxed) }
      return result
    } catch {
      readFailed(error)
      return nil
    }
  }

  private func lend<R>(
    _ key: RequestKey, in transaction: borrowing ReadTransaction, where matches: (VarySelection) -> Bool,
    _ body: (borrowing BorrowedResponse) -> R
  ) throws(LMDBError) -> R? {
    guard let chosen = try choose(key, above: nil, in: transaction, where: matches) else { return nil }
    let head = chosen.head
    if !isVerified(head, rowID: chosen.rowID), try copy(chosen.rowID, head, in: transaction) == nil {
      reportDamage(chosen.rowID)
      return nil
    }
    file.uses.noteUse(of: head.useDigest)
    let chunkCount = head.chunkCount(chunkByteCount: file.chunkByteCount)
    guard chunkCount > 0 else {
      return body(BorrowedResponse(head, first: head.isBodyInline ? head.inlineBody : .empty))
    }
    var pieces: [UnsafeRawBufferPointer] = []
    guard let first = try chunk(0, of: chosen.rowID, head, in: transaction) else {
      reportDamage(chosen.rowID)
      return nil
    }
    for index in 1..<chunkCount {
      guard let piece = try chunk(index, of: chosen.rowID, head, in: transaction) else {
        reportDamage(chosen.rowID)
        return nil
      }
      pieces.append(piece)
    }
    return body(BorrowedResponse(head, first: first, rest: pieces))
  }
}

extension UnsafeRawBufferPointer {
  fileprivate static var empty: UnsafeRawBufferPointer { UnsafeRawBufferPointer(start: nil, count: 0) }
}
