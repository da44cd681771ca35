/// How the keys of a table are laid out in bytes. Tables are ordered by these bytes, compared as unsigned numbers, a
/// shorter one before a longer one that begins with it.
///
/// A codec is not a value: the type itself says how, and ``Value`` is what the program handles.
public protocol KeyCodec {
  /// What the program handles.
  associatedtype Value

  /// Calls `body` with the bytes of a value, which it must not keep.
  static func withEncoded<R>(
    _ value: Value, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R

  /// The value of stored bytes, or nil if they are none of this codec's.
  static func decode(_ bytes: RawSpan) -> Value?
}

/// How the values of a table are laid out in bytes.
///
/// A codec is not a value: the type itself says how, and ``Value`` is what the program handles.
public protocol ValueCodec {
  /// What the program handles.
  associatedtype Value

  /// Calls `body` with the bytes of a value, which it must not keep.
  static func withEncoded<R>(
    _ value: Value, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R

  /// The value of stored bytes, or nil if they are none of this codec's.
  static func decode(_ bytes: RawSpan) -> Value?
}
