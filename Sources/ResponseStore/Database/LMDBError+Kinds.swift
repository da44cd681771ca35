import LMDB

extension LMDBError {
  /// Whether the file is corrupt, although LMDB wrote it.
  ///
  /// A bad value size comes from a value in LMDB's free list, because this library's values are never too long. Missing
  /// memory in a deletion comes from a page number in the file. A transaction that is bad from its first call on is
  /// corrupt, too: liblmdb failed to read the root of a table, and did not report it.
  var isDamage: Bool {
    switch code {
    case .corrupted, .pageNotFound, .panic, .invalid, .versionMismatch, .incompatible, .badTableHandle, .cursorFull,
      .problem, .undecodable, .badValueSize, .badTransaction:
      true
    case .outOfMemory: function == "mdb_del" || function == "mdb_cursor_del"
    default: false
    }
  }

  /// Whether a page's position was impossible: before the beginning of the file, or beyond the maximum file size.
  ///
  /// A process with a low file size limit (`RLIMIT_FSIZE`) gets the same error for a valid page.
  var isImpossibleWrite: Bool {
    code == .fileTooLarge || code == .invalidArgument && function == "mdb_txn_commit"
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
