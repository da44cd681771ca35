/// The properties of a record, from its header, that its deletion needs.
struct RemovableRecord {
  var rowID: UInt64
  /// The checksum of the record header. Another checksum means that the header was updated in place.
  var checksum: UInt64
  /// The record's tag in the index.
  var tag: UInt64
  /// The fate of the use count.
  var use: UseCountFate
  /// The keys of its rows in `dates` and `expiries`.
  var date: DateKey
  var expiry: DateKey?
  /// The ID of a body outside the record; without such a body there are no chunks.
  var bodyID: UInt64
  var chunkCount: Int
  var bodyPageCount: Int
  var recordByteCount: Int
  /// The bytes of record header and body.
  var byteCount: Int
}

/// The fate of a record's use count when the record is deleted.
enum UseCountFate {
  /// It is dropped.
  case forget
  /// It is kept as a ghost entry, because the record was evicted.
  case remember
  /// The record that replaces this one inherits it.
  case passOn
}

extension PersistentCounters {
  /// A body with at most this many pages is always deleted with its record header.
  static let maximumPageCountRemovedAtOnce = 16
  /// The bytes that a record's rows take in leaves of `dates`, `expiries` and `bodies`.
  ///
  /// Includes rows of records that were stored at another time.
  private static let sharedByteCountOfRows = 400

  /// Counts the deletion of a record, and the pages that it frees.
  ///
  /// - Parameter isInRun: Whether the same transaction deletes adjacent records, so that they share the changed leaves.
  /// - Returns: Whether the body is deleted at once. A body that is too large for the transaction is deleted later.
  @discardableResult
  mutating func countRemoval(of record: RemovableRecord, isInRun: Bool, pageByteCount: Int) -> Bool {
    let deletesBody = record.bodyPageCount <= max(freeablePageCount, Self.maximumPageCountRemovedAtOnce)
    if deletesBody {
      freeablePageCount -= record.bodyPageCount
    } else {
      deferredPageCount += record.bodyPageCount
    }
    if isInRun {
      countFreed(byteCount: record.recordByteCount + Self.sharedByteCountOfRows, pageByteCount: pageByteCount)
    } else {
      // A leaf of each table may be copied, which also frees the old page.
      freeablePageCount -= 3 + (record.expiry == nil ? 0 : 1) + (record.chunkCount == 0 ? 0 : 1)
    }
    remove(byteCount: record.byteCount)
    return deletesBody
  }
}
