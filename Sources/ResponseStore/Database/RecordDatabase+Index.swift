import CacheModel
import Glibc
import LMDB

/// Index updates: the index follows each commit.
extension RecordDatabase {
  // MARK: Transactions

  /// Runs a write transaction, and publishes its changes in the index.
  ///
  /// Every commit after opening goes through this method, because an index that missed a commit is discarded.
  ///
  /// - Parameter changesRecords: Whether `body` may add, change, move or delete records. If not, it also runs while the
  ///   index is absent.
  /// - Throws: ``LMDBError`` of the transaction, or the reason why there is no index.
  @discardableResult
  func write<R>(
    changesRecords: Bool = true, _ body: (borrowing WriteTransaction) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    var transactionID: UInt64 = 0
    return try environment.write { (transaction) throws(LMDBError) in
      transactionID = transaction.id
      if !addedRows.isEmpty { addedRows.removeAll(keepingCapacity: addedRows.count < 4096) }
      do throws(LMDBError) {
        try index.begin(transactionID: transactionID)
      } catch {
        guard !changesRecords, index.isAbsent else { throw error }
      }
      return try body(transaction)
    } committed: {
      index.publish(transactionID: transactionID)
    }
  }

  // MARK: Keys

  /// Returns the digest of a cache key under the store's secret, so that clients cannot choose keys that collide.
  func keyDigest(of key: [UInt8]) -> UInt64 { key.withUnsafeBytes { keyDigest(of: $0) } }

  func tag(of key: UnsafeRawBufferPointer) -> UInt64 { IndexEntry.tag(of: keyDigest(of: key)) }

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

  func indexEntry(of head: RecordHeaderView, rowID: UInt64) -> IndexEntry {
    IndexEntry(
      digest: keyDigest(of: head.key), hostDigest: hostDigest(of: head.key), rowID: rowID,
      byteCount: diskByteCount(of: head), isKeySpace: RequestKey.isKeySpace(head.key))
  }

  /// Returns the rows that the index contains for a tag. Any thread can call this.
  func indexedRows(ofTag tag: UInt64) -> [UInt64] {
    index.current?.rowIDs(ofTag: tag) ?? []
  }

  /// Returns the rows that may have a key, including those that this transaction added, oldest first.
  ///
  /// Needs the write lock.
  func candidateRows(ofTag tag: UInt64) -> [UInt64] {
    var rows = indexedRows(ofTag: tag)
    if let added = addedRows[tag] { rows += [added.first] + added.others }
    return rows.count < 2 ? rows : Array(Set(rows)).sorted()
  }

  /// Loads what the index has for the keys of records into the processor's cache; see ``RecordIndex/loadCells(of:)``.
  func loadIndex(for heads: some Sequence<RecordHeader>) {
    guard let current = index.current else { return }
    current.loadCells(of: heads.lazy.map { head in head.layout { self.tag(of: $0.key) } })
  }

  /// The rows of one tag that this transaction added; usually one, which needs no array.
  struct AddedRows {
    var first: UInt64
    var others: [UInt64] = []
  }

  // MARK: Changes

  /// Notes a new record in the journal, and the record of the same key and variant that it replaces, if any.
  func noteInsertion(of entry: IndexEntry, replacing replaced: UInt64?) throws(LMDBError) {
    // Eviction frees cells.
    guard index.hasSpace(for: 1) else { throw LMDBError(code: .mapFull, function: IndexFile.reservation) }
    guard index.note(.insert(entry, replacing: replaced)) else { throw Self.journalFull }
    if addedRows[entry.tag] == nil {
      addedRows[entry.tag] = AddedRows(first: entry.rowID)
    } else {
      addedRows[entry.tag]?.others.append(entry.rowID)
    }
  }

  func noteRemoval(tag: UInt64, rowID: UInt64, remembering: Bool) throws(LMDBError) {
    guard index.note(.remove(tag: tag, rowID: rowID, remembering: remembering)) else { throw Self.journalFull }
  }

  static var journalFull: LMDBError { LMDBError(code: .transactionFull, function: "IndexFile.note") }
}
