import FoundationEssentials
import Glibc
import LMDB

/// Adding and changing records in all tables together, so that the tables stay consistent.
extension RecordDatabase {
  // MARK: Adding

  /// Adds a record, and replaces the record of the same variant if there is one.
  ///
  /// - Parameters:
  ///   - body: The body for `bodies`; empty if the record contains it.
  ///   - writtenBodyID: The ID of a body whose chunks were already written.
  /// - Returns: The row ID, the number of replaced records, and the number of removed variants.
  func insert(
    head: RecordHeader, body: Data, writtenBodyID: UInt64? = nil, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rowID: UInt64, replaced: Int, pushedOut: Int) {
    let digest = head.layout { keyDigest(of: $0.key) }
    let others = try replaceVariant(of: head, digest: digest, counters: &counters, in: transaction)
    let head = writtenBodyID.map { head.withBody($0) } ?? head
    var entry = head.layout { indexEntry(of: $0, rowID: 0, digest: digest) }
    entry.rowID = band(for: entry, replacing: others.replacedRow).rowID(counters.takeNumber())
    if writtenBodyID == nil, !head.isBodyInline {
      try putChunks(of: body, head: head, bodyID: entry.rowID, in: transaction)
    }
    try append(head.bytes, entry, counters: &counters, in: transaction)
    let date = DateKey(time: SortableTimestamp.encode(head.storedAt), rowID: entry.rowID)
    try dates.put(entry.tagWord, for: date, in: transaction, mode: .append)
    try noteInsertion(of: entry, digest: digest, replacing: others.replacedRow)
    counters.add(byteCount: head.layout { $0.storedByteCount })
    return (entry.rowID, others.replaced, others.pushedOut)
  }

  /// Returns the band of a new record. Predicts the use count that the index will have after the commit.
  private func band(for entry: IndexEntry, replacing replaced: UInt64?) -> Band {
    guard let index = index.current else { return entry.band(inflation: 0) }
    var entry = entry
    entry.inflation = index.inflation
    let cell = replaced.flatMap { index.cell(of: entry.tag, rowID: $0) }
    let useCount =
      cell.map { IndexEntry(tagWord: index.tagWord($0), rowWord: 0).useCount } ?? index.ghost(tag: entry.tag)
    entry.useCount = min(useCount + 1, IndexEntry.maximumUseCount)
    return entry.band(inflation: index.inflation)
  }

  /// Appends a record to its log. Whenever a segment becomes full, deletes entries of empty segments.
  private func append(
    _ record: [UInt8], _ entry: IndexEntry, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let isFull = try heads.append(
      record, entry: entry, closingByteCount: counters.closingByteCount, open: &counters.openSegments, in: transaction)
    guard isFull else { return }
    nextEmptySegment = try heads.removeEmptySegments(from: nextEmptySegment, in: transaction)
  }

  /// Appends a record that eviction keeps to its log again. The body stays in its rows.
  ///
  /// Marks a record that a soft tombstone covers, because the tombstone does not cover the new row.
  ///
  /// - Parameter entry: The record in the index; its row is freed.
  /// - Returns: False if the record does not exist, is corrupt, or is covered by a hard tombstone.
  func move(
    _ entry: IndexEntry, unlessHiddenBy tombstones: [Tombstone], counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    let oldRow = entry.rowID
    let copy = try heads.withHeader(of: oldRow, in: transaction) { head -> [UInt8]? in
      guard head.hasRightChecksum, !tombstones.hide(rowID: oldRow, head) else { return nil }
      var bytes = [UInt8](head.raw)
      if let date = tombstones.softTime(rowID: oldRow, head) {
        RecordHeader.setFreshness(head.freshness.softPurged(at: date), of: &bytes)
      }
      return bytes
    }
    guard var record = copy else { return false }
    var entry = entry
    let inflation = index.current?.inflation ?? 0
    entry.rowID = entry.band(inflation: inflation).rowID(counters.takeNumber())
    let (time, bodyID) = record.withUnsafeBytes { record -> (UInt64, UInt64?) in
      let layout = RecordHeaderView(checked: record)
      return (
        SortableTimestamp.encode(layout.storedAt), layout.isBodyInline ? nil : layout.bodyID(ofRow: oldRow)
      )
    }
    if let bodyID { RecordHeader.setBodyID(bodyID, of: &record) }
    try append(record, entry, counters: &counters, in: transaction)
    try heads.removeChecked(oldRow, in: transaction)
    let tagWord = try dates.value(for: DateKey(time: time, rowID: oldRow), in: transaction) ?? entry.tagWord
    try dates.remove(DateKey(time: time, rowID: oldRow), in: transaction)
    try dates.put(tagWord, for: DateKey(time: time, rowID: entry.rowID), in: transaction)
    guard index.note(.move(entry, from: oldRow)) else { throw Self.journalFull }
    return true
  }

  /// Removes the record of the same variant, and the oldest record of a key that has too many variants.
  ///
  /// The new record inherits the use count of `replacedRow`.
  private func replaceVariant(
    of head: RecordHeader, digest: UInt64, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (replaced: Int, pushedOut: Int, replacedRow: UInt64?) {
    let rows = candidateRows(of: digest)
    if rows.isEmpty { return (0, 0, nil) }
    let key = head.key.bytes
    let vary = head.varyBytes
    var others: [(storedAt: Date, rowID: UInt64)] = []
    var replaced = 0
    var replacedRow: UInt64?
    for other in rows {
      let match = try heads.withHeader(of: other, in: transaction) { head -> (sameVary: Bool, storedAt: Date)? in
        head.key.elementsEqual(key) ? (head.vary.elementsEqual(vary), head.storedAt) : nil
      }
      // The next lookup handles a record that cannot be read.
      guard let match else { continue }
      if match.sameVary {
        let isFirst = replacedRow == nil
        try removeRecord(other, use: isFirst ? .passOn : .forget, counters: &counters, in: transaction)
        if isFirst { replacedRow = other }
        replaced += 1
      } else {
        others.append((match.storedAt, other))
      }
    }
    var pushedOut = 0
    // Sort by time, because eviction may have moved rows.
    if others.count >= StorageFormat.maximumVariantCountPerKey { others.sort { $0.storedAt < $1.storedAt } }
    while others.count >= StorageFormat.maximumVariantCountPerKey {
      try removeRecord(others.removeFirst().rowID, counters: &counters, in: transaction)
      pushedOut += 1
    }
    return (replaced, pushedOut, replacedRow)
  }

  /// Returns the disk space of a record: its own bytes if it shares a page, otherwise whole pages.
  func diskByteCount(of head: RecordHeaderView) -> Int {
    var byteCount = head.raw.count
    if byteCount > inlineByteCount { byteCount = pageCount(ofChunk: byteCount) * pageByteCount }
    guard !head.isBodyInline else { return byteCount }
    let body = bodySpaceRequired(byteCount: head.bodyByteCount)
    return byteCount + body.pageCount * pageByteCount + body.sharedByteCount
  }

  /// Writes chunks of a body: those in `range`, or all.
  func putChunks(
    _ range: Range<Int>? = nil, of body: Data, head: RecordHeader, bodyID: UInt64,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let chunks = head.layout { self.chunks(of: $0) }
    for index in range ?? 0..<chunks.count {
      let part = chunks.range(index)
      try bodies.reserve(
        byteCount: part.count, for: ChunkKey(bodyID: bodyID, index: UInt32(index)), in: transaction, mode: .append
      ) { destination in
        body.withUnsafeBytes { source in
          destination.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[part]))
        }
      }
    }
  }

  /// Replaces the record header; the body stays the same, but a small one may move into the record or out of it.
  ///
  /// Returns the record's row, because eviction may have moved it; nil if the record no longer exists.
  ///
  /// - Parameter body: The body; empty if it was in `bodies` when the record was looked up.
  func replaceHead(
    of rowID: UInt64, with head: RecordHeader, body: Data, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64? {
    guard let rowID = try row(of: head, lastKnownAs: rowID, in: transaction) else { return nil }
    struct Old {
      var byteCount: Int
      var isBodyInline: Bool
      var isInSinglePages: Bool
      var bodyID: UInt64
      /// The body in the record, if the caller does not have it.
      var inlineBody: Data?
    }
    let old = try heads.withHeader(of: rowID, in: transaction) { layout -> Old? in
      guard layout.hasRightChecksum else { return nil }
      return Old(
        byteCount: layout.storedByteCount, isBodyInline: layout.isBodyInline,
        isInSinglePages: layout.hasSinglePageChunks, bodyID: layout.bodyID(ofRow: rowID),
        inlineBody: layout.isBodyInline && body.isEmpty ? Data(layout.inlineBody) : nil)
    }
    guard let old else { return nil }
    var head = old.isInSinglePages && !head.isBodyInline ? head.withSinglePageChunks : head
    if old.isBodyInline, !head.isBodyInline {
      // Another update may have moved the body into the record since the lookup.
      try putChunks(of: old.inlineBody ?? body, head: head, bodyID: rowID, in: transaction)
    } else if !old.isBodyInline, head.isBodyInline {
      try removeChunks(of: old.bodyID, in: transaction)
    } else if !old.isBodyInline, old.bodyID != rowID {
      head = head.withBody(old.bodyID)
    }
    try heads.put(head.bytes, for: rowID, in: transaction)
    counters.replace(byteCount: old.byteCount, with: head.layout { $0.storedByteCount })
    return rowID
  }

  /// Returns the row of the record that an update changes; nil if it no longer exists.
  ///
  /// - Parameter rowID: The row when the record was looked up or stored.
  func row(
    of head: RecordHeader, lastKnownAs rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    if try isRecord(of: head, rowID, in: transaction) { return rowID }
    for other in indexedRows(of: head.layout({ keyDigest(of: $0.key) })) where other != rowID {
      if try isRecord(of: head, other, in: transaction) { return other }
    }
    return nil
  }

  private func isRecord(
    of head: RecordHeader, _ rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Bool {
    try heads.withHeader(of: rowID, in: transaction) { $0.isSameRecord(as: head) } ?? false
  }
}
