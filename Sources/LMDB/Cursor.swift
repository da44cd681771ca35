/// A place in a table, from which its neighbours are near.
///
/// It exists only within ``Table/withCursor(in:_:)``. In a write transaction the table may be changed while the cursor
/// stands: it stays with its entry, or on the one after it if that was removed. Two cursors must not be swapped with one
/// another.
public struct Cursor<Key: KeyCodec, Value: ValueCodec>: ~Copyable {
  @usableFromInline let pointer: OpaquePointer
  @usableFromInline let transaction: TransactionHandle
  /// Where the cursor stands; nil if nowhere.
  @usableFromInline var entry: CursorEntry?
  /// The transaction's count of changes when `entry` was found.
  @usableFromInline var changeCount: UInt = 0

  @usableFromInline
  init(pointer: OpaquePointer, transaction: TransactionHandle) {
    self.pointer = pointer
    self.transaction = transaction
    entry = nil
  }

  // MARK: Moving

  /// Goes to the least key. False, and nowhere, if the table is empty.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_FIRST`.
  @inlinable @discardableResult
  public mutating func first() throws(LMDBError) -> Bool {
    try move(.first)
  }

  /// Goes to the greatest key. False, and nowhere, if the table is empty.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_LAST`.
  @inlinable @discardableResult
  public mutating func last() throws(LMDBError) -> Bool {
    try move(.last)
  }

  /// Goes to the key above; to the least one if the cursor is new. After ``remove()`` that is the one above the removed
  /// one. False, and nowhere, at the end.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_NEXT`.
  @inlinable @discardableResult
  public mutating func next() throws(LMDBError) -> Bool {
    try move(.next)
  }

  /// Goes to the key below; to the greatest one if the cursor is new. False, and nowhere, at the end.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_PREV`.
  @inlinable @discardableResult
  public mutating func previous() throws(LMDBError) -> Bool {
    try move(.previous)
  }

  /// Goes to a key. False, and nowhere, if it is not there.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_SET_KEY`.
  @inlinable @discardableResult
  public mutating func seek(to key: Key.Value) throws(LMDBError) -> Bool {
    settle(try Key.withEncoded(key) { [pointer] (bytes) throws(LMDBError) in try moveCursor(pointer, .exact, bytes) })
  }

  /// Goes to a key, or to the least one above it. False, and nowhere, if all keys are below.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_SET_RANGE`.
  @inlinable @discardableResult
  public mutating func seek(atOrAfter key: Key.Value) throws(LMDBError) -> Bool {
    settle(
      try Key.withEncoded(key) { [pointer] (bytes) throws(LMDBError) in try moveCursor(pointer, .atOrAfter, bytes) })
  }

  /// Goes to the key with these bytes. As ``seek(to:)``.
  @inlinable @discardableResult
  public mutating func seek(toBytes key: UnsafeRawBufferPointer) throws(LMDBError) -> Bool {
    settle(try moveCursor(pointer, .exact, key))
  }

  /// Goes to the key with these bytes, or to the least one above it. As ``seek(atOrAfter:)``.
  @inlinable @discardableResult
  public mutating func seek(atOrAfterBytes key: UnsafeRawBufferPointer) throws(LMDBError) -> Bool {
    settle(try moveCursor(pointer, .atOrAfter, key))
  }

  @inlinable
  mutating func move(_ move: CursorMove) throws(LMDBError) -> Bool {
    settle(try moveCursor(pointer, move, UnsafeRawBufferPointer(start: nil, count: 0)))
  }

  @inlinable
  mutating func settle(_ found: CursorEntry?) -> Bool {
    entry = found
    if let state = transaction.writeState { changeCount = state.pointee.changeCount }
    return found != nil
  }

  // MARK: Looking

  /// The key that the cursor stands on, or nil if its bytes are none of the codec's. Traps if it stands nowhere.
  @inlinable
  public var key: Key.Value? { Key.decode(current.key.bytes) }

  /// The value that the cursor stands on, or nil if its bytes are none of the codec's. Traps if it stands nowhere.
  @inlinable
  public var value: Value.Value? { Value.decode(current.value.bytes) }

  /// Calls `body` with the stored bytes of the key. Traps if the cursor stands nowhere, and if `body` writes.
  @inlinable
  public func withKey<R>(_ body: (RawSpan) throws(LMDBError) -> R) throws(LMDBError) -> R {
    try transaction.borrowing(current.key, body)
  }

  /// Calls `body` with the stored bytes of the value. Traps if the cursor stands nowhere, and if `body` writes.
  @inlinable
  public func withValue<R>(_ body: (RawSpan) throws(LMDBError) -> R) throws(LMDBError) -> R {
    try transaction.borrowing(current.value, body)
  }

  /// The entry's bytes as they lie now: a change to the table since the last move may have moved them.
  @inlinable
  var current: CursorEntry {
    guard let entry else { trapUnpositionedCursor() }
    guard let state = transaction.writeState, state.pointee.changeCount != changeCount else { return entry }
    return movedEntry()
  }

  @usableFromInline
  func movedEntry() -> CursorEntry {
    do throws(LMDBError) {
      let entry = try moveCursor(pointer, .current, UnsafeRawBufferPointer(start: nil, count: 0))
      if let entry { return entry }
    } catch {
      // The transaction has failed, or the table was emptied: there is no entry either.
    }
    trapUnpositionedCursor()
  }

  // MARK: Removing

  /// Removes the entry that the cursor stands on. The cursor then stands nowhere; ``next()`` and ``previous()`` go to
  /// the neighbours of what was removed. Traps in a read transaction, and if the cursor stands nowhere.
  ///
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull`` also here. `mdb_cursor_del`.
  @inlinable
  public mutating func remove() throws(LMDBError) {
    guard let state = transaction.writeState else { trapRemoveInReadTransaction() }
    guard entry != nil else { trapUnpositionedCursor() }
    if state.pointee.borrowCount != 0 { trapWriteDuringBorrow() }
    state.pointee.changeCount &+= 1
    entry = nil
    try removeAtCursor(pointer, state)
  }
}

extension Table {
  /// Runs `body` with a cursor that stands nowhere yet.
  ///
  ///     try table.withCursor(in: transaction) { cursor throws(LMDBError) in
  ///       while try cursor.next() { … cursor.key … }
  ///     }
  /// - Throws: ``LMDBError``, of `mdb_cursor_open` or of `body`.
  @inlinable @discardableResult
  public func withCursor<R>(
    in transaction: borrowing some Transaction & ~Copyable,
    _ body: (inout Cursor<Key, Value>) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    let handle = transaction.handle
    check(handle)
    let pointer = try openCursor(handle.pointer, self.handle)
    defer { closeCursor(pointer) }
    var cursor = Cursor<Key, Value>(pointer: pointer, transaction: handle)
    return try body(&cursor)
  }
}
