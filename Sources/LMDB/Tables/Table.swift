/// A named table of an environment, ordered by the bytes of its keys. Each key has one value.
///
/// A table is a handle that is cheap to copy. All access needs a transaction of its environment, and traps with a
/// transaction of another one.
///
///     let table = try environment.table("counters", key: UTF8Codec.self, value: BigEndianUInt64Codec.self)
///     try environment.write { transaction throws(LMDBError) in
///       try table.put(1, for: "visits", in: transaction)
///     }
public struct Table<Key: KeyCodec, Value: ValueCodec>: Sendable {
  @usableFromInline let handle: UInt32
  /// The serial number of the environment.
  @usableFromInline let serial: UInt

  @usableFromInline
  init(handle: UInt32, serial: UInt) {
    self.handle = handle
    self.serial = serial
  }

  /// Traps if a transaction belongs to another environment.
  @inlinable
  func check(_ transaction: TransactionHandle) {
    if transaction.serial != serial { trap(.foreignTransaction) }
  }

  // MARK: Reading

  /// Returns the value of a key, or nil if the key does not exist.
  ///
  /// - Throws: ``LMDBError``: ``LMDBError/Code/undecodable`` if the codec cannot decode the stored bytes;
  ///   ``LMDBError/Code/pageNotFound`` and ``LMDBError/Code/corrupted`` if the file is corrupt. `mdb_get`.
  /// - Complexity: O(log n).
  @inlinable
  public func value(
    for key: Key.Value, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Value.Value? {
    let handle = transaction.handle
    guard let bytes = try find(key, handle) else { return nil }
    guard let value = Value.decode(bytes.bytes) else {
      throw LMDBError(code: .undecodable, function: "mdb_get")
    }
    return value
  }

  /// Calls `body` with the stored bytes of a key's value, without copying them; returns nil if the key does not exist.
  ///
  /// In a write transaction, writes within `body` trap.
  /// - Throws: ``LMDBError``, of `mdb_get` or of `body`.
  /// - Complexity: O(log n).
  @inlinable
  public func withValue<R>(
    for key: Key.Value, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (RawSpan) throws(LMDBError) -> R
  ) throws(LMDBError) -> R? {
    let handle = transaction.handle
    guard let bytes = try find(key, handle) else { return nil }
    return try handle.borrowing(bytes, body)
  }

  /// Whether a key exists.
  ///
  /// - Throws: ``LMDBError``. `mdb_get`.
  /// - Complexity: O(log n).
  @inlinable
  public func contains(
    _ key: Key.Value, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Bool {
    try find(key, transaction.handle) != nil
  }

  /// Returns statistics of the table.
  ///
  /// - Throws: ``LMDBError``. `mdb_stat`.
  /// - Complexity: O(1), some nanoseconds.
  @inlinable
  public func statistics(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> TableStatistics {
    let handle = transaction.handle
    check(handle)
    return try TableStatistics(handle, self.handle)
  }

  @inlinable
  func find(_ key: Key.Value, _ transaction: TransactionHandle) throws(LMDBError) -> UnsafeRawBufferPointer? {
    check(transaction)
    return try Key.withEncoded(key) { (bytes) throws(LMDBError) in
      try findValue(transaction.pointer, handle, bytes)
    }
  }
}

extension TransactionHandle {
  /// Calls `body` with bytes of the map. Writes of the same transaction trap while `body` runs.
  @inlinable
  func borrowing<R>(
    _ bytes: UnsafeRawBufferPointer, _ body: (RawSpan) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    if let writeState {
      writeState.pointee.borrowCount += 1
      defer { writeState.pointee.borrowCount -= 1 }
      return try body(bytes.bytes)
    }
    return try body(bytes.bytes)
  }
}
