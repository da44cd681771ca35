/// Eight bytes, big endian: byte order is numeric order.
public enum BigEndianUInt64Codec: KeyCodec, ValueCodec {
  /// Calls `body` with eight bytes on the stack.
  @inlinable
  public static func withEncoded<R>(
    _ value: UInt64, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try withUnsafeBytes(of: value.bigEndian) { (bytes) throws(LMDBError) in try body(bytes) }
  }

  /// Returns the number, or nil unless there are eight bytes.
  @inlinable
  public static func decode(_ bytes: RawSpan) -> UInt64? {
    guard bytes.byteCount == 8 else { return nil }
    return UInt64(bigEndian: bytes.unsafeLoadUnaligned(as: UInt64.self))
  }
}
