/// Two numbers of eight bytes each, big endian: byte order is the order of the first numbers, then of the second.
public enum BigEndianPairCodec: KeyCodec, ValueCodec {
  /// Calls `body` with sixteen bytes on the stack.
  @inlinable
  public static func withEncoded<R>(
    _ value: (UInt64, UInt64), _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try withUnsafeBytes(of: (value.0.bigEndian, value.1.bigEndian)) { (bytes) throws(LMDBError) in try body(bytes) }
  }

  /// Returns the numbers, or nil unless there are sixteen bytes.
  @inlinable
  public static func decode(_ bytes: RawSpan) -> (UInt64, UInt64)? {
    guard bytes.byteCount == 16 else { return nil }
    return (
      UInt64(bigEndian: bytes.unsafeLoadUnaligned(fromByteOffset: 0, as: UInt64.self)),
      UInt64(bigEndian: bytes.unsafeLoadUnaligned(fromByteOffset: 8, as: UInt64.self))
    )
  }
}
