import LMDB

/// The logs of record headers: an append-only table for each band.
///
/// A new record has the highest row ID, so it becomes the last row of its table, and leaves are filled completely. Also
/// contains the table of closed segments.
struct RecordLogs: Sendable {
  typealias Log = Table<BigEndianUInt64Codec, BytesCodec>

  private let logs: InlineArray<6, Log>
  /// First row ID of a closed segment → its bytes and its number of records.
  private let closedSegments: Table<BigEndianUInt64Codec, BigEndianPairCodec>

  static let segmentsTable = "segments"
  static func table(of band: Band) -> String { "heads\(band.number)" }
  static let tableCount = Band.count + 1

  /// Opens the tables; nil if one does not exist.
  init?(_ tables: TableOpener) throws(LMDBError) {
    var opened: [Log] = []
    for band in Band.all {
      guard let table = try tables.open(Self.table(of: band), BigEndianUInt64Codec.self, BytesCodec.self) else {
        return nil
      }
      opened.append(table)
    }
    let segments = try tables.open(Self.segmentsTable, BigEndianUInt64Codec.self, BigEndianPairCodec.self)
    guard let closedSegments = segments else { return nil }
    logs = InlineArray { opened[$0] }
    self.closedSegments = closedSegments
  }

  subscript(band: Band) -> Log { logs[band.number] }

  // MARK: Records

  /// Calls `body` with a record's bytes; returns nil if the row does not exist.
  @inline(__always)
  func withValue<R>(
    for rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (RawSpan) throws(LMDBError) -> R
  ) throws(LMDBError) -> R? {
    guard let band = Band(rowID: rowID) else { return nil }
    return try logs[band.number].withValue(for: rowID, in: transaction, body)
  }

  /// Calls `body` with a record's header. Returns nil if the row does not exist, its header cannot be parsed, or `body`
  /// returns nil.
  func withHeader<R>(
    of rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable, _ body: (RecordHeaderView) -> R?
  ) throws(LMDBError) -> R? {
    try withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { RecordHeaderView($0).flatMap(body) }
    } ?? nil
  }

  func contains(_ rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Bool {
    guard let band = Band(rowID: rowID) else { return false }
    return try logs[band.number].contains(rowID, in: transaction)
  }

  /// Asks the operating system to read the leaves of rows that will be read soon.
  ///
  /// - Parameter rowIDs: In ascending order.
  func requestLeaves(
    of rowIDs: [UInt64], in environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) {
    for band in Band.all {
      let rows = rowIDs.filter { Band(rowID: $0) == band }
      if !rows.isEmpty {
        ReadAhead.request(leavesWith: rows, ofTable: Self.table(of: band), in: environment, transaction)
      }
    }
  }

  /// Writes a record to its band's log: after all others, or in place of the one with this row ID.
  func put(_ record: [UInt8], for rowID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    guard let band = Band(rowID: rowID) else { throw LMDBError(code: .corrupted, function: "mdb_put") }
    try logs[band.number].put(record, for: rowID, in: transaction, mode: .append)
  }

  /// Appends a record to the open segment of its band. Closes the segment if it is then full.
  ///
  /// - Parameter entry: The record's index entry, with a row ID higher than all others.
  /// - Returns: Whether the segment was closed.
  @discardableResult
  func append(
    _ record: [UInt8], entry: IndexEntry, closingByteCount: Int, open: inout OpenSegments,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    try put(record, for: entry.rowID, in: transaction)
    let full = open.append(
      rowID: entry.rowID, byteCount: Int(entry.byteCount), closingByteCount: closingByteCount)
    guard let full else { return false }
    try put(full, in: transaction)
    return true
  }

  /// Removes a record. Returns false if it does not exist.
  @discardableResult
  func remove(_ rowID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard let band = Band(rowID: rowID) else { return false }
    return try logs[band.number].remove(rowID, in: transaction)
  }

  func rowCount(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
    var count = 0
    for band in Band.all { count += try self[band].statistics(in: transaction).entryCount }
    return count
  }

  /// Returns the number of leaf pages of all logs.
  func leafPageCount(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
    var count = 0
    for band in Band.all { count += try self[band].statistics(in: transaction).leafPageCount }
    return count
  }

  func hasNoSegments(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Bool {
    try closedSegments.statistics(in: transaction).entryCount == 0
  }

  // MARK: Walks

  /// Calls `body` with the records of these rows, log by log. Rows that do not exist are skipped.
  ///
  /// - Parameter rowIDs: The rows in ascending order.
  func forEachRow(
    among rowIDs: [UInt64], in transaction: borrowing some Transaction & ~Copyable,
    _ body: (UInt64, UnsafeRawBufferPointer) throws(LMDBError) -> Void
  ) throws(LMDBError) {
    for band in Band.all {
      let rowIDs = rowIDs.filter { Band(rowID: $0) == band }
      if rowIDs.isEmpty { continue }
      try self[band].withCursor(in: transaction) { (cursor) throws(LMDBError) in
        for rowID in rowIDs {
          guard try cursor.seek(to: rowID) else { continue }
          try cursor.withValue { (record) throws(LMDBError) in
            try record.withUnsafeBytes { (record) throws(LMDBError) in try body(rowID, record) }
          }
        }
      }
    }
  }

  /// Calls `body` with the rows of one band in ascending order, until it returns false.
  func forEachRow(
    of band: Band, from start: UInt64 = 0, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (UInt64, UnsafeRawBufferPointer) throws(LMDBError) -> Bool
  ) throws(LMDBError) {
    try logs[band.number].withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let rowID = try cursor.checkedKey()
        more = try cursor.withValue { (record) throws(LMDBError) in
          try record.withUnsafeBytes { (record) throws(LMDBError) in try body(rowID, record) }
        }
        if more { more = try cursor.next() }
      }
    }
  }

  /// Calls `body` with the rows of all logs, log by log, until it returns false.
  ///
  /// - Parameter start: The first row. Earlier logs and lower rows of its log are skipped.
  func forEachRow(
    from start: UInt64, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (UInt64, UnsafeRawBufferPointer) throws(LMDBError) -> Bool
  ) throws(LMDBError) {
    let first = Band(rowID: start)?.number ?? 0
    var wantsMore = true
    for band in Band.all.dropFirst(first) where wantsMore {
      let start = band.number == first ? start : 0
      try forEachRow(of: band, from: start, in: transaction) { (rowID, record) throws(LMDBError) in
        wantsMore = try body(rowID, record)
        return wantsMore
      }
    }
  }

  /// Returns the highest row ID of all logs.
  func lastRowID(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> UInt64? {
    var highest: UInt64?
    for band in Band.all {
      let rowID = try self[band].withCursor(in: transaction) { (cursor) throws(LMDBError) -> UInt64? in
        try cursor.last() ? cursor.key : nil
      }
      if let rowID { highest = max(highest ?? 0, rowID) }
    }
    return highest
  }

  /// Returns the lowest row ID of a log from `start` on.
  func firstRowID(
    of band: Band, from start: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    try self[band].withCursor(in: transaction) { (cursor) throws(LMDBError) in
      try cursor.seek(atOrAfter: start) ? cursor.key : nil
    }
  }

  // MARK: Segments

  /// Returns the closed segments in the order of their first row IDs.
  func segments(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> [Segment] {
    var segments: [Segment] = []
    try closedSegments.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        guard let firstRowID = cursor.key, let value = cursor.value else {
          throw LMDBError(code: .undecodable, function: "mdb_cursor_get")
        }
        segments.append(
          Segment(firstRowID: firstRowID, byteCount: Int(clamping: value.0), recordCount: Int(clamping: value.1)))
      }
    }
    return segments
  }

  /// Returns all segments in the order of their first row IDs.
  func segments(
    open: OpenSegments, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [Segment] {
    (try segments(in: transaction) + open.all).sorted { $0.firstRowID < $1.firstRowID }
  }

  /// Adds a closed segment to the table.
  func put(_ segment: Segment, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try closedSegments.put(
      (UInt64(segment.byteCount), UInt64(segment.recordCount)), for: segment.firstRowID, in: transaction)
  }

  /// Deletes closed segments whose records were all removed or replaced. Examines a few of them per call.
  ///
  /// - Parameters:
  ///   - start: The result of the previous call; 0 at first.
  ///   - limit: The maximum number of segments to examine.
  /// - Returns: The position for the next call.
  func removeEmptySegments(
    from start: UInt64, limit: Int = 4, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64 {
    var examined: [UInt64] = []
    try closedSegments.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more, examined.count < limit, let firstRowID = cursor.key {
        examined.append(firstRowID)
        more = try cursor.next()
      }
    }
    for firstRowID in examined where try isEmpty(firstRowID, in: transaction) {
      try closedSegments.remove(firstRowID, in: transaction)
    }
    return examined.count < limit ? 0 : (examined.last ?? 0) + 1
  }

  private func isEmpty(
    _ firstRowID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    guard let band = Band(rowID: firstRowID) else { return true }
    guard let row = try self.firstRowID(of: band, from: firstRowID, in: transaction) else { return true }
    // Rows from the first row of the band's next segment on belong to other segments.
    return try closedSegments.withCursor(in: transaction) { (cursor) throws(LMDBError) -> Bool in
      var more = try cursor.seek(atOrAfter: firstRowID + 1)
      while more, let next = cursor.key, next <= row {
        if Band(rowID: next) == band { return true }
        more = try cursor.next()
      }
      return false
    }
  }

  /// Deletes a closed segment whose rows were deleted.
  func remove(_ segment: Segment, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try closedSegments.remove(segment.firstRowID, in: transaction)
  }
}
