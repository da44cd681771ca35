/// No bytes: the value of a table that is a set of keys.
public enum EmptyCodec: ValueCodec {
  /// Calls `body` with no bytes.
  @inlinable
  public static func withEncoded<R>(
    _ value: Void, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try body(UnsafeRawBufferPointer(start: nil, count: 0))
  }

  /// Returns an empty tuple, or nil if there are bytes.
  @inlinable
  public static func decode(_ bytes: RawSpan) -> Void? {
    bytes.isEmpty ? () : nil
  }
}
