/// A cursor: a position in a table, from which adjacent entries are found quickly.
///
/// It exists only within ``Table/withCursor(in:_:)``. In a write transaction the table may change while the cursor has
/// a position. The cursor stays at its entry, or moves to the next one if the entry is removed. Do not swap two
/// cursors.
public struct Cursor<Key: KeyCodec, Value: ValueCodec>: ~Copyable {
  @usableFromInline let pointer: OpaquePointer
  @usableFromInline let transaction: TransactionHandle
  /// The entry at the cursor; nil without a position.
  @usableFromInline var entry: CursorEntry?
  /// The transaction's change count when `entry` was read.
  @usableFromInline var changeCount: UInt = 0

  @usableFromInline
  init(pointer: OpaquePointer, transaction: TransactionHandle) {
    self.pointer = pointer
    self.transaction = transaction
  }

  // MARK: Moving

  /// Moves to the lowest key. Returns false, without a position, if the table is empty.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_FIRST`.
  @inlinable @discardableResult
  public mutating func first() throws(LMDBError) -> Bool {
    try move(.first)
  }

  /// Moves to the highest key. Returns false, without a position, if the table is empty.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_LAST`.
  @inlinable @discardableResult
  public mutating func last() throws(LMDBError) -> Bool {
    try move(.last)
  }

  /// Moves to the next higher key, or to the lowest one if the cursor is new.
  ///
  /// Returns false, without a position, at the end. After ``remove()``, moves to the key after the removed one.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_NEXT`.
  @inlinable @discardableResult
  public mutating func next() throws(LMDBError) -> Bool {
    try move(.next)
  }

  /// Moves to the next lower key, or to the highest one if the cursor is new.
  ///
  /// Returns false, without a position, before the first key.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_PREV`.
  @inlinable @discardableResult
  public mutating func previous() throws(LMDBError) -> Bool {
    try move(.previous)
  }

  /// Moves to a key. Returns false, without a position, if it does not exist.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_SET_KEY`.
  @inlinable @discardableResult
  public mutating func seek(to key: Key.Value) throws(LMDBError) -> Bool {
    setEntry(try Key.withEncoded(key) { [pointer] (bytes) throws(LMDBError) in try moveCursor(pointer, .exact, bytes) })
  }

  /// Moves to a key, or to the lowest one above it. Returns false, without a position, if all keys are lower.
  ///
  /// - Throws: ``LMDBError``. `mdb_cursor_get` with `MDB_SET_RANGE`.
  @inlinable @discardableResult
  public mutating func seek(atOrAfter key: Key.Value) throws(LMDBError) -> Bool {
    setEntry(
      try Key.withEncoded(key) { [pointer] (bytes) throws(LMDBError) in try moveCursor(pointer, .atOrAfter, bytes) })
  }

  @inlinable
  mutating func move(_ move: CursorMove) throws(LMDBError) -> Bool {
    setEntry(try moveCursor(pointer, move))
  }

  @inlinable
  mutating func setEntry(_ found: CursorEntry?) -> Bool {
    entry = found
    if let state = transaction.writeState { changeCount = state.pointee.changeCount }
    return found != nil
  }

  // MARK: Reading

  /// The key at the cursor; nil if the codec cannot decode it. Traps without a position.
  @inlinable
  public var key: Key.Value? { Key.decode(current.key.bytes) }

  /// The value at the cursor; nil if the codec cannot decode it. Traps without a position.
  @inlinable
  public var value: Value.Value? { Value.decode(current.value.bytes) }

  /// Calls `body` with the stored bytes of the key. Traps without a position, or if `body` writes.
  @inlinable
  public func withKey<R>(_ body: (RawSpan) throws(LMDBError) -> R) throws(LMDBError) -> R {
    try transaction.borrowing(current.key, body)
  }

  /// Calls `body` with the stored bytes of the value. Traps without a position, or if `body` writes.
  @inlinable
  public func withValue<R>(_ body: (RawSpan) throws(LMDBError) -> R) throws(LMDBError) -> R {
    try transaction.borrowing(current.value, body)
  }

  /// The present bytes of the entry, which a change of the table since the last move may have moved.
  @inlinable
  var current: CursorEntry {
    guard let entry else { trap(.unpositionedCursor) }
    guard let state = transaction.writeState, state.pointee.changeCount != changeCount else { return entry }
    return movedEntry()
  }

  @usableFromInline
  func movedEntry() -> CursorEntry {
    do throws(LMDBError) {
      if let entry = try moveCursor(pointer, .current) { return entry }
    } catch {
      // The transaction has failed, or the table was emptied, so there is no entry.
    }
    trap(.unpositionedCursor)
  }

  // MARK: Removing

  /// Removes the entry at the cursor. Traps in a read transaction, or without a position.
  ///
  /// The cursor then has no position; ``next()`` and ``previous()`` move to the entries adjacent to the removed one.
  ///
  /// - Throws: ``LMDBError``, which can be ``LMDBError/Code/mapFull``. `mdb_cursor_del`.
  @inlinable
  public mutating func remove() throws(LMDBError) {
    guard let state = transaction.writeState else { trap(.removeInReadTransaction) }
    guard entry != nil else { trap(.unpositionedCursor) }
    if state.pointee.borrowCount != 0 { trap(.writeDuringBorrow) }
    state.pointee.changeCount &+= 1
    entry = nil
    try removeAtCursor(pointer, state)
  }
}

extension Table {
  /// Runs `body` with a new cursor, which has no position.
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
