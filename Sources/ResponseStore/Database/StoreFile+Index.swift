import Glibc
import LMDB

/// Records and the index: the tables hold the truth, and the index follows each commit.
extension StoreFile {
  // MARK: Transactions

  /// Runs a write transaction, and publishes in the index what it changed.
  ///
  /// Every commit to the file goes through here: an index that has missed one is not used again.
  /// - Throws: ``LMDBError``, of the transaction. What fails behind the commit is done by the next one that writes.
  @discardableResult
  func write<R>(_ body: (borrowing WriteTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    let result = try environment.write { (transaction) throws(LMDBError) in
      try beginIndex(in: transaction)
      return try body(transaction)
    }
    if index.hasJournal { publish() }
    return result
  }

  /// Carries out what the last commit noted. LMDB gives its write lock up with the commit, so it is taken once more; another
  /// process that got it in between has published already.
  private func publish() {
    do throws(LMDBError) {
      try environment.write { (transaction) throws(LMDBError) in index.publish(transactionID: transaction.id) }
    } catch {
      // The records are committed. They are found when the next one that writes has published them.
    }
  }

  /// Makes the index ready for a write transaction. Without space for one there is none, and no record can be added.
  private func beginIndex(in transaction: borrowing WriteTransaction) throws(LMDBError) {
    if !addedRows.isEmpty { addedRows.removeAll(keepingCapacity: addedRows.count < 4096) }
    var counters = try counters(in: transaction)
    let isReady = index.begin(
      transactionID: transaction.id, recordCount: Int(clamping: counters.entryCount), nextRowID: counters.nextRowID)
    guard isReady, let current = index.current else { return }
    guard current.isComplete == (counters.firstUnindexedRowID != 0) else { return }
    if current.isComplete {
      // A process has died when it had added the last record.
      counters.firstUnindexedRowID = 0
    } else {
      // Each key and variant has one row now: they may be added in any order.
      current.setRebuildPosition(.newestDate)
      counters.firstUnindexedRowID = counters.nextRowID
    }
    try setCounters(counters, in: transaction)
  }

  /// Maps or makes the index, while the store is being opened. One that does not have as many records as the data is made
  /// again.
  func openIndex() throws(LMDBError) {
    try write { (transaction) throws(LMDBError) in
      let counters = try counters(in: transaction)
      guard let current = index.current, current.isComplete, UInt64(current.recordCount) != counters.entryCount else {
        return
      }
      index.discard()
    }
    if !index.isReady { try write { (_) throws(LMDBError) in } }
  }

  /// Marks the index as clean, so that it need not be rebuilt after a reboot. For a store that is being closed.
  func closeIndex() {
    // What is written now need not be written while other processes wait.
    if let current = index.current { _ = current.synchronize(byteCount: current.byteCount) }
    do throws(LMDBError) {
      try write { (transaction) throws(LMDBError) in
        _ = index.markClean(transactionID: transaction.id)
      }
    } catch {
      // Then it is rebuilt.
    }
  }

  // MARK: Keys

  /// The digest of a request key under the store's secret: nobody can choose keys that share a place in the index.
  func keyDigest(of key: [UInt8]) -> UInt64 { key.withUnsafeBytes { keyDigest(of: $0) } }

  @inline(__always)
  func keyDigest(of key: UnsafeRawBufferPointer) -> UInt64 { XXHash.digest64(key, secret: digestSecret) }

  /// What stands for the host of a key in the index: of the bytes in front of the first zero.
  func hostDigest(of key: UnsafeRawBufferPointer) -> UInt64 {
    let end = key.firstIndex(of: 0) ?? key.count
    return keyDigest(of: UnsafeRawBufferPointer(rebasing: key[..<end]))
  }

  /// The host tag of the keys that begin with these bytes; nil if they may be of several hosts.
  func hostTag(ofPrefix prefix: [UInt8]) -> UInt64? {
    guard prefix.contains(0) else { return nil }
    return prefix.withUnsafeBytes { IndexEntry.hostTag(of: hostDigest(of: $0)) }
  }

  func indexEntry(of head: HeadLayout, rowID: UInt64, digest: UInt64? = nil) -> IndexEntry {
    IndexEntry(
      digest: digest ?? keyDigest(of: head.key), hostDigest: hostDigest(of: head.key), rowID: rowID,
      byteCount: diskByteCount(of: head))
  }

  /// The rows that the index names for a digest. From any thread.
  func indexedRows(of digest: UInt64) -> [UInt64] {
    var rows: [UInt64] = []
    if var matches = index.current?.matches(of: digest) {
      while let match = matches.next() { rows.append(match.rowID) }
    }
    return rows
  }

  /// The rows that may be of a key, oldest first, with those that the transaction under way has added. With the write lock.
  func candidateRows(of digest: UInt64) -> [UInt64] {
    var rows = indexedRows(of: digest)
    if let added = addedRows[digest] { rows += [added.first] + added.others }
    return rows.count < 2 ? rows : Array(Set(rows)).sorted()
  }

  /// Rows of one key that the transaction under way has added: mostly one, for which no list is needed.
  struct AddedRows {
    var first: UInt64
    var others: [UInt64] = []
  }

  /// The rows with a tag, by a walk over all dates.
  func rowIDs(withTag tag: UInt64, in transaction: borrowing ReadTransaction) throws(LMDBError) -> [UInt64] {
    var rows: [UInt64] = []
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        if let facts = cursor.value, IndexEntry.tag(inFacts: facts) == tag {
          rows.append(try cursor.checkedKey().rowID)
        }
      }
    }
    return rows
  }

  /// Whether the index has every record, so that a key's rows can be deleted one by one.
  var isIndexComplete: Bool { index.current?.isComplete ?? false }

  // MARK: Changes

  /// Notes a new record, in place of another of the same key and variant if there is one.
  func noteInsertion(of entry: IndexEntry, digest: UInt64, replacing replaced: UInt64?) throws(LMDBError) {
    guard index.reserve(1) else {
      // To evict helps where there is an index: it frees places in it.
      throw LMDBError(code: index.isReady ? .mapFull : .noSpace, function: IndexFile.reservation)
    }
    guard index.note(.insert(entry, replacing: replaced)) else { throw Self.fullJournal }
    if addedRows[digest] == nil {
      addedRows[digest] = AddedRows(first: entry.rowID)
    } else {
      addedRows[digest]?.others.append(entry.rowID)
    }
  }

  func noteRemoval(tag: UInt64, rowID: UInt64, remembering: Bool) throws(LMDBError) {
    guard index.note(.remove(tag: tag, rowID: rowID, remembering: remembering)) || !index.isReady else {
      throw Self.fullJournal
    }
  }

  static var fullJournal: LMDBError { LMDBError(code: .transactionFull, function: "IndexFile.note") }
}
