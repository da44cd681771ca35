import LMDB

extension LMDBError {
  /// Whether the error shows that the data file is corrupt.
  ///
  /// `badValueSize` is included because this library's values are never too long, so the value is in LMDB's free list.
  /// `outOfMemory` in a deletion is caused by an invalid page number in the file. `badTransaction` means that liblmdb
  /// could not read the root of a table and did not report that. `invalidArgument` in a commit is caused by a page
  /// number that leads to a position before the beginning of the file.
  var isCorruption: Bool {
    switch code {
    case .corrupted, .pageNotFound, .invalid, .versionMismatch, .incompatible, .badTableHandle, .cursorFull,
      .problem, .undecodable, .badValueSize, .badTransaction:
      true
    case .outOfMemory: function == "mdb_del" || function == "mdb_cursor_del"
    case .invalidArgument: function == "mdb_txn_commit"
    default: false
    }
  }

  /// Whether the disk, the quota or the map is full. LMDB reports a disk that fills up during a write as `EIO`.
  var isOutOfSpace: Bool {
    switch code {
    case .noSpace, .inputOutput, .quotaExceeded, .fileTooLarge, .mapFull, .readOnlyFileSystem: true
    default: false
    }
  }
}
