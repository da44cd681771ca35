/// The counters of a write transaction, and the pages that it may still free.
struct RecordChanges {
  var counters: PersistentCounters
  var freeing = FreeingBudget()
}

/// The pages that a write transaction may still free by deleting or changing records.
///
/// LMDB writes the numbers of the pages that a commit frees as one value. 509 numbers fit into one page. A larger value
/// needs contiguous pages, which may not exist even if many pages are free. Bodies beyond the limit are deleted later.
struct FreeingBudget {
  /// The limit of a transaction that must need no contiguous pages.
  static let defaultPageCount = 448
  /// A body with at most this many pages is always deleted with its record header.
  static let maximumPageCountRemovedAtOnce = 16
  /// The bytes that a record's rows take in leaves of `dates` and `bodies`.
  ///
  /// Includes rows of records that were stored at another time.
  private static let sharedByteCountOfRows = 400

  /// The number of pages that the transaction may still free.
  var pageCount = defaultPageCount
  /// The bytes freed in leaves that are not yet counted as pages.
  private var freedByteCount = 0
  /// The pages of bodies that later transactions delete.
  private(set) var deferredPageCount = 0

  init(pageCount: Int = defaultPageCount) {
    self.pageCount = pageCount
  }

  /// Whether the transaction has freed enough pages.
  var isExhausted: Bool { pageCount <= 0 || deferredPageCount > 0 }

  /// Counts the pages that the deletion of a record frees.
  ///
  /// - Parameter isInRun: Whether the same transaction deletes adjacent records, so that they share the changed leaves.
  /// - Returns: Whether the body is deleted at once. A body that is too large for the transaction is deleted later.
  @discardableResult
  mutating func countRemoval(of record: RemovableRecord, isInRun: Bool, pageByteCount: Int) -> Bool {
    let deletesBody = record.bodyPageCount <= max(pageCount, Self.maximumPageCountRemovedAtOnce)
    if deletesBody {
      pageCount -= record.bodyPageCount
    } else {
      deferredPageCount += record.bodyPageCount
    }
    if isInRun {
      countFreed(byteCount: record.recordByteCount + Self.sharedByteCountOfRows, pageByteCount: pageByteCount)
    } else {
      // A leaf of each table may be copied, which also frees the old page.
      pageCount -= 3 + (record.chunkCount == 0 ? 0 : 1)
    }
    return deletesBody
  }

  /// Counts the pages that are freed because a change of a record in place copies them.
  mutating func countChange(recordByteCount: Int, isInRun: Bool, pageByteCount: Int) {
    if isInRun {
      countFreed(byteCount: recordByteCount, pageByteCount: pageByteCount)
    } else {
      pageCount -= 1 + recordByteCount / pageByteCount
    }
  }

  /// Counts bytes freed in adjacent leaves.
  private mutating func countFreed(byteCount: Int, pageByteCount: Int) {
    freedByteCount += byteCount
    pageCount -= freedByteCount / pageByteCount
    freedByteCount %= pageByteCount
  }
}
