/// Unchanged bytes.
public enum BytesCodec: KeyCodec, ValueCodec {
  /// Calls `body` with the array's bytes, without copying them.
  @inlinable
  public static func withEncoded<R>(
    _ value: [UInt8], _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try value.withUnsafeBufferPointer { (buffer) throws(LMDBError) in try body(UnsafeRawBufferPointer(buffer)) }
  }

  /// Returns a copy of the bytes; never nil.
  @inlinable
  public static func decode(_ bytes: RawSpan) -> [UInt8]? {
    bytes.withUnsafeBytes { [UInt8]($0) }
  }
}
