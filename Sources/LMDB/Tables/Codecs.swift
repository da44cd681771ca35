/// The encoding of a table's values.
///
/// A codec has no instances: the type itself is the codec, and ``Value`` is the decoded type.
public protocol ValueCodec {
  /// The decoded type.
  associatedtype Value

  /// Calls `body` with the bytes of a value. `body` must not keep them.
  static func withEncoded<R>(
    _ value: Value, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R

  /// Decodes stored bytes; nil if this codec did not write them.
  static func decode(_ bytes: RawSpan) -> Value?
}

/// The encoding of a table's keys.
///
/// A table is ordered by the encoded bytes, compared as unsigned numbers; a key precedes longer keys that begin with
/// it.
public protocol KeyCodec: ValueCodec {}

/// Unchanged bytes.
public enum BytesCodec: KeyCodec {
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

/// The UTF-8 bytes of a string: byte order is the order of Unicode scalars. Strings are not normalized.
public enum UTF8Codec: KeyCodec {
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

/// Eight bytes, big endian: byte order is numeric order.
public enum BigEndianUInt64Codec: KeyCodec {
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

/// Two numbers of eight bytes each, big endian: byte order is the order of the first numbers, then of the second.
public enum BigEndianPairCodec: KeyCodec {
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
