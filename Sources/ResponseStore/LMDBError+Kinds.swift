import LMDB

extension LMDBError {
  /// Whether the file is not what LMDB wrote (LMDB's own words for it). A bad size is one of LMDB's own values, from its
  /// list of free pages: ours are never too long. No memory for a deletion means a number of pages that was read from the file. A
  /// transaction that is bad from its first call on failed where liblmdb tells nobody: while it read where a table begins.
  var isDamage: Bool {
    switch code {
    case .corrupted, .pageNotFound, .panic, .invalid, .versionMismatch, .incompatible, .badTableHandle, .cursorFull,
      .problem, .undecodable, .badValueSize, .badTransaction:
      true
    case .outOfMemory: function == "mdb_del" || function == "mdb_cursor_del"
    default: false
    }
  }

  /// Whether a page was to be written where no file has one: behind the end of all files, unless the process is only allowed small
  /// ones, or before the beginning.
  var isImpossibleWrite: Bool {
    code == .fileTooLarge || code == .invalidArgument && function == "mdb_txn_commit"
  }

  /// Whether other commits have replaced the snapshot whose pages were to be checked.
  var isOutdatedSnapshot: Bool { code == .temporarilyUnavailable && function == "mdb_get" }

  /// Whether the disk, the quota or the map has no room. LMDB reports a disk that ran full in mid-write as `EIO`.
  var isLackOfRoom: Bool {
    switch code {
    case .noSpace, .inputOutput, .quotaExceeded, .fileTooLarge, .mapFull, .readOnlyFileSystem: true
    default: false
    }
  }
}
