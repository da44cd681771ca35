extension Table {
  /// Stores a value.
  ///
  /// - Parameters:
  ///   - value: The value to store.
  ///   - key: A key of 1 to ``LMDBEnvironment/maximumKeyByteCount`` encoded bytes.
  ///   - transaction: A write transaction of the table's environment.
  ///   - mode: The treatment of an existing key.
  /// - Returns: Whether the value was stored; false only with ``PutMode/insert``, if the key exists.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull``, after which the transaction cannot be committed;
  ///   ``LMDBError/Code/badValueSize`` for an empty key or one that is too long. `mdb_put`.
  /// - Complexity: O(log n). The transaction's first change of a page copies it.
  @inlinable @discardableResult
  public func put(
    _ value: Value.Value, for key: Key.Value, in transaction: borrowing WriteTransaction, mode: PutMode = .upsert
  ) throws(LMDBError) -> Bool {
    let pointer = beginChange(transaction)
    let state = transaction.state
    return try Key.withEncoded(key) { (keyBytes) throws(LMDBError) in
      try Value.withEncoded(value) { (valueBytes) throws(LMDBError) in
        try putValue(pointer, state, handle, keyBytes, valueBytes, mode)
      }
    }
  }

  /// Reserves space for a value, which `fill` writes in place.
  ///
  /// This saves a copy of a large value. LMDB does not clear the space: bytes that `fill` does not write keep the
  /// previous contents of the memory. Other writes trap while `fill` runs.
  /// - Parameters:
  ///   - byteCount: The size of the value.
  ///   - key: A key of 1 to ``LMDBEnvironment/maximumKeyByteCount`` encoded bytes.
  ///   - transaction: A write transaction of the table's environment.
  ///   - mode: The treatment of an existing key.
  ///   - fill: Writes every byte of the buffer, which is invalid afterwards.
  /// - Returns: Whether the value was stored; false only with ``PutMode/insert``, if the key exists. Then `fill` is not
  ///   called.
  /// - Throws: ``LMDBError``, as ``put(_:for:in:mode:)``. `mdb_put` with `MDB_RESERVE`.
  @inlinable @discardableResult
  public func reserve(
    byteCount: Int, for key: Key.Value, in transaction: borrowing WriteTransaction, mode: PutMode = .upsert,
    _ fill: (UnsafeMutableRawBufferPointer) -> Void
  ) throws(LMDBError) -> Bool {
    if byteCount < 0 { trap(.negativeByteCount) }
    let pointer = beginChange(transaction)
    let state = transaction.state
    let buffer = try Key.withEncoded(key) { (keyBytes) throws(LMDBError) in
      try reserveValue(pointer, state, handle, keyBytes, byteCount, mode)
    }
    guard let buffer else { return false }
    state.pointee.borrowCount += 1
    defer { state.pointee.borrowCount -= 1 }
    fill(buffer)
    return true
  }

  /// Removes a key and its value.
  ///
  /// - Returns: Whether the key existed.
  /// - Throws: ``LMDBError``, which can be ``LMDBError/Code/mapFull``, because changed pages are copied first.
  ///   `mdb_del`.
  /// - Complexity: O(log n).
  @inlinable @discardableResult
  public func remove(_ key: Key.Value, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    let pointer = beginChange(transaction)
    let state = transaction.state
    return try Key.withEncoded(key) { (bytes) throws(LMDBError) in
      try removeValue(pointer, state, handle, bytes)
    }
  }

  /// Removes several keys and their values. Skips keys that do not exist.
  ///
  /// - Parameters:
  ///   - keys: The keys, preferably ascending: keys in the same leaf are then found without a search from the root.
  ///   - transaction: A write transaction of the table's environment.
  /// - Returns: The number of removed keys.
  /// - Throws: ``LMDBError``, as ``remove(_:in:)``. `mdb_cursor_get` with `MDB_SET_KEY`, `mdb_cursor_del`.
  @inlinable @discardableResult
  public func removeEach(
    of keys: [Key.Value], in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    try withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var count = 0
      for key in keys where try cursor.seek(to: key) {
        try cursor.remove()
        count += 1
      }
      return count
    }
  }

  /// Removes all entries, in time proportional to the number of the table's pages.
  ///
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull`` here or at the commit, if there is no space to record the
  ///   freed pages. `mdb_drop`.
  @inlinable
  public func removeAll(in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try removeAllValues(beginChange(transaction), transaction.state, handle)
  }

  /// Checks that a change is permitted now, and counts it.
  @inlinable
  func beginChange(_ transaction: borrowing WriteTransaction) -> OpaquePointer {
    check(transaction.handle)
    let state = transaction.state
    if state.pointee.borrowCount != 0 { trap(.writeDuringBorrow) }
    state.pointee.changeCount &+= 1
    return transaction.handle.pointer
  }
}
