import FoundationEssentials
import Glibc
import LMDB

/// Adding and changing records in all tables together, so that the tables stay consistent.
extension RecordDatabase {
  // MARK: Adding

  /// Adds a record, after ``replaceVariant(of:tag:changes:in:)``.
  ///
  /// - Parameters:
  ///   - entry: The record in the index; its row ID is set here.
  ///   - band: The band whose log receives the record.
  ///   - body: The body for `bodies`; empty if the record contains it.
  ///   - writtenBodyID: The ID of a body whose chunks were already written.
  ///   - replaced: The row of the record of the same variant, whose use count the new record inherits.
  /// - Returns: The row ID.
  func insert(
    _ head: RecordHeader, _ entry: IndexEntry, in band: Band, body: Data, writtenBodyID: UInt64? = nil,
    replacing replaced: UInt64?, changes: inout RecordChanges, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64 {
    let head = writtenBodyID.map { head.withBody($0) } ?? head
    var entry = entry
    entry.rowID = band.rowID(changes.counters.takeNumber())
    if let writtenBodyID {
      try meta.remove(MetaKey.partial(writtenBodyID), in: transaction)
    } else if !head.isBodyInline {
      try putChunks(of: body, head: head, bodyID: entry.rowID, in: transaction)
    }
    try append(head.bytes, entry, changes: &changes, in: transaction)
    let date = DateKey(time: SortableTimestamp.encode(head.updatedAt), rowID: entry.rowID)
    try dates.put(entry.tagWord, for: date, in: transaction, mode: .append)
    try noteInsertion(of: entry, replacing: replaced)
    let (byteCount, isKeySpace) = head.layout { ($0.storedByteCount, RequestKey.isKeySpace($0.key)) }
    changes.counters.add(byteCount: byteCount, isKeySpace: isKeySpace)
    return entry.rowID
  }

  /// Appends a record to its log. Whenever a segment becomes full, deletes entries of empty segments.
  private func append(
    _ record: [UInt8], _ entry: IndexEntry, changes: inout RecordChanges,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let isFull = try heads.append(
      record, entry: entry, closingByteCount: changes.counters.closingByteCount,
      open: &changes.counters.openSegments, in: transaction)
    guard isFull else { return }
    nextEmptySegment = try heads.removeEmptySegments(from: nextEmptySegment, in: transaction)
  }

  /// Appends a record that eviction keeps to its log again. The body stays in its rows.
  ///
  /// Marks a record that a soft tombstone covers, because the tombstone does not cover the new row.
  ///
  /// - Parameters:
  ///   - entry: The record in the index; its row is freed.
  ///   - band: The band whose log receives the record.
  /// - Returns: False if the record does not exist, is corrupt, or is covered by a hard tombstone.
  func move(
    _ entry: IndexEntry, to band: Band, unlessHiddenBy tombstones: [Tombstone], changes: inout RecordChanges,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    let oldRow = entry.rowID
    let copy = try heads.withHeader(of: oldRow, in: transaction) { head -> [UInt8]? in
      guard head.hasRightChecksum else { return nil }
      var bytes = [UInt8](head.raw)
      switch tombstones.effect(rowID: oldRow, head) {
      case .none: break
      case .stale(let date): RecordHeader.setFreshness(head.freshness.softPurged(at: date), of: &bytes)
      case .removed: return nil
      }
      return bytes
    }
    guard var record = copy else { return false }
    var entry = entry
    entry.rowID = band.rowID(changes.counters.takeNumber())
    let (time, bodyID) = record.withUnsafeBytes { record -> (UInt64, UInt64?) in
      let layout = RecordHeaderView(checked: record)
      return (
        SortableTimestamp.encode(layout.updatedAt), layout.isBodyInline ? nil : layout.bodyID(ofRow: oldRow)
      )
    }
    if let bodyID { RecordHeader.setBodyID(bodyID, of: &record) }
    try append(record, entry, changes: &changes, in: transaction)
    try heads.remove(oldRow, in: transaction)
    let tagWord = try dates.value(for: DateKey(time: time, rowID: oldRow), in: transaction) ?? entry.tagWord
    try dates.remove(DateKey(time: time, rowID: oldRow), in: transaction)
    try dates.put(tagWord, for: DateKey(time: time, rowID: entry.rowID), in: transaction)
    guard index.note(.move(entry, from: oldRow)) else { throw Self.journalFull }
    return true
  }

  /// Removes the record of the same variant, and the oldest record of a key that has too many variants.
  ///
  /// - Parameter tag: The tag of the record's key in the index.
  /// - Returns: The numbers of replaced records and of removed variants, and the row whose use count the new record
  ///   inherits.
  func replaceVariant(
    of head: RecordHeader, tag: UInt64, changes: inout RecordChanges,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (replaced: Int, pushedOut: Int, replacedRow: UInt64?) {
    let rows = candidateRows(ofTag: tag)
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
        try removeRecord(other, use: isFirst ? .passOn : .forget, changes: &changes, in: transaction)
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
      try removeRecord(others.removeFirst().rowID, changes: &changes, in: transaction)
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

  /// Replaces the record header; the body stays the same, but a small one may move into the record or out of it.
  ///
  /// Returns the record's row, because eviction may have moved it; nil if the record no longer exists.
  ///
  /// - Parameter body: The body; empty if it was in `bodies` when the record was looked up.
  func replaceHead(
    of rowID: UInt64, with head: RecordHeader, body: Data, changes: inout RecordChanges,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64? {
    guard let rowID = try row(of: head, lastKnownAs: rowID, in: transaction) else { return nil }
    struct Old {
      var byteCount: Int
      var updatedAt: Date
      var isBodyInline: Bool
      var isInSinglePages: Bool
      var bodyID: UInt64
      /// The body in the record, if the caller does not have it.
      var inlineBody: Data?
    }
    let old = try heads.withHeader(of: rowID, in: transaction) { layout -> Old? in
      guard layout.hasRightChecksum else { return nil }
      return Old(
        byteCount: layout.storedByteCount, updatedAt: layout.updatedAt, isBodyInline: layout.isBodyInline,
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
    // Another process may have updated the record with a later clock.
    if head.updatedAt < old.updatedAt { head = head.withUpdate(at: old.updatedAt) }
    try heads.put(head.bytes, for: rowID, in: transaction)
    try moveDate(of: rowID, from: old.updatedAt, to: head, in: transaction)
    changes.counters.replace(byteCount: old.byteCount, with: head.layout { $0.storedByteCount })
    return rowID
  }

  /// The date of the record that an update changes; nil if it no longer exists.
  func dateOfRecord(
    of head: RecordHeader, lastKnownAs rowID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Date? {
    guard let rowID = try row(of: head, lastKnownAs: rowID, in: transaction) else { return nil }
    return try heads.withHeader(of: rowID, in: transaction) { $0.updatedAt }
  }

  /// Moves the row of `dates` of an updated record.
  private func moveDate(
    of rowID: UInt64, from old: Date, to head: RecordHeader, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    guard head.updatedAt != old else { return }
    let former = DateKey(time: SortableTimestamp.encode(old), rowID: rowID)
    let tagWord =
      try dates.value(for: former, in: transaction) ?? head.layout { indexEntry(of: $0, rowID: rowID).tagWord }
    try dates.remove(former, in: transaction)
    let date = DateKey(time: SortableTimestamp.encode(head.updatedAt), rowID: rowID)
    try dates.put(tagWord, for: date, in: transaction, mode: .append)
  }

  /// Returns the row of the record that an update changes; nil if it no longer exists.
  ///
  /// - Parameter rowID: The row when the record was looked up or stored.
  func row(
    of head: RecordHeader, lastKnownAs rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    if try isRecord(of: head, rowID, in: transaction) { return rowID }
    for other in indexedRows(ofTag: head.layout({ tag(of: $0.key) })) where other != rowID {
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
