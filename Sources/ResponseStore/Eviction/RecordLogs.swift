import LMDB

/// The record headers in the database: a table for each band, which is only appended to.
///
/// A new record's row ID is higher than those of all others, so it goes behind the last row of its table, and leaves
/// are full. The tables of closed segments and of headers are changed in the same transaction as all others.
struct RecordLogs: Sendable {
  typealias Log = Table<BigEndianUInt64Codec, BytesCodec>

  private let logs: InlineArray<6, Log>
  /// First row ID → bytes and records, of each closed segment.
  private let closedSegments: Table<BigEndianUInt64Codec, BigEndianPairCodec>

  static let segmentsTable = "segments"
  static func table(of band: Band) -> String { "heads\(band.number)" }
  static let tableCount = Band.count + 1

  /// Opens the tables, each by a call of one of the closures.
  init?(
    log: (String) throws(LMDBError) -> Log?,
    segments: (String) throws(LMDBError) -> Table<BigEndianUInt64Codec, BigEndianPairCodec>?
  ) throws(LMDBError) {
    var opened: [Log] = []
    for band in Band.all {
      guard let table = try log(Self.table(of: band)) else { return nil }
      opened.append(table)
    }
    guard let closedSegments = try segments(Self.segmentsTable) else { return nil }
    logs = InlineArray { opened[$0] }
    self.closedSegments = closedSegments
  }

  /// The log of a band.
  subscript(band: Band) -> Log { logs[band.number] }

  // MARK: Records

  /// Calls `body` with a record's bytes; nil if there is no such row.
  @inline(__always)
  func withValue<R>(
    for rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (RawSpan) throws(LMDBError) -> R
  ) throws(LMDBError) -> R? {
    guard let band = Band(rowID: rowID) else { return nil }
    return try logs[band.number].withValue(for: rowID, in: transaction, body)
  }

  func contains(_ rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Bool {
    guard let band = Band(rowID: rowID) else { return false }
    return try logs[band.number].contains(rowID, in: transaction)
  }

  /// Writes a record to its band's log: behind all others, or over the one with this row ID.
  func put(_ record: [UInt8], for rowID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    guard let band = Band(rowID: rowID) else { throw LMDBError(code: .corrupted, function: "mdb_put") }
    try logs[band.number].put(record, for: rowID, in: transaction, mode: .append)
  }

  /// Appends a record to the open segment of its band, and notes the segment if it is full with it.
  ///
  /// - Parameter entry: The record as the index gets it, with a row ID higher than all others.
  /// - Returns: Whether a segment is full.
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

  /// Removes a record; false if it is not there.
  @discardableResult
  func removeChecked(_ rowID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard let band = Band(rowID: rowID) else { return false }
    return try logs[band.number].removeChecked(rowID, in: transaction)
  }

  /// The number of records.
  func rowCount(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
    var count = 0
    for band in Band.all { count += try self[band].statistics(in: transaction).entryCount }
    return count
  }

  /// The number of leaves of all logs.
  func leafPageCount(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
    var count = 0
    for band in Band.all { count += try self[band].statistics(in: transaction).leafPageCount }
    return count
  }

  /// Whether no segment is closed.
  func hasNoSegments(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Bool {
    try closedSegments.statistics(in: transaction).entryCount == 0
  }

  // MARK: Walks

  /// Calls `body` with those of some records that exist, in one walk over each log.
  ///
  /// - Parameter rowIDs: In ascending order.
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

  /// Calls `body` with the rows of one band, ascending, until it returns false.
  func forEachRow(
    of band: Band, from start: UInt64 = 0, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (UInt64, UnsafeRawBufferPointer) throws(LMDBError) -> Bool
  ) throws(LMDBError) {
    try logs[band.number].withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        guard let rowID = cursor.key else { throw LMDBError(code: .undecodable, function: "mdb_cursor_get") }
        more = try cursor.withValue { (record) throws(LMDBError) in
          try record.withUnsafeBytes { (record) throws(LMDBError) in try body(rowID, record) }
        }
        if more { more = try cursor.next() }
      }
    }
  }

  /// Calls `body` with the rows of one log after the other, until it returns false.
  ///
  /// - Parameter start: The first row; what is in front of it in its log is left out, and logs in front of that.
  func forEachRow(
    from start: UInt64, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (UInt64, UnsafeRawBufferPointer) throws(LMDBError) -> Bool
  ) throws(LMDBError) {
    let first = Band(rowID: start)?.number ?? 0
    var goesOn = true
    for band in Band.all.dropFirst(first) where goesOn {
      let start = band.number == first ? start : 0
      try forEachRow(of: band, from: start, in: transaction) { (rowID, record) throws(LMDBError) in
        goesOn = try body(rowID, record)
        return goesOn
      }
    }
  }

  /// The highest row ID below another one.
  func rowID(
    below limit: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    var highest: UInt64?
    for band in Band.all {
      let rowID = try logs[band.number].withCursor(in: transaction) { (cursor) throws(LMDBError) -> UInt64? in
        let isInside = try cursor.seek(atOrAfter: limit)
        return try (isInside ? cursor.previous() : cursor.last()) ? cursor.key : nil
      }
      if let rowID { highest = max(highest ?? 0, rowID) }
    }
    return highest
  }

  /// The first row ID of a log that is not below another one.
  func firstRowID(
    of band: Band, from start: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    try self[band].withCursor(in: transaction) { (cursor) throws(LMDBError) in
      try cursor.seek(atOrAfter: start) ? cursor.key : nil
    }
  }

  /// The lowest row ID.
  func firstRowID(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> UInt64? {
    var lowest: UInt64?
    for band in Band.all {
      if let rowID = try firstRowID(of: band, from: 0, in: transaction) { lowest = min(lowest ?? .max, rowID) }
    }
    return lowest
  }

  // MARK: Segments

  /// The closed segments, in the order of their first row IDs.
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

  /// All segments, in the order of their first row IDs.
  func segments(
    open: OpenSegments, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [Segment] {
    (try segments(in: transaction) + open.all).sorted { $0.firstRowID < $1.firstRowID }
  }

  /// Notes a closed segment.
  func put(_ segment: Segment, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try closedSegments.put(
      (UInt64(segment.byteCount), UInt64(segment.recordCount)), for: segment.firstRowID, in: transaction)
  }

  /// Forgets closed segments whose records were all removed or replaced. Looks at a few, so that each closing of a
  /// segment can pay for it.
  ///
  /// - Parameters:
  ///   - start: Where the last call ended; 0 at first.
  ///   - limit: How many segments are looked at.
  /// - Returns: Where the next call begins.
  func removeEmptySegments(
    from start: UInt64, limit: Int = 4, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64 {
    var looked: [UInt64] = []
    try closedSegments.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more, looked.count < limit, let firstRowID = cursor.key {
        looked.append(firstRowID)
        more = try cursor.next()
      }
    }
    for firstRowID in looked where try isEmpty(firstRowID, in: transaction) {
      try closedSegments.remove(firstRowID, in: transaction)
    }
    return looked.count < limit ? 0 : (looked.last ?? 0) + 1
  }

  private func isEmpty(
    _ firstRowID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    guard let band = Band(rowID: firstRowID) else { return true }
    guard let row = try self.firstRowID(of: band, from: firstRowID, in: transaction) else { return true }
    // The rows of the next segment of the band are not this one's.
    return try closedSegments.withCursor(in: transaction) { (cursor) throws(LMDBError) -> Bool in
      var more = try cursor.seek(atOrAfter: firstRowID + 1)
      while more, let next = cursor.key, next <= row {
        if Band(rowID: next) == band { return true }
        more = try cursor.next()
      }
      return false
    }
  }

  /// Forgets a closed segment, whose rows are gone.
  func remove(_ segment: Segment, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try closedSegments.remove(segment.firstRowID, in: transaction)
  }
}
