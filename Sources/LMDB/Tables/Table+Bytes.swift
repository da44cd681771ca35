// Variants without codecs, for callers that have the encoded bytes.

extension Table {
  /// Calls `body` with the stored bytes of a key's value, like ``withValue(for:in:_:)``; nil if the key does not exist.
  @inlinable
  public func withValue<R>(
    forBytes key: UnsafeRawBufferPointer, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (RawSpan) throws(LMDBError) -> R
  ) throws(LMDBError) -> R? {
    let handle = transaction.handle
    check(handle)
    guard let bytes = try findValue(handle.pointer, self.handle, key) else { return nil }
    return try handle.borrowing(bytes, body)
  }

  /// Whether the key with these bytes exists.
  @inlinable
  public func contains(
    bytes key: UnsafeRawBufferPointer, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Bool {
    check(transaction.handle)
    return try findValue(transaction.handle.pointer, handle, key) != nil
  }

  /// Stores the value with these bytes under a key, like ``put(_:for:in:mode:)``.
  @inlinable @discardableResult
  public func put(
    bytes value: UnsafeRawBufferPointer, forBytes key: UnsafeRawBufferPointer,
    in transaction: borrowing WriteTransaction, mode: PutMode = .upsert
  ) throws(LMDBError) -> Bool {
    try putValue(beginChange(transaction), transaction.state, handle, key, value, mode)
  }

  /// Removes the key with these bytes and its value, like ``remove(_:in:)``.
  @inlinable @discardableResult
  public func remove(
    bytes key: UnsafeRawBufferPointer, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    try removeValue(beginChange(transaction), transaction.state, handle, key)
  }
}
