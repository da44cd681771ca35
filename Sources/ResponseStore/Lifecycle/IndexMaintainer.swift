import LMDB

/// Rebuilds an incomplete index, and replaces one that grows or is too large for the capacity.
///
/// It has no state: the index file contains the position of a rebuild. The eviction thread runs the steps; opening a
/// store runs the first one. Calls ``StructureChecker``.
struct IndexMaintainer: Sendable {
  /// The number of rows that one step adds. Writers wait a millisecond or two.
  static let rebuildStepCount = 4096
  /// The number of cells whose records one step copies to another index. Writers wait a few milliseconds.
  static let replacementStepCount = 65_536

  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let checker: StructureChecker

  /// Compares all cells with their sums, so that a corrupt index is rebuilt even if nothing is stored or removed.
  ///
  /// Takes 0.1 s for 10,000,000 records, and no lock unless a block does not match.
  func checkIndex() throws(LMDBError) {
    guard let index = database.index.current, index.isComplete else { return }
    let suspects = index.mismatchedBlocks()
    guard !suspects.isEmpty else { return }
    // Without the write lock, a change in progress looks the same.
    let isIntact = try database.write { (_) throws(LMDBError) in database.index.isIntact(index, blocks: suspects) }
    // Begin the next transaction now, with a new index.
    if !isIntact { try database.write { (_) throws(LMDBError) in } }
  }

  /// Adds some records to an incomplete index. Returns true if there is more to do.
  func rebuildIndex() throws(LMDBError) -> Bool {
    if database.index.takeCorruption() {
      context.log(.corruptIndex, "The index is corrupt and is being rebuilt")
    }
    guard !database.isIndexComplete else { return false }
    if !database.index.isReady {
      // There may be space for an index by now.
      try database.write { (_) throws(LMDBError) in }
      guard database.index.isReady else { return false }
    }
    if case .rows? = database.index.current?.rebuildPosition {
      guard !checker.isUnchecked.load(ordering: .relaxed) else { return false }
    } else if try !checker.checkDates() {
      return context.isUsable
    }
    return try database.write { (transaction) throws(LMDBError) in
      try database.rebuildIndex(limit: Self.rebuildStepCount, in: transaction)
    }
  }

  /// Copies some records to the index that replaces the present one. Returns true if there is more to do.
  ///
  /// New records copy others, too, so the index also grows if this thread has no time for it.
  func replaceIndex() throws(LMDBError) -> Bool {
    guard database.index.isBeingReplaced || database.index.isTooLarge else { return false }
    return try database.write { (_) throws(LMDBError) in
      database.index.advanceReplacement(homeCount: Self.replacementStepCount)
    }
  }
}
