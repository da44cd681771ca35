import LMDB

/// Names and numbers of the bytes on disk. The storage format's document explains them; change both together, and the
/// version with them.
enum StorageFormat {
  /// Stored in `meta`; a file with another number is set aside.
  static let version: UInt32 = 5

  static let bodiesTable = "bodies"
  static let datesTable = "dates"
  static let expiriesTable = "expiries"
  static let metaTable = "meta"

  /// A value chunk that fills overflow pages to the last byte leaves room for the page header (16 bytes).
  static func chunkByteCount(capacityByteCount: Int, pageByteCount: Int) -> Int {
    let pages = capacityByteCount >= 64 << 20 ? 16 : 4
    return pages * pageByteCount - 16
  }

  static func isLarge(chunkByteCount: Int, pageByteCount: Int) -> Bool { chunkByteCount > 8 * pageByteCount }

  /// The largest record that LMDB keeps in a leaf: half a page less the headers of page and node, and the 8-byte key.
  static func inlineRecordByteCount(pageByteCount: Int) -> Int {
    (((pageByteCount - 16) / 2) & ~1) - 2 - 8 - 8
  }

  /// The map's size: the hard ceiling of `data.mdb`. It leaves room within capacity + 10 % for the other files.
  static func mapByteCount(capacityByteCount: Int, pageByteCount: Int) -> Int {
    let capacity = min(capacityByteCount, largestCapacityByteCount)
    return (capacity + capacity / 1000 * 38 - otherFilesByteCount) / pageByteCount * pageByteCount
  }

  /// The most bytes of the index file. While it grows to that, one of half the size is beside it.
  static func indexByteCount(capacityByteCount: Int) -> Int {
    min(capacityByteCount, largestCapacityByteCount) / 32 + smallestIndexByteCount
  }

  private static let smallestIndexByteCount = 24 << 10

  /// What the directory may take.
  static func boundByteCount(capacityByteCount: Int) -> Int {
    let capacity = min(capacityByteCount, largestCapacityByteCount)
    return capacity + capacity / 10
  }

  /// What the smallest log of removals, the markers and the beginnings of lock file and index take.
  static let otherFilesByteCount = 100 << 10

  /// How many reader slots the lock file has, of 64 bytes each, behind a header: a 160th of the capacity, as all of it takes
  /// room on the disk, and not more than 256 KiB.
  static func readerSlotCount(capacityByteCount: Int) -> Int {
    (lockFileByteCount(capacityByteCount: capacityByteCount) - 128) / 64
  }

  static func lockFileByteCount(capacityByteCount: Int) -> Int {
    min(max(capacityByteCount / 160, 24 << 10), 256 << 10) & ~0xFFF
  }

  /// A larger capacity is taken for this one, 16 TiB: address space has an end, and files do before.
  static let largestCapacityByteCount = 1 << 44

  /// The most bytes that one write transaction dirties with records and chunks.
  static func batchByteCount(capacityByteCount: Int) -> Int {
    min(max(capacityByteCount / 128, 32 << 10), 4 << 20)
  }

  /// Room that is kept free for copy-on-write pages, pages still pinned by the last two transactions, and
  /// fragmentation; measured, see the storage format's document.
  static func headroomPageCount(mapByteCount: Int, batchByteCount: Int, chunkByteCount: Int, pageByteCount: Int) -> Int
  {
    let isLargeChunk = isLarge(chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    let bytes =
      isLargeChunk
      ? 4 * batchByteCount + mapByteCount / 20
      : 3 * batchByteCount + mapByteCount * 3 / 100
    let pages = mapByteCount / pageByteCount
    // A transaction also copies the pages on the way to what it changes, however few bytes it writes.
    return max(bytes / pageByteCount, min(384, 64 + pages / 10))
  }

  /// More variants of one key than this push out the oldest.
  static let mostVariantsOfOneKey = 128
}

/// `withUnsafeBytes` for a closure that throws `LMDBError`.
func withBytes<R>(
  of array: [UInt8], _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
) throws(LMDBError) -> R {
  try array.withUnsafeBufferPointer { (bytes) throws(LMDBError) in try body(UnsafeRawBufferPointer(bytes)) }
}

/// The key of `bodies`: which body, which of its chunks. Big endian, so that a body's chunks lie in order.
struct ChunkKey: Hashable {
  var bodyID: UInt64
  var index: UInt32
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

/// The key of `dates`: when stored, which record. Big endian, so that byte order is time order.
struct DateKey: Hashable {
  /// See ``OrderedTime``.
  var time: UInt64
  var rowID: UInt64
}

/// Twelve bytes: the body's ID and the chunk's number, big endian.
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

/// Sixteen bytes: ordered time and row ID, big endian.
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

/// `withUnsafeBytes(of:)` for a closure that throws `LMDBError`.
func withRawBytes<T, R>(
  of value: T, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
) throws(LMDBError) -> R {
  try withUnsafeBytes(of: value) { (bytes) throws(LMDBError) in try body(bytes) }
}
