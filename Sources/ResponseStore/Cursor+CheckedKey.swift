import LMDB

extension Cursor {
  /// The key that the cursor stands on. In our tables every key decodes; one that does not is damage.
  func checkedKey() throws(LMDBError) -> Key.Value {
    guard let key else { throw LMDBError(code: .corrupted, function: "mdb_cursor_get") }
    return key
  }
}
