import LMDB

/// Deletes the chunks of orphaned bodies in bounded steps.
///
/// Owns nothing: the bodies are in ``RecordDatabase/orphanedBodies``. The eviction thread runs the steps; the writer
/// thread runs them, too, when it needs free pages. Calls ``DiskSpace``.
struct OrphanedChunkDeleter: Sendable {
  let database: RecordDatabase
  let space: DiskSpace

  /// Deletes some chunks of an orphaned body. Returns false if there is none.
  func deleteOrphanedChunks() throws(LMDBError) -> Bool {
    guard let bodyID = database.orphanedBodies.first else { return false }
    let isDone = try space.commit { (transaction) throws(LMDBError) -> Bool in
      // Without this row, the record header was committed after all.
      guard try database.meta.contains(MetaKey.partial(bodyID), in: transaction) else { return true }
      let pageCount = try database.counters(in: transaction).freeablePageCount
      guard try database.removeChunks(of: bodyID, pageCount: pageCount, in: transaction) else { return false }
      return try database.meta.remove(MetaKey.partial(bodyID), in: transaction)
    }
    if isDone { database.orphanedBodies.forget(bodyID) }
    return true
  }
}
