import FoundationEssentials
import LMDB

/// Writes a body that is larger than a batch in several transactions, none of which changes more pages than a batch.
///
/// The last transaction writes the record header, which makes the response visible. After a failed attempt, a row in
/// `meta` identifies the chunks to delete.
extension Writer {
  func writeLarge(_ write: PendingWrite, byteLimit: Int) throws(LMDBError) -> WriteResult {
    var bodyID: UInt64 = 0
    do throws(LMDBError) {
      return try writeLarge(write, byteLimit: byteLimit, bodyID: &bodyID)
    } catch {
      if bodyID != 0 { database.orphanedBodies.note(bodyID) }
      // Delete the chunks now, because the next attempt needs these pages.
      do throws(LMDBError) {
        while try evictor.deleteOrphanedChunks() {}
      } catch {
        // The disk is full or failing; the eviction thread retries.
      }
      throw error
    }
  }

  private func writeLarge(
    _ write: PendingWrite, byteLimit: Int, bodyID: inout UInt64
  ) throws(LMDBError) -> WriteResult {
    let chunks = write.head.layout { database.chunks(of: $0) }
    let (chunkCount, chunkByteCount) = (chunks.count, chunks.range(0).count)
    let chunksPerTransaction = max(1, byteLimit / max(chunkByteCount, 1))
    var next = 0
    while next < chunkCount, context.removals.effect(on: write) != .removed {
      let range = next..<min(next + chunksPerTransaction, chunkCount)
      try evictor.ensureFreePages(range.count * database.pageCount(ofChunk: chunkByteCount) + 16, entryCount: 1)
      let known = bodyID
      bodyID = try space.commit { (transaction) throws(LMDBError) -> UInt64 in
        let bodyID =
          try known != 0
          ? known
          : database.change(in: transaction) { (changes) throws(LMDBError) in
            try database.beginBody(changes: &changes, in: transaction)
          }
        try database.putChunks(range, of: write.bodyApart, head: write.head, bodyID: bodyID, in: transaction)
        return bodyID
      }
      next = range.upperBound
    }
    let isComplete = next == chunkCount
    try evictor.ensureFreePages(database.pageCount(ofChunk: write.head.bytes.count) + 16)
    let reserved = bodyID
    return try space.commit { (transaction) throws(LMDBError) in
      var result = WriteResult()
      try database.change(in: transaction) { (changes) throws(LMDBError) in
        if isComplete, let remaining = afterRemovals(write) {
          changes.counters.knownRemoval = max(changes.counters.knownRemoval, context.removalLog.sequence)
          try put(remaining, bodyID: reserved, changes: &changes, result: &result, in: transaction)
        } else {
          database.orphanedBodies.note(reserved)
          result.dropped += 1
          try removeSupersededVariant(write, changes: &changes, result: &result, in: transaction)
        }
      }
      return result
    }
  }
}
