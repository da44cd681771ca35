import CacheModel

/// The rows of `bodies` with the checksums of a large body's blocks.
///
/// A reader of a range then verifies the blocks that it reads, and no others. The table itself has a checksum, which is
/// the body's checksum in the record header.
enum BlockTable {
  /// Bodies of more bytes have a table.
  static let thresholdByteCount = 1 << 20
  /// A body is divided into blocks of this size, independently of its chunks.
  static let blockByteCount = 64 << 10
  /// The number of checksums in a row. A full row fills four pages of 4 KiB.
  static let blockCountPerRow = 2046

  /// Returns the number of rows of the table of a body; 0 if it has none.
  static func rowCount(bodyByteCount: Int) -> Int {
    guard bodyByteCount > thresholdByteCount else { return 0 }
    return (blockCount(bodyByteCount: bodyByteCount) + blockCountPerRow - 1) / blockCountPerRow
  }

  static func blockCount(bodyByteCount: Int) -> Int { (bodyByteCount + blockByteCount - 1) / blockByteCount }

  /// Returns the key of a row. It is above the keys of the body's chunks.
  static func key(bodyID: UInt64, row: Int) -> ChunkKey {
    ChunkKey(bodyID: bodyID, index: firstIndex + UInt32(truncatingIfNeeded: row))
  }

  /// Returns checksums in a row; nil if the row does not have them.
  static func checksums(_ row: UnsafeRawBufferPointer, _ range: Range<Int>) -> [UInt64]? {
    guard range.upperBound * 8 <= row.count else { return nil }
    return range.map { UInt64(littleEndian: row.loadUnaligned(fromByteOffset: $0 * 8, as: UInt64.self)) }
  }

  /// Whether a key is that of a row of a table, and not of a chunk.
  static func contains(_ key: ChunkKey) -> Bool { key.index >= firstIndex }

  private static let firstIndex: UInt32 = 1 << 31
}

/// The checksums of a body's blocks and the checksum of the body, computed while the bytes arrive.
struct BodyChecksum: ~Copyable {
  /// The checksums of the blocks that are complete and were not taken.
  private(set) var blocks: [UInt64] = []
  private let block = XXHash.Stream()
  private let table = XXHash.Stream()
  private let plain = XXHash.Stream()
  private var blockByteCount = 0
  private(set) var byteCount = 0

  /// Returns the checksum of a body in memory.
  static func digest(of body: UnsafeRawBufferPointer) -> UInt64 {
    guard body.count > BlockTable.thresholdByteCount else { return XXHash.digest64(body) }
    var checksum = BodyChecksum()
    checksum.append(body)
    return checksum.digest()
  }

  mutating func append(_ bytes: UnsafeRawBufferPointer) {
    if byteCount <= BlockTable.thresholdByteCount { plain.append(bytes) }
    byteCount += bytes.count
    var rest = bytes[...]
    while !rest.isEmpty {
      let part = rest.prefix(BlockTable.blockByteCount - blockByteCount)
      rest = rest.dropFirst(part.count)
      block.append(UnsafeRawBufferPointer(rebasing: part))
      blockByteCount += part.count
      if blockByteCount == BlockTable.blockByteCount { endBlock() }
    }
  }

  /// Returns the checksum of the body. Call this after the last bytes.
  mutating func digest() -> UInt64 {
    guard byteCount > BlockTable.thresholdByteCount else { return plain.digest }
    if blockByteCount > 0 { endBlock() }
    return table.digest
  }

  /// Returns the first checksums of blocks, and removes them.
  mutating func takeBlocks(_ count: Int) -> [UInt64] {
    defer { blocks.removeFirst(count) }
    return Array(blocks.prefix(count))
  }

  private mutating func endBlock() {
    let checksum = block.digest
    blocks.append(checksum)
    withUnsafeBytes(of: checksum.littleEndian) { table.append($0) }
    block.reset()
    blockByteCount = 0
  }
}
