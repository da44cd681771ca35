/// A named table of an environment: ordered by the bytes of its keys, each key with one value.
///
/// It is a handle and costs nothing to copy. All access goes through a transaction of the environment that it came
/// from; with one of another environment it traps.
///
///     let table = try environment.table("counters", key: UTF8String.self, value: BigEndianUInt64.self)
///     try environment.write { transaction throws(LMDBError) in
///       try table.put(1, for: "visits", in: transaction)
///     }
public struct Table<Key: KeyCodec, Value: ValueCodec>: Sendable {
  @usableFromInline let handle: UInt32
  /// Of the environment.
  @usableFromInline let serial: UInt

  @usableFromInline
  init(handle: UInt32, serial: UInt) {
    self.handle = handle
    self.serial = serial
  }

  @inlinable
  func check(_ transaction: TransactionHandle) {
    if transaction.serial != serial { trapForeignTransaction() }
  }

  // MARK: Reading

  /// The value of a key, or nil if the key is not there.
  ///
  /// - Throws: ``LMDBError``: ``LMDBError/Code/undecodable`` when the stored bytes are none of the codec's;
  ///   ``LMDBError/Code/pageNotFound`` and ``LMDBError/Code/corrupted`` when the file is damaged. `mdb_get`.
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

  /// Calls `body` with the stored bytes of a key's value, without copying them; nil if the key is not there.
  ///
  /// In a write transaction nothing may be written while `body` runs: it traps.
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

  /// Whether a key is there.
  ///
  /// - Throws: ``LMDBError``. `mdb_get`.
  /// - Complexity: O(log n).
  @inlinable
  public func contains(
    _ key: Key.Value, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Bool {
    try find(key, transaction.handle) != nil
  }

  /// Numbers about the table.
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
  /// Lends bytes of the map; a write transaction refuses to write meanwhile.
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
