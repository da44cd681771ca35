internal import CLMDB

/// The cursor of the last write to a table, kept for the next write.
///
/// The next key often goes to the same page or near it. LMDB then saves the search from the root, or its first steps.
///
/// A cursor is used for one put mode. Any other change of the table drops the cursor: in some versions of LMDB, a
/// cursor at the end does not notice pages that another call adds after it. LMDB closes remaining cursors when the
/// transaction ends.
struct CachedWriteCursor {
  private var cursor: OpaquePointer?
  private var mode = PutMode.upsert

  /// Returns a table's cursor, at its last position if the last change had the same mode.
  mutating func cursor(
    for mode: PutMode, _ transaction: OpaquePointer, _ table: UInt32
  ) throws(LMDBError) -> OpaquePointer {
    if self.mode != mode { drop() }
    if let cursor { return cursor }
    let opened = try openCursor(transaction, table)
    (cursor, self.mode) = (opened, mode)
    return opened
  }

  mutating func drop() {
    if let cursor { closeCursor(cursor) }
    cursor = nil
  }
}

extension WriteState {
  /// Drops a table's cursor. Call this before other changes of the table.
  mutating func dropCachedWriteCursor(of table: UInt32) {
    if Int(table) < cachedWriteCursors.count { cachedWriteCursors[Int(table)].drop() }
  }
}

/// Calls `mdb_put` in the given mode, with the cached cursor if there is one. Returns LMDB's code.
///
/// The code is `MDB_KEYEXIST` if the key exists and must not be replaced.
func putUsingCachedCursor(
  _ transaction: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>, _ table: UInt32, _ key: inout MDB_val,
  _ value: inout MDB_val, _ mode: PutMode, _ flags: UInt32 = 0
) throws(LMDBError) -> CInt {
  guard mode != .upsert, Int(table) < state.pointee.cachedWriteCursors.count else {
    state.pointee.dropCachedWriteCursor(of: table)
    let rc = mdb_put(transaction, table, &key, &value, mode.flags | flags)
    guard rc == MDB_KEYEXIST, mode == .append else { return rc }
    return mdb_put(transaction, table, &key, &value, flags)
  }
  let cursor = try state.pointee.cachedWriteCursors[Int(table)].cursor(for: mode, transaction, table)
  let rc = mdb_cursor_put(cursor, &key, &value, mode.flags | flags)
  if rc == 0 || (rc == MDB_KEYEXIST && mode == .insert) { return rc }
  state.pointee.dropCachedWriteCursor(of: table)
  // The key is not above all others, so it cannot be appended.
  return rc == MDB_KEYEXIST ? mdb_put(transaction, table, &key, &value, flags) : rc
}
