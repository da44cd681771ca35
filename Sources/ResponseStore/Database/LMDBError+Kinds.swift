import LMDB

extension LMDBError {
  /// Whether the error shows that the data file is corrupt.
  ///
  /// `badValueSize` is included because this library's values are never too long, so the value is in LMDB's free list.
  /// `outOfMemory` in a deletion is caused by an invalid page number in the file. `badTransaction` means that liblmdb
  /// could not read the root of a table and did not report that.
  var isCorruption: Bool {
    switch code {
    case .corrupted, .pageNotFound, .invalid, .versionMismatch, .incompatible, .badTableHandle, .cursorFull,
      .problem, .undecodable, .badValueSize, .badTransaction:
      true
    case .outOfMemory: function == "mdb_del" || function == "mdb_cursor_del"
    default: false
    }
  }

  /// Whether a page's position was impossible: before the beginning of the file, or beyond the maximum file size.
  ///
  /// A process with a limit on file sizes (`RLIMIT_FSIZE`) gets the first error for a valid page.
  var isImpossibleWrite: Bool {
    code == .fileTooLarge && ProcessLimits.maximumFileByteCount == nil
      || code == .invalidArgument && function == "mdb_txn_commit"
  }

  /// Whether other commits replaced the snapshot while its pages were checked.
  var isOutdatedSnapshot: Bool { code == .temporarilyUnavailable && function == "mdb_get" }

  /// Whether the disk, the quota or the map is full. LMDB reports a disk that fills up during a write as `EIO`.
  var isOutOfSpace: Bool {
    switch code {
    case .noSpace, .inputOutput, .quotaExceeded, .fileTooLarge, .mapFull, .readOnlyFileSystem: true
    default: false
    }
  }
}
