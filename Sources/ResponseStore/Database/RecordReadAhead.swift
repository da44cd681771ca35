import LMDB

/// Reads the leaves of the record logs ahead of a scan in the order of rows.
///
/// If the data file is larger than memory, records come from the disk, which delivers single pages much more slowly
/// than large pieces.
struct RecordReadAhead: Sendable {
  private var logs = Band.all.map { ReadAhead(table: RecordLogs.table(of: $0)) }
  private var lastRowIDs = [UInt64](repeating: 0, count: Band.count)

  /// Reports the position of the scan within a log. A scan may begin again at a lower row.
  mutating func advance(
    to rowID: UInt64, in environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard let band = Band(rowID: rowID) else { return }
    if rowID < lastRowIDs[band.number] {
      logs[band.number] = ReadAhead(table: RecordLogs.table(of: band))
    }
    lastRowIDs[band.number] = rowID
    logs[band.number].advance(to: try BigEndianUInt64Codec.bytes(of: rowID), in: environment, transaction)
  }
}
