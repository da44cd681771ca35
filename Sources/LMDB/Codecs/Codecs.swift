/// The encoding of a table's keys.
///
/// A table is ordered by the encoded bytes, compared as unsigned numbers; a key precedes longer keys that begin with
/// it. A codec has no instances: the type itself is the codec, and ``Value`` is the decoded type.
public protocol KeyCodec {
  /// The decoded type.
  associatedtype Value

  /// Calls `body` with the bytes of a value. `body` must not keep them.
  static func withEncoded<R>(
    _ value: Value, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R

  /// Decodes stored bytes; nil if this codec did not write them.
  static func decode(_ bytes: RawSpan) -> Value?
}

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
