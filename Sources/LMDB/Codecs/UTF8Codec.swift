/// The UTF-8 bytes of a string: byte order is the order of Unicode scalars. Strings are not normalized.
public enum UTF8Codec: KeyCodec, ValueCodec {
  /// Calls `body` with the string's bytes.
  @inlinable
  public static func withEncoded<R>(
    _ value: String, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try value.utf8.span.bytes.withUnsafeBytes { (bytes) throws(LMDBError) in try body(bytes) }
  }

  /// Returns the string, or nil if the bytes are not UTF-8.
  @inlinable
  public static func decode(_ bytes: RawSpan) -> String? {
    bytes.withUnsafeBytes { String(validating: $0, as: UTF8.self) }
  }
}
