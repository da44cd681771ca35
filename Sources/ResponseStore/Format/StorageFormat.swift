import LMDB

/// The version, the names and the sizes of the storage format.
///
/// The document `StorageFormat.md` explains them. Change both together, and raise the version.
package enum StorageFormat {
  /// The version in `meta`; data with another version is replaced.
  package static let version: UInt32 = 8

  static let bodiesTable = "bodies"
  static let datesTable = "dates"
  static let metaTable = "meta"
  /// The tables that the data has in every version.
  static let permanentTables = [bodiesTable, datesTable, metaTable]

  /// The maximum number of variants of a key. A further variant replaces the oldest.
  static let maximumVariantCountPerKey = 128
  /// The rule, as in `HTTPCaching`, by which variants that are replaced for this reason are counted and explained.
  static let tooManyVariantsRule = "too-many-variants"
}

/// The sizes of the storage format that follow from the capacity.
extension StorageFormat {
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

  /// Returns the number of pages that a data file needs on disk, even if most of its pages are free.
  ///
  /// LMDB's free list then takes 1/512 of the file's length, and a commit writes much of it again. A list that takes
  /// most of the capacity would displace every record. The smallest capacity leaves about 240 pages.
  static func minimumPageCount(filePageCount: Int) -> Int { 200 + filePageCount / 128 }

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

  /// Returns the number of reader slots in the lock file.
  ///
  /// The lock file takes 1/160 of the capacity, between 24 KiB and 256 KiB, because all of it takes disk space.
  static func readerSlotCount(capacityByteCount: Int) -> Int {
    LockFile.slotCount(byteCount: lockFileByteCount(capacityByteCount: capacityByteCount))
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
}
