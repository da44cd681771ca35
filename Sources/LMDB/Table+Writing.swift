internal import Glibc

extension Table {
  /// Stores a value.
  ///
  /// - Parameters:
  ///   - value: what to store.
  ///   - key: 1 to ``Environment/maximumKeyByteCount`` bytes when encoded.
  ///   - transaction: a write transaction of the table's environment.
  ///   - mode: what to do about a key that is there.
  /// - Returns: whether it was stored: false only with ``PutMode/insert``, when the key was there.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull``, after which the transaction cannot be committed;
  ///   ``LMDBError/Code/badValueSize`` for an empty or too long key. `mdb_put`.
  /// - Complexity: O(log n), and copies of the pages on the way on their first change in the transaction.
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

  /// Makes room for a value and has `fill` write it in place.
  ///
  /// It saves a copy of a large value. LMDB does not clear the room: what `fill` leaves untouched is stored as whatever
  /// the memory held. Nothing else may be written while `fill` runs: it traps.
  /// - Parameters:
  ///   - byteCount: the size of the value.
  ///   - key: 1 to ``Environment/maximumKeyByteCount`` bytes when encoded.
  ///   - transaction: a write transaction of the table's environment.
  ///   - mode: what to do about a key that is there.
  ///   - fill: writes every byte. The buffer is of no use after it.
  /// - Returns: whether it was stored: false only with ``PutMode/insert``, when the key was there; `fill` is not called.
  /// - Throws: ``LMDBError``, as ``put(_:for:in:mode:)``. `mdb_put` with `MDB_RESERVE`.
  @inlinable @discardableResult
  public func reserve(
    byteCount: Int, for key: Key.Value, in transaction: borrowing WriteTransaction, mode: PutMode = .upsert,
    _ fill: (UnsafeMutableRawBufferPointer) -> Void
  ) throws(LMDBError) -> Bool {
    if byteCount < 0 { trapNegativeByteCount() }
    let pointer = beginChange(transaction)
    let state = transaction.state
    let room = try Key.withEncoded(key) { (keyBytes) throws(LMDBError) in
      try reserveValue(pointer, state, handle, keyBytes, byteCount, mode)
    }
    guard let room else { return false }
    state.pointee.borrowCount += 1
    defer { state.pointee.borrowCount -= 1 }
    fill(room)
    return true
  }

  /// Removes a key and its value.
  ///
  /// - Returns: whether the key was there.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull`` also here, as changed pages are copied first. `mdb_del`.
  /// - Complexity: O(log n).
  @inlinable @discardableResult
  public func remove(_ key: Key.Value, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    let pointer = beginChange(transaction)
    let state = transaction.state
    return try Key.withEncoded(key) { (bytes) throws(LMDBError) in
      try removeValue(pointer, state, handle, bytes)
    }
  }

  /// Removes a key whose value may have pages of its own, unless these are damaged: LMDB frees as many as the header of the first
  /// one says, whatever that is.
  ///
  /// - Returns: whether the key was there.
  /// - Throws: ``LMDBError``, as ``remove(_:in:)``; ``LMDBError/Code/corrupted`` when the header cannot be true.
  /// - Complexity: O(log n), one search more than ``remove(_:in:)``.
  @discardableResult
  public func removeChecked(
    _ key: Key.Value, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    let isIntact = try withValue(for: key, in: transaction) { (value) throws(LMDBError) in
      value.withUnsafeBytes { Self.hasIntactPages($0) }
    }
    guard let isIntact else { return false }
    guard isIntact else { throw LMDBError(code: .corrupted, function: "mdb_del") }
    return try remove(key, in: transaction)
  }

  /// A value on pages of its own follows their header: at 10 the kind of page, at 12 how many there are.
  private static func hasIntactPages(_ value: UnsafeRawBufferPointer) -> Bool {
    let (page, header) = (Int(getpagesize()), 16)
    // With any key a smaller value fits into a leaf, and with none a larger one.
    guard value.count > page / 2, let start = value.baseAddress.map({ $0 - header }) else { return true }
    let isOfOverflowPages = start.load(fromByteOffset: 10, as: UInt16.self) & 0x04 != 0
    return isOfOverflowPages
      && Int(start.load(fromByteOffset: 12, as: UInt32.self)) == (value.count + header + page - 1) / page
  }

  /// Removes all entries, in time proportional to the table's pages.
  ///
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull`` here or at the commit, when there is no room to note the pages
  ///   that became free. `mdb_drop`.
  @inlinable
  public func removeAll(in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try removeAllValues(beginChange(transaction), transaction.state, handle)
  }

  /// Checks that a change is permitted now, and counts it.
  @inlinable
  func beginChange(_ transaction: borrowing WriteTransaction) -> OpaquePointer {
    check(transaction.handle)
    let state = transaction.state
    if state.pointee.borrowCount != 0 { trapWriteDuringBorrow() }
    state.pointee.changeCount &+= 1
    return transaction.handle.pointer
  }
}
