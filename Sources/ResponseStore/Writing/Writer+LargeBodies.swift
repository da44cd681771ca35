import FoundationEssentials
import LMDB

/// Writes a body in memory that is larger than a batch with a ``BodyWriter``.
///
/// The last transaction writes the record header, which makes the response visible.
extension Writer {
  func writeLarge(_ write: PendingWrite, byteLimit: Int) throws(LMDBError) -> WriteResult {
    do throws(LMDBError) {
      let body = try writeBody(of: write, byteLimit: byteLimit)
      try evictor.ensureFreePages(database.pageCount(ofChunk: write.head.bytes.count) + 16)
      return try space.commit { (transaction) throws(LMDBError) in
        var result = WriteResult()
        try database.change(in: transaction) { (changes) throws(LMDBError) in
          if let body, let remaining = try afterRemovals(write, in: transaction) {
            changes.counters.knownRemoval = max(changes.counters.knownRemoval, context.removalLog.sequence)
            try put(remaining.withBody(in: body), changes: &changes, result: &result, in: transaction)
          } else {
            result.dropped += 1
            try removeSupersededVariant(write, changes: &changes, result: &result, in: transaction)
          }
        }
        return result
      }
    } catch {
      // Delete the chunks now, because the next attempt needs these pages.
      do throws(LMDBError) {
        while try evictor.deleteOrphanedChunks() {}
      } catch {
        // The disk is full or failing; the eviction thread retries.
      }
      throw error
    }
  }

  /// Writes the rows of a body. Returns its place; nil if the response was removed meanwhile.
  private func writeBody(of write: PendingWrite, byteLimit: Int) throws(LMDBError) -> StoredBody.Location? {
    let body = BodyWriter(
      database, space: space, evictor: evictor, isInSinglePages: write.head.layout { $0.hasSinglePageChunks })
    var rest = write.bodyApart[...]
    while !rest.isEmpty {
      guard context.removals.effect(on: write) != .removed else { return nil }
      let part = rest.prefix(byteLimit)
      rest = rest.dropFirst(part.count)
      guard try body.append([part]) else { return nil }
    }
    return try body.finish()?.location
  }
}
