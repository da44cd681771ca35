import LMDB

/// Names and sizes of the storage format.
///
/// The document `StorageFormat.md` explains them. Change both together, and raise the version.
enum StorageFormat {
  /// The version in `meta`; a file with another version is quarantined.
  static let version: UInt32 = 5

  static let bodiesTable = "bodies"
  static let datesTable = "dates"
  static let expiriesTable = "expiries"
  static let metaTable = "meta"

  /// Returns the size of a chunk that fills its overflow pages completely, with the 16-byte page header.
  static func chunkByteCount(capacityByteCount: Int, pageByteCount: Int) -> Int {
    let pages = capacityByteCount >= 64 << 20 ? 16 : 4
    return pages * pageByteCount - 16
  }

  /// Whether chunks of this size need many contiguous pages, so that fragmentation affects them.
  static func isLarge(chunkByteCount: Int, pageByteCount: Int) -> Bool { chunkByteCount > 8 * pageByteCount }

  /// Returns the size of the largest record that LMDB keeps in a leaf.
  ///
  /// That is half a page, less the headers of page and node and the 8-byte key.
  static func inlineRecordByteCount(pageByteCount: Int) -> Int {
    (((pageByteCount - 16) / 2) & ~1) - 2 - 8 - 8
  }

  /// Returns the map size, the maximum size of `data.mdb`. The other files fit within the rest of capacity + 10%.
  static func mapByteCount(capacityByteCount: Int, pageByteCount: Int) -> Int {
    let capacity = min(capacityByteCount, maximumCapacityByteCount)
    return (capacity + capacity / 1000 * 38 - otherFilesByteCount) / pageByteCount * pageByteCount
  }

  /// Returns the maximum size of the index file. During its last growth, a file of half the size exists in addition.
  static func indexByteCount(capacityByteCount: Int) -> Int {
    min(capacityByteCount, maximumCapacityByteCount) / 32 + minimumIndexByteCount
  }

  private static let minimumIndexByteCount = 24 << 10

  /// Returns the maximum size of the directory: capacity + 10%.
  static func boundByteCount(capacityByteCount: Int) -> Int {
    let capacity = min(capacityByteCount, maximumCapacityByteCount)
    return capacity + capacity / 10
  }

  /// The space for the smallest removal log, the marker files, and the smallest lock file and index.
  static let otherFilesByteCount = 100 << 10

  /// Returns the number of reader slots in the lock file: 64 bytes each, after a header of 128 bytes.
  ///
  /// The lock file takes 1/160 of the capacity, between 24 KiB and 256 KiB, because all of it takes disk space.
  static func readerSlotCount(capacityByteCount: Int) -> Int {
    (lockFileByteCount(capacityByteCount: capacityByteCount) - 128) / 64
  }

  static func lockFileByteCount(capacityByteCount: Int) -> Int {
    min(max(capacityByteCount / 160, 24 << 10), 256 << 10) & ~0xFFF
  }

  /// The maximum effective capacity, 16 TiB: address space and file sizes are limited.
  static let maximumCapacityByteCount = 1 << 44

  /// Returns the maximum number of bytes of records and chunks in one write transaction.
  static func batchByteCount(capacityByteCount: Int) -> Int {
    min(max(capacityByteCount / 128, 32 << 10), 4 << 20)
  }

  /// Returns the headroom, the number of pages that are kept free.
  ///
  /// Copy-on-write, the snapshots of the last two transactions and fragmentation need free pages. The document
  /// `StorageFormat.md` explains the formula.
  static func headroomPageCount(mapByteCount: Int, batchByteCount: Int, chunkByteCount: Int, pageByteCount: Int) -> Int
  {
    let isLargeChunk = isLarge(chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    let bytes =
      isLargeChunk
      ? 4 * batchByteCount + mapByteCount / 20
      : 3 * batchByteCount + mapByteCount * 3 / 100
    let pages = mapByteCount / pageByteCount
    // A transaction also copies the pages from the root to each change, even if it writes few bytes.
    return max(bytes / pageByteCount, min(384, 64 + pages / 10))
  }

  /// The maximum number of variants of a key. A further variant replaces the oldest.
  static let maximumVariantCountPerKey = 128
}

/// Calls `body` with the bytes of an array; `withUnsafeBytes` for a closure that throws `LMDBError`.
func withBytes<R>(
  of array: [UInt8], _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
) throws(LMDBError) -> R {
  try array.withUnsafeBufferPointer { (bytes) throws(LMDBError) in try body(UnsafeRawBufferPointer(bytes)) }
}

/// The key of `bodies`: a body's ID and a chunk's number. Big endian, so that the chunks of a body are in order.
struct ChunkKey: Hashable, Comparable {
  var bodyID: UInt64
  var index: UInt32

  static func < (one: ChunkKey, other: ChunkKey) -> Bool { (one.bodyID, one.index) < (other.bodyID, other.index) }
}

/// Eight bytes, the least significant first.
enum LittleEndianUInt64: ValueCodec {
  static func withEncoded<R>(
    _ value: UInt64, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try withRawBytes(of: value.littleEndian, body)
  }

  static func decode(_ bytes: RawSpan) -> UInt64? {
    guard bytes.byteCount == 8 else { return nil }
    return UInt64(littleEndian: bytes.unsafeLoadUnaligned(as: UInt64.self))
  }
}

/// The key of `dates`: the time of storing and the row ID. Big endian, so that byte order is time order.
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
    return try withRawBytes(of: bytes, body)
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
    try withRawBytes(of: (value.time.bigEndian, value.rowID.bigEndian), body)
  }

  static func decode(_ bytes: RawSpan) -> DateKey? {
    guard bytes.byteCount == 16 else { return nil }
    return DateKey(
      time: UInt64(bigEndian: bytes.unsafeLoadUnaligned(fromByteOffset: 0, as: UInt64.self)),
      rowID: UInt64(bigEndian: bytes.unsafeLoadUnaligned(fromByteOffset: 8, as: UInt64.self)))
  }
}

/// Calls `body` with the bytes of a value; `withUnsafeBytes(of:)` for a closure that throws `LMDBError`.
func withRawBytes<T, R>(
  of value: T, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
) throws(LMDBError) -> R {
  try withUnsafeBytes(of: value) { (bytes) throws(LMDBError) in try body(bytes) }
}
