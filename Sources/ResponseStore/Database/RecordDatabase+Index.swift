import CacheModel
import Glibc
import LMDB

/// Index updates: the tables are the truth, and the index follows each commit.
extension RecordDatabase {
  // MARK: Transactions

  /// Runs a write transaction, and publishes its changes in the index.
  ///
  /// Every commit after opening goes through this method, because an index that missed a commit is discarded. If `body`
  /// finds the index corrupt, it runs again with a new index.
  /// - Throws: ``LMDBError`` of the transaction. If publishing fails, the next write transaction publishes the changes.
  @discardableResult
  func write<R>(_ body: (borrowing WriteTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    do throws(LMDBError) {
      return try writeOnce(body)
    } catch {
      guard error == Self.corruptIndex else { throw error }
      return try writeOnce(body)
    }
  }

  private func writeOnce<R>(_ body: (borrowing WriteTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    let result = try environment.write { (transaction) throws(LMDBError) in
      try beginIndex(in: transaction)
      return try body(transaction)
    }
    if index.hasJournal { publish() }
    return result
  }

  /// Applies the journal of the last commit.
  ///
  /// LMDB releases its write lock with the commit, so this locks again. Another process that locked in between has
  /// published the changes already.
  private func publish() {
    do throws(LMDBError) {
      try environment.write { (transaction) throws(LMDBError) in index.publish(transactionID: transaction.id) }
    } catch {
      // The records are committed. Lookups find them after the next write transaction has published them.
    }
  }

  /// Prepares the index for a write transaction. If there is no space for an index, no record can be added.
  private func beginIndex(in transaction: borrowing WriteTransaction) throws(LMDBError) {
    if !addedRows.isEmpty { addedRows.removeAll(keepingCapacity: addedRows.count < 4096) }
    var counters = try counters(in: transaction)
    let isReady = index.begin(
      transactionID: transaction.id, recordCount: Int(clamping: counters.entryCount), nextRowID: counters.nextRowID)
    guard isReady, let current = index.current else { return }
    guard current.isComplete == (counters.firstUnindexedRowID != 0) else { return }
    if current.isComplete {
      // A process died after it had added the last record and before it could record that.
      guard UInt64(current.recordCount) == counters.entryCount else {
        // Corruption ended the rebuild.
        return current.setRebuildPosition(.rows(below: counters.nextRowID))
      }
      counters.firstUnindexedRowID = 0
    } else {
      // Each key and variant has only one row at this time, so the rows can be added in any order.
      current.setRebuildPosition(.newestDate)
      counters.firstUnindexedRowID = counters.nextRowID
    }
    try setCounters(counters, in: transaction)
  }

  /// Maps or creates the index while the store is being opened. An index with another number of records is discarded.
  func openIndex() throws(LMDBError) {
    try write { (transaction) throws(LMDBError) in
      guard let current = index.current, current.isComplete else { return }
      if try UInt64(current.recordCount) != counters(in: transaction).entryCount { index.discard() }
    }
    if !index.isReady { try write { (_) throws(LMDBError) in } }
  }

  /// Marks the index as clean while the store is closed, so that a reboot does not require a rebuild.
  func closeIndex() {
    // Sync most of the file before other processes have to wait.
    if let current = index.current { _ = current.synchronize(byteCount: current.byteCount) }
    do throws(LMDBError) {
      try write { (transaction) throws(LMDBError) in
        _ = index.markClean(transactionID: transaction.id)
      }
    } catch {
      // The index is rebuilt after the next boot.
    }
  }

  // MARK: Keys

  /// Returns the digest of a cache key under the store's secret, so that clients cannot choose keys that collide.
  func keyDigest(of key: [UInt8]) -> UInt64 { key.withUnsafeBytes { keyDigest(of: $0) } }

  @inline(__always)
  func keyDigest(of key: UnsafeRawBufferPointer) -> UInt64 { XXHash.digest64(key, secret: digestSecret) }

  /// Returns the digest of a key's host, the bytes before the first zero.
  func hostDigest(of key: UnsafeRawBufferPointer) -> UInt64 {
    let end = key.firstIndex(of: 0) ?? key.count
    return keyDigest(of: UnsafeRawBufferPointer(rebasing: key[..<end]))
  }

  /// Returns the host tag of the keys that begin with these bytes; nil if the keys may belong to several hosts.
  func hostTag(ofPrefix prefix: [UInt8]) -> UInt64? {
    guard prefix.contains(0) else { return nil }
    return prefix.withUnsafeBytes { IndexEntry.hostTag(of: hostDigest(of: $0)) }
  }

  func indexEntry(of head: RecordHeaderView, rowID: UInt64, digest: UInt64? = nil) -> IndexEntry {
    IndexEntry(
      digest: digest ?? keyDigest(of: head.key), hostDigest: hostDigest(of: head.key), rowID: rowID,
      byteCount: diskByteCount(of: head))
  }

  /// Returns the rows that the index contains for a digest. Any thread can call this.
  func indexedRows(of digest: UInt64) -> [UInt64] {
    index.current?.rowIDs(of: digest) ?? []
  }

  /// Returns the rows that may have a key, including those that this transaction added, oldest first.
  ///
  /// Needs the write lock.
  /// - Throws: ``corruptIndex`` if a row may be missing.
  func candidateRows(of digest: UInt64) throws(LMDBError) -> [UInt64] {
    guard index.isIntact(aroundHomeOf: IndexEntry.tag(of: digest)) else { throw Self.corruptIndex }
    var rows = indexedRows(of: digest)
    if let added = addedRows[digest] { rows += [added.first] + added.others }
    return rows.count < 2 ? rows : Array(Set(rows)).sorted()
  }

  /// Loads what the index has for the keys of records into the processor's cache; see ``RecordIndex/loadBlocks(of:)``.
  func loadIndex(for heads: some Sequence<RecordHeader>) {
    guard let current = index.current else { return }
    current.loadBlocks(of: heads.lazy.map { head in IndexEntry.tag(of: head.layout { self.keyDigest(of: $0.key) }) })
  }

  /// The rows of one key that this transaction added; usually one, which needs no array.
  struct AddedRows {
    var first: UInt64
    var others: [UInt64] = []
  }

  /// Returns the rows with a tag, by reading all dates.
  func rowIDs(withTag tag: UInt64, in transaction: borrowing ReadTransaction) throws(LMDBError) -> [UInt64] {
    var rows: [UInt64] = []
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        if let tagWord = cursor.value, IndexEntry.tag(inTagWord: tagWord) == tag {
          rows.append(try cursor.checkedKey().rowID)
        }
      }
    }
    return rows
  }

  /// Whether the index contains every record, so that the rows of a key can be deleted individually.
  var isIndexComplete: Bool { index.current?.isComplete ?? false }

  // MARK: Changes

  /// Notes a new record in the journal, and the record of the same key and variant that it replaces, if any.
  func noteInsertion(of entry: IndexEntry, digest: UInt64, replacing replaced: UInt64?) throws(LMDBError) {
    guard index.reserve(1) else {
      // If there is an index, report `mapFull`, because eviction frees cells.
      throw LMDBError(code: index.isReady ? .mapFull : .noSpace, function: IndexFile.reservation)
    }
    guard index.note(.insert(entry, replacing: replaced)) else { throw Self.journalFull }
    if addedRows[digest] == nil {
      addedRows[digest] = AddedRows(first: entry.rowID)
    } else {
      addedRows[digest]?.others.append(entry.rowID)
    }
  }

  func noteRemoval(tag: UInt64, rowID: UInt64, remembering: Bool) throws(LMDBError) {
    guard index.note(.remove(tag: tag, rowID: rowID, remembering: remembering)) || !index.isReady else {
      throw Self.journalFull
    }
  }

  /// The error that ends a transaction which found the index corrupt.
  static var corruptIndex: LMDBError { LMDBError(code: .temporarilyUnavailable, function: "IndexFile.isIntact") }

  static var journalFull: LMDBError { LMDBError(code: .transactionFull, function: "IndexFile.note") }
}
