import FoundationEssentials
import LMDB

/// The key of `bodies`: a body's ID and a chunk's number. Big endian, so that the chunks of a body are in order.
struct ChunkKey: Hashable, Comparable {
  var bodyID: UInt64
  var index: UInt32

  static func < (one: ChunkKey, other: ChunkKey) -> Bool { (one.bodyID, one.index) < (other.bodyID, other.index) }
}

/// Eight bytes, the least significant first.
enum LittleEndianUInt64Codec: ValueCodec {
  static func withEncoded<R>(
    _ value: UInt64, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try withUnsafeBytes(of: value.littleEndian) { (bytes) throws(LMDBError) in try body(bytes) }
  }

  static func decode(_ bytes: RawSpan) -> UInt64? {
    guard bytes.byteCount == 8 else { return nil }
    return UInt64(littleEndian: bytes.unsafeLoadUnaligned(as: UInt64.self))
  }
}

/// The key of `dates`: the time of the last update or of storing, and the row ID. Big endian, so that byte order is
/// time order.
struct DateKey: Hashable, Comparable {
  /// See ``SortableTimestamp``.
  var time: UInt64
  var rowID: UInt64

  static func < (one: DateKey, other: DateKey) -> Bool { (one.time, one.rowID) < (other.time, other.rowID) }
}

/// Twelve bytes: the body's ID and the chunk's number, both big endian.
enum ChunkKeyCodec: KeyCodec {
  static func withEncoded<R>(
    _ value: ChunkKey, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    let bytes: InlineArray<3, UInt32> = [
      UInt32(truncatingIfNeeded: value.bodyID >> 32).bigEndian, UInt32(truncatingIfNeeded: value.bodyID).bigEndian,
      value.index.bigEndian,
    ]
    return try withUnsafeBytes(of: bytes) { (bytes) throws(LMDBError) in try body(bytes) }
  }

  static func decode(_ bytes: RawSpan) -> ChunkKey? {
    guard bytes.byteCount == 12 else { return nil }
    let words = (0..<3).map { UInt32(bigEndian: bytes.unsafeLoadUnaligned(fromByteOffset: $0 * 4, as: UInt32.self)) }
    return ChunkKey(bodyID: UInt64(words[0]) << 32 | UInt64(words[1]), index: words[2])
  }
}

/// Sixteen bytes: sortable timestamp and row ID, both big endian.
enum DateKeyCodec: KeyCodec {
  static func withEncoded<R>(
    _ value: DateKey, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try BigEndianPairCodec.withEncoded((value.time, value.rowID), body)
  }

  static func decode(_ bytes: RawSpan) -> DateKey? {
    BigEndianPairCodec.decode(bytes).map { DateKey(time: $0.0, rowID: $0.1) }
  }
}

/// A `Date` as 64 bits whose unsigned order is the order of time.
///
/// Nothing is rounded, so "newer" on disk is exactly "newer" for `Date`.
enum SortableTimestamp {
  static func encode(_ date: Date) -> UInt64 {
    let bits = date.timeIntervalSinceReferenceDate.bitPattern
    return bits >> 63 == 0 ? bits | 1 << 63 : ~bits
  }

  static func decode(_ time: UInt64) -> Date {
    let bits = time >> 63 == 1 ? time & ~(1 << 63) : ~time
    return Date(timeIntervalSinceReferenceDate: Double(bitPattern: bits))
  }
}

extension Cursor {
  /// Returns the key at the cursor.
  ///
  /// This library writes only valid keys, so a key that cannot be decoded is corrupt.
  func checkedKey() throws(LMDBError) -> Key.Value {
    guard let key else { throw LMDBError(code: .corrupted, function: "mdb_cursor_get") }
    return key
  }
}
