import LMDB

extension Cursor {
  /// Returns the key at the cursor.
  ///
  /// This library writes only valid keys, so a key that cannot be decoded is corrupt.
  func checkedKey() throws(LMDBError) -> Key.Value {
    guard let key else { throw LMDBError(code: .corrupted, function: "mdb_cursor_get") }
    return key
  }
}
