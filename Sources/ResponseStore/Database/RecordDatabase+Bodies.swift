import FoundationEssentials
import Glibc
import LMDB

/// The chunks of bodies, and the bodies that several transactions write or delete.
extension RecordDatabase {
  /// Returns a chunk of a body in the map, valid until the transaction ends; nil if it is missing or has a wrong size.
  func chunk(
    _ index: Int, of bodyID: UInt64, _ chunks: ChunkLayout, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> UnsafeRawBufferPointer? {
    let key = ChunkKey(bodyID: bodyID, index: UInt32(truncatingIfNeeded: index))
    let chunk = try bodies.withValue(for: key, in: transaction) { (chunk) throws(LMDBError) in
      chunk.withUnsafeBytes { $0 }
    }
    guard let chunk, chunk.count == chunks.range(index).count else { return nil }
    return chunk
  }

  /// Calls `body` with the number, the key and the bytes of each chunk in a range of a body, in order. All are in the
  /// map, and valid until the transaction ends.
  ///
  /// - Returns: False if a chunk is missing or has a wrong size.
  func forEachChunk(
    _ indices: ClosedRange<Int>, of bodyID: UInt64, _ chunks: ChunkLayout, in transaction: borrowing ReadTransaction,
    _ body: (_ index: Int, _ key: UnsafeRawBufferPointer, _ chunk: UnsafeRawBufferPointer) -> Void
  ) throws(LMDBError) -> Bool {
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var isFound = try cursor.seek(to: ChunkKey(bodyID: bodyID, index: UInt32(truncatingIfNeeded: indices.lowerBound)))
      for index in indices {
        if isFound, index > indices.lowerBound { isFound = try cursor.next() }
        guard isFound, let key = cursor.key, key.bodyID == bodyID, Int(key.index) == index else { return false }
        let keyBytes = try cursor.withKey { (key) throws(LMDBError) in key.withUnsafeBytes { $0 } }
        let chunk = try cursor.withValue { (chunk) throws(LMDBError) in chunk.withUnsafeBytes { $0 } }
        guard chunk.count == chunks.range(index).count else { return false }
        body(index, keyBytes, chunk)
      }
      return true
    }
  }

  /// Calls `body` with the number and the bytes of each chunk of a body, in order, and then with those of the rows of
  /// its table, until it returns false.
  func forEachChunk(
    ofBody bodyID: UInt64, in transaction: borrowing some Transaction & ~Copyable,
    _ body: (UInt32, UnsafeRawBufferPointer) throws(LMDBError) -> Bool
  ) throws(LMDBError) {
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: ChunkKey(bodyID: bodyID, index: 0))
      while more {
        let key = try cursor.checkedKey()
        guard key.bodyID == bodyID else { return }
        more = try cursor.withValue { (chunk) throws(LMDBError) in
          try chunk.withUnsafeBytes { (chunk) throws(LMDBError) in try body(key.index, chunk) }
        }
        if more { more = try cursor.next() }
      }
    }
  }

  /// Writes the chunks of a body and the table of its blocks.
  func putChunks(
    of body: Data, head: RecordHeader, bodyID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let chunks = head.layout { self.chunks(of: $0) }
    for index in 0..<chunks.count {
      let part = chunks.range(index)
      try bodies.reserve(
        byteCount: part.count, for: ChunkKey(bodyID: bodyID, index: UInt32(index)), in: transaction, mode: .append
      ) { destination in
        body.withUnsafeBytes { source in
          destination.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[part]))
        }
      }
    }
    guard body.count > BlockTable.thresholdByteCount else { return }
    var checksum = BodyChecksum()
    body.withUnsafeBytes { checksum.append($0) }
    _ = checksum.digest()
    for row in 0..<BlockTable.rowCount(bodyByteCount: body.count) {
      let blocks = checksum.takeBlocks(min(BlockTable.blockCountPerRow, checksum.blocks.count))
      try putTableRow(row, blocks[...], of: bodyID, in: transaction)
    }
  }

  /// Writes a row of the table of a body's blocks.
  func putTableRow(
    _ row: Int, _ blocks: ArraySlice<UInt64>, of bodyID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let key = BlockTable.key(bodyID: bodyID, row: row)
    try bodies.reserve(byteCount: blocks.count * 8, for: key, in: transaction) { destination in
      for (index, block) in blocks.enumerated() {
        destination.storeBytes(of: block.littleEndian, toByteOffset: index * 8, as: UInt64.self)
      }
    }
  }

  /// Deletes the chunks and the table of a body, or as many rows as free about `pageCount` pages. Returns true if none
  /// is left.
  @discardableResult
  func removeChunks(
    of bodyID: UInt64, pageCount limit: Int = .max, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    var keys: [ChunkKey] = []
    var pageCount = 0
    var isComplete = true
    try forEachChunk(ofBody: bodyID, in: transaction) { (index, chunk) in
      isComplete = pageCount < limit
      guard isComplete else { return false }
      keys.append(ChunkKey(bodyID: bodyID, index: index))
      pageCount += self.pageCount(ofChunk: chunk.count)
      return true
    }
    try bodies.removeEach(of: keys, in: transaction)
    return isComplete
  }

  // MARK: In several transactions

  /// Returns the ID of a new body, and adds an ``UnfinishedBody`` for it, which
  /// ``insert(_:_:in:body:writtenBodyID:replacing:changes:in:)`` removes.
  func beginBody(changes: inout RecordChanges, in transaction: borrowing WriteTransaction) throws(LMDBError) -> UInt64 {
    let bodyID = changes.counters.takeNumber()
    try meta.put(UnfinishedBody.encode(processID: getpid()), for: MetaKey.partial(bodyID), in: transaction)
    return bodyID
  }

  /// Records a body as orphaned, so that later transactions delete it.
  func addOrphanedBody(_ bodyID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try meta.put(UnfinishedBody.encode(processID: 0), for: MetaKey.partial(bodyID), in: transaction)
    orphanedBodies.note(bodyID)
  }

  /// Deletes some chunks of an orphaned body. Returns true if none is left, or if the body has a record header after
  /// all.
  func removeOrphanedBody(
    _ bodyID: UInt64, pageCount: Int, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    guard try meta.contains(MetaKey.partial(bodyID), in: transaction) else { return true }
    guard try removeChunks(of: bodyID, pageCount: pageCount, in: transaction) else { return false }
    return try meta.remove(MetaKey.partial(bodyID), in: transaction)
  }
}
