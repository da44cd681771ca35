import CacheModel
import Glibc
import LMDB

/// The bodies without a record header that this process may delete: abandoned writes, and bodies too large to delete at
/// once.
///
/// The ID of a committed body is never used again, so any process can delete the chunks at any later time.
final class OrphanedBodies: Sendable {
  private let bodyIDs = Monitor<Set<UInt64>>([])

  var isEmpty: Bool { bodyIDs.withLock { $0.isEmpty } }

  /// One of the bodies; nil if there is none.
  var first: UInt64? { bodyIDs.withLock { $0.first } }

  func note(_ bodyID: UInt64) {
    bodyIDs.withLock { bodyIDs in _ = bodyIDs.insert(bodyID) }
  }

  func forget(_ bodyID: UInt64) {
    bodyIDs.withLock { bodyIDs in _ = bodyIDs.remove(bodyID) }
  }
}

/// A row of `meta` for a body that is written or deleted over several transactions.
struct UnfinishedBody: Sendable, Equatable {
  var bodyID: UInt64
  /// The process that writes the body; 0 for a body that is being deleted, which any process may continue.
  var processID: Int32

  static func encode(processID: Int32) -> [UInt8] {
    var writer = ByteWriter()
    writer.append(UInt64(processID))
    return writer.bytes
  }
}

extension RecordDatabase {
  /// Returns the bodies that are written or deleted over several transactions.
  func unfinishedBodies(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [UnfinishedBody] {
    var bodies: [UnfinishedBody] = []
    try meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.partialPrefix)
      while more {
        guard let bodyID = MetaKey.number(in: try cursor.checkedKey(), after: MetaKey.partialPrefix) else { return }
        let processID = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { bytes -> UInt64 in
            var reader = ByteReader(bytes)
            return reader.read(UInt64.self) ?? 0
          }
        }
        bodies.append(UnfinishedBody(bodyID: bodyID, processID: Int32(truncatingIfNeeded: processID)))
        more = try cursor.next()
      }
    }
    return bodies
  }

  /// Returns the size of the chunks of an unfinished body, of which all but the last one have the same size.
  func byteCount(
    ofUnfinishedBody bodyID: UInt64, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> Int {
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      // Deletion begins with the first chunks.
      guard try cursor.seek(atOrAfter: ChunkKey(bodyID: bodyID, index: 0)) else { return 0 }
      let first = try cursor.checkedKey()
      let firstByteCount = try cursor.withValue { $0.byteCount }
      let isAtEnd = try !cursor.seek(atOrAfter: BlockTable.key(bodyID: bodyID, row: 0))
      guard try isAtEnd ? cursor.last() : cursor.previous() else { return 0 }
      let last = try cursor.checkedKey()
      guard first.bodyID == bodyID, last.bodyID == bodyID else { return 0 }
      let lastByteCount = try cursor.withValue { $0.byteCount }
      return Int(last.index - min(first.index, last.index)) * firstByteCount + lastByteCount
    }
  }

  /// Records the unfinished bodies that no process writes as orphaned.
  ///
  /// - Parameter isAlone: Whether no other process has the directory open.
  func noteUnfinishedBodies(isAlone: Bool) throws(LMDBError) {
    let unfinished = try environment.read { (transaction) throws(LMDBError) in try unfinishedBodies(in: transaction) }
    for body in unfinished where isAlone || bodiesInProgress.isAbandoned(body.bodyID, begunBy: body.processID) {
      orphanedBodies.note(body.bodyID)
    }
  }
}
