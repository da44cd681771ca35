import LMDB

/// Reads the leaves of the record logs ahead of a scan in the order of rows.
///
/// A deletion reads each record that it deletes. If the data file is larger than memory, these come from the disk, which
/// delivers single pages much more slowly than large pieces.
struct RecordReadAhead: Sendable {
  private let windowPageCount: Int
  private var logs: [ReadAhead]
  private var lastRowIDs = [UInt64](repeating: 0, count: Band.count)

  /// Creates a read-ahead.
  ///
  /// - Parameter windowPageCount: The number of pages per request. Choose at least the pages between two calls.
  init(windowPageCount: Int = 2048) {
    self.windowPageCount = windowPageCount
    logs = Band.all.map { ReadAhead(table: RecordLogs.table(of: $0), windowPageCount: windowPageCount) }
  }

  /// Reports the position of the scan within a log. A scan may begin again at a lower row.
  mutating func advance(
    to rowID: UInt64, in environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard let band = Band(rowID: rowID) else { return }
    if rowID < lastRowIDs[band.number] {
      logs[band.number] = ReadAhead(table: RecordLogs.table(of: band), windowPageCount: windowPageCount)
    }
    lastRowIDs[band.number] = rowID
    logs[band.number].advance(to: try BigEndianUInt64Codec.bytes(of: rowID), in: environment, transaction)
  }

  /// Reports the next rows of a scan of all logs, in ascending order.
  ///
  /// Does nothing if they are so far apart that most of the pages between them are not needed.
  mutating func advance(
    toFirstOf rowIDs: [UInt64], in environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard let first = rowIDs.first, let last = rowIDs.last else { return }
    guard (last - first) / Band.rowIDStep <= Self.maximumGap * UInt64(rowIDs.count) else { return }
    for band in Band.all {
      guard let first = rowIDs.first(where: { Band(rowID: $0) == band }) else { continue }
      try advance(to: first, in: environment, transaction)
    }
  }

  /// The maximum average distance between rows, in records.
  private static let maximumGap: UInt64 = 32
}
