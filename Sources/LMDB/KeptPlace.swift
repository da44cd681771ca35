internal import CLMDB

/// Where the last key was put into a table: an LMDB cursor that is kept for the next one, which often goes to the same page or
/// near it. LMDB then spares the search from the root, or at least its first steps.
///
/// It serves one way of putting only, and whatever else changes the table drops it first: not every version of LMDB lets a cursor
/// that stands at the end notice pages that another call adds behind it. What is still kept when the transaction ends, LMDB closes.
struct KeptPlace {
  private var cursor: OpaquePointer?
  private var mode = PutMode.upsert

  /// The cursor of a table, at its last place if the last change was of the same kind.
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
  /// For whatever changes a table otherwise.
  mutating func dropKeptPlace(of table: UInt32) {
    if Int(table) < keptPlaces.count { keptPlaces[Int(table)].drop() }
  }
}

/// `mdb_put` in the mode's way, from the last place where that is kept. Returns LMDB's code: `MDB_KEYEXIST` when the key is there
/// and not to be replaced.
func putFromKeptPlace(
  _ transaction: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>, _ table: UInt32, _ key: inout MDB_val,
  _ value: inout MDB_val, _ mode: PutMode, _ flags: UInt32 = 0
) throws(LMDBError) -> CInt {
  guard mode != .upsert, Int(table) < state.pointee.keptPlaces.count else {
    state.pointee.dropKeptPlace(of: table)
    let rc = mdb_put(transaction, table, &key, &value, mode.flags | flags)
    guard rc == MDB_KEYEXIST, mode == .append else { return rc }
    return mdb_put(transaction, table, &key, &value, flags)
  }
  let cursor = try state.pointee.keptPlaces[Int(table)].cursor(for: mode, transaction, table)
  let rc = mdb_cursor_put(cursor, &key, &value, mode.flags | flags)
  if rc == 0 || (rc == MDB_KEYEXIST && mode == .insert) { return rc }
  state.pointee.dropKeptPlace(of: table)
  // Not above all others, so it goes where it belongs.
  return rc == MDB_KEYEXIST ? mdb_put(transaction, table, &key, &value, flags) : rc
}
