/// No bytes: the value of a table that is only a set of keys.
public enum Empty: ValueCodec {
  /// Calls `body` with no bytes.
  @inlinable
  public static func withEncoded<R>(
    _ value: Void, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try body(UnsafeRawBufferPointer(start: nil, count: 0))
  }

  /// Nothing, or nil if there are bytes.
  @inlinable
  public static func decode(_ bytes: RawSpan) -> Void? {
    bytes.isEmpty ? () : nil
  }
}
