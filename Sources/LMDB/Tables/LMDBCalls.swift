internal import CLMDB

// The calls into liblmdb from generic code. Other modules compile that code without importing C.

/// Calls `mdb_get`. The bytes are valid in the map until the transaction ends or writes.
@usableFromInline
func findValue(
  _ transaction: OpaquePointer, _ table: UInt32, _ key: UnsafeRawBufferPointer
) throws(LMDBError) -> UnsafeRawBufferPointer? {
  var keyValue = MDB_val(key)
  var value = MDB_val()
  let rc = mdb_get(transaction, table, &keyValue, &value)
  if rc == 0 { return UnsafeRawBufferPointer(value) }
  if rc == MDB_NOTFOUND { return nil }
  throw LMDBError(rc, "mdb_get")
}

/// Calls `mdb_put`. Returns false if the key exists and must not be replaced.
@usableFromInline
func putValue(
  _ transaction: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>, _ table: UInt32,
  _ key: UnsafeRawBufferPointer, _ value: UnsafeRawBufferPointer, _ mode: PutMode
) throws(LMDBError) -> Bool {
  var keyValue = MDB_val(key)
  var valueValue = MDB_val(value)
  let rc = try putUsingCachedCursor(transaction, state, table, &keyValue, &valueValue, mode)
  if rc == MDB_KEYEXIST { return false }
  guard rc == 0 else { throw LMDBError(rc, "mdb_put") }
  return true
}

/// Calls `mdb_put` with `MDB_RESERVE`. Returns nil if the key exists and must not be replaced.
@usableFromInline
func reserveValue(
  _ transaction: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>, _ table: UInt32,
  _ key: UnsafeRawBufferPointer, _ byteCount: Int, _ mode: PutMode
) throws(LMDBError) -> UnsafeMutableRawBufferPointer? {
  var keyValue = MDB_val(key)
  var value = MDB_val(mv_size: byteCount, mv_data: nil)
  let rc = try putUsingCachedCursor(transaction, state, table, &keyValue, &value, mode, UInt32(MDB_RESERVE))
  if rc == MDB_KEYEXIST { return nil }
  guard rc == 0 else { throw LMDBError(rc, "mdb_put") }
  return UnsafeMutableRawBufferPointer(start: value.mv_data, count: byteCount)
}

/// Calls `mdb_del`. Returns false if the key does not exist.
@usableFromInline
func removeValue(
  _ transaction: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>, _ table: UInt32,
  _ key: UnsafeRawBufferPointer
) throws(LMDBError) -> Bool {
  state.pointee.dropCachedWriteCursor(of: table)
  var keyValue = MDB_val(key)
  let rc = mdb_del(transaction, table, &keyValue, nil)
  if rc == MDB_NOTFOUND { return false }
  guard rc == 0 else { throw LMDBError(rc, "mdb_del") }
  return true
}

/// Calls `mdb_drop`, which empties a table.
@usableFromInline
func removeAllValues(
  _ transaction: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>, _ table: UInt32
) throws(LMDBError) {
  state.pointee.dropCachedWriteCursor(of: table)
  let rc = mdb_drop(transaction, table, 0)
  guard rc == 0 else { throw LMDBError(rc, "mdb_drop") }
}

/// Calls `mdb_cursor_open`.
@usableFromInline
func openCursor(_ transaction: OpaquePointer, _ table: UInt32) throws(LMDBError) -> OpaquePointer {
  var cursor: OpaquePointer?
  let rc = mdb_cursor_open(transaction, table, &cursor)
  guard rc == 0, let cursor else { throw LMDBError(rc, "mdb_cursor_open") }
  return cursor
}

/// Calls `mdb_cursor_close`.
@usableFromInline
func closeCursor(_ cursor: OpaquePointer) {
  mdb_cursor_close(cursor)
}

/// A move of a cursor.
@usableFromInline
enum CursorMove {
  case first, last, next, previous, current
  /// To the key.
  case exact
  /// To the key, or to the next higher one.
  case atOrAfter

  var operation: MDB_cursor_op {
    switch self {
    case .first: MDB_FIRST
    case .last: MDB_LAST
    case .next: MDB_NEXT
    case .previous: MDB_PREV
    case .current: MDB_GET_CURRENT
    case .exact: MDB_SET_KEY
    case .atOrAfter: MDB_SET_RANGE
    }
  }
}

/// The key and the value at a cursor: bytes in the map, until the transaction ends or writes.
@usableFromInline
struct CursorEntry {
  @usableFromInline let key: UnsafeRawBufferPointer
  @usableFromInline let value: UnsafeRawBufferPointer
}

/// Calls `mdb_cursor_get`. Returns nil if there is no such entry. Only `exact` and `atOrAfter` read `key`.
@usableFromInline
func moveCursor(
  _ cursor: OpaquePointer, _ move: CursorMove,
  _ key: UnsafeRawBufferPointer = UnsafeRawBufferPointer(start: nil, count: 0)
) throws(LMDBError) -> CursorEntry? {
  var keyValue = MDB_val(key)
  var value = MDB_val()
  let rc = mdb_cursor_get(cursor, &keyValue, &value, move.operation)
  if rc == 0 { return CursorEntry(key: UnsafeRawBufferPointer(keyValue), value: UnsafeRawBufferPointer(value)) }
  if rc == MDB_NOTFOUND { return nil }
  throw LMDBError(rc, "mdb_cursor_get")
}

/// Calls `mdb_cursor_del`.
@usableFromInline
func removeAtCursor(_ cursor: OpaquePointer, _ state: UnsafeMutablePointer<WriteState>) throws(LMDBError) {
  state.pointee.dropCachedWriteCursor(of: mdb_cursor_dbi(cursor))
  let rc = mdb_cursor_del(cursor, 0)
  guard rc == 0 else { throw LMDBError(rc, "mdb_cursor_del") }
}

extension MDB_val {
  /// Wraps bytes for an input parameter; liblmdb does not write to them, although they are not const.
  fileprivate init(_ bytes: UnsafeRawBufferPointer) {
    self.init(mv_size: bytes.count, mv_data: UnsafeMutableRawPointer(mutating: bytes.baseAddress))
  }
}

extension UnsafeRawBufferPointer {
  fileprivate init(_ value: MDB_val) {
    self.init(start: value.mv_data, count: value.mv_size)
  }
}
