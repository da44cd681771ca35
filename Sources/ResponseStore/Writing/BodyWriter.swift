import FoundationEssentials
import LMDB

/// Writes the rows of one body in several transactions, none of which changes more pages than a batch.
///
/// The bytes may arrive over any length of time. The record header, which is written last, makes the body visible.
/// Until then, an ``UnfinishedBody`` in `meta` identifies the body, so that any process can delete it.
///
/// Not safe for concurrent calls.
final class BodyWriter {
  private let space: DiskSpace
  private let evictor: Evictor
  private let database: RecordDatabase
  private let chunkByteCount: Int
  private var checksum = BodyChecksum()
  /// The bytes that are not committed, in their order.
  private var rest: [Data] = []
  private var restByteCount = 0
  /// The numbers of committed chunks, and of committed rows of the ``BlockTable``.
  private var chunkCount = 0
  private var tableRowCount = 0
  /// The number of chunks whose pages were released, and how many more there must be for the next time.
  private var releasedChunkCount = 0
  private static let releasedAtOnceCount = 128
  /// Set by the first transaction.
  private(set) var claim: BodyClaim?

  init(_ database: RecordDatabase, space: DiskSpace, evictor: Evictor, isInSinglePages: Bool = false) {
    (self.database, self.space, self.evictor) = (database, space, evictor)
    chunkByteCount = isInSinglePages ? database.singlePageChunkByteCount : database.chunkByteCount
  }

  /// The number of bytes that are committed.
  var writtenByteCount: Int { chunkCount * chunkByteCount }

  /// Whether the body still exists: it was not revoked, and no other process has deleted it in the belief that this
  /// process is dead.
  private func isInProgress(in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard let claim else { return true }
    guard !claim.isRevoked else { return false }
    return try database.meta.contains(MetaKey.partial(claim.bodyID), in: transaction)
  }

  /// Appends the bytes of the pieces, and commits the chunks that they complete. Pass at most about as many bytes as a
  /// batch has.
  ///
  /// - Returns: False if the body was revoked or deleted.
  func append(_ pieces: [Data]) throws(LMDBError) -> Bool {
    for piece in pieces {
      piece.withUnsafeBytes { checksum.append($0) }
      restByteCount += piece.count
    }
    rest += pieces
    return try commit(chunkSizes: Array(repeating: chunkByteCount, count: restByteCount / chunkByteCount))
  }

  /// Forgets the first bytes of the rest, which are committed.
  private func dropRest(_ byteCount: Int) {
    restByteCount -= byteCount
    var left = byteCount
    while let first = rest.first, left >= first.count {
      left -= first.count
      rest.removeFirst()
    }
    if left > 0 { rest[0] = rest[0].dropFirst(left) }
  }

  /// Commits the last chunks and the rest of the ``BlockTable``.
  ///
  /// - Returns: The place of the body and its checksum; nil if the body was revoked or deleted.
  func finish() throws(LMDBError) -> (location: StoredBody.Location, checksum: UInt64)? {
    let digest = checksum.digest()
    let byteCount = checksum.byteCount
    let chunks = ChunkLayout(
      bodyByteCount: byteCount, chunkByteCount: chunkByteCount, pageByteCount: database.pageByteCount)
    let sizes = (chunkCount..<chunks.count).map { chunks.range($0).count }
    guard try commit(chunkSizes: sizes, endsTable: byteCount > BlockTable.thresholdByteCount) else { return nil }
    guard let claim, claim.complete() else { return nil }
    return (
      StoredBody.Location(
        byteCount: byteCount, bodyID: claim.bodyID, chunks: chunks, claim: claim),
      digest
    )
  }

  /// Returns the place of the bytes that are committed.
  var writtenPart: StoredBody.Location? {
    guard let claim else { return nil }
    let chunks = ChunkLayout(
      bodyByteCount: writtenByteCount, chunkByteCount: chunkByteCount, pageByteCount: database.pageByteCount)
    return StoredBody.Location(
      byteCount: writtenByteCount, bodyID: claim.bodyID, chunks: chunks, claim: claim)
  }

  /// Commits chunks of these sizes, and the rows of the ``BlockTable`` that are complete.
  ///
  /// - Parameter endsTable: Whether to commit the last row, too, which may be shorter.
  private func commit(chunkSizes: [Int], endsTable: Bool = false) throws(LMDBError) -> Bool {
    let rowByteCount = BlockTable.blockCountPerRow * 8
    let rowCount =
      endsTable
      ? (checksum.blocks.count + BlockTable.blockCountPerRow - 1) / BlockTable.blockCountPerRow
      : checksum.blocks.count / BlockTable.blockCountPerRow
    guard !chunkSizes.isEmpty || rowCount > 0 else { return true }
    let pageCount =
      chunkSizes.count * database.pageCount(ofChunk: chunkByteCount)
      + rowCount * database.pageCount(ofChunk: rowByteCount) + 16
    try evictor.ensureFreePages(pageCount, entryCount: 1)
    let isWritten: Bool
    do throws(LMDBError) {
      isWritten = try space.commit(changesRecords: false) { (transaction) throws(LMDBError) -> Bool in
        guard try isInProgress(in: transaction) else { return false }
        let bodyID = try beginIfNeeded(in: transaction)
        try putChunks(chunkSizes, bodyID: bodyID, in: transaction)
        try putTable(rowCount: rowCount, bodyID: bodyID, in: transaction)
        return true
      }
    } catch {
      // If nothing is committed, the next body may get the same ID.
      if chunkCount == 0, tableRowCount == 0 { claim = nil }
      throw error
    }
    guard isWritten, let claim else { return false }
    claim.noteWritten()
    let byteCount = chunkSizes.reduce(0, +)
    chunkCount += chunkSizes.count
    tableRowCount += rowCount
    dropRest(byteCount)
    _ = checksum.takeBlocks(min(rowCount * BlockTable.blockCountPerRow, checksum.blocks.count))
    database.bodiesInProgress.add(byteCount, to: claim.bodyID)
    releaseResidentPages()
    return true
  }

  /// Releases the pages of chunks that the kernel maps with pages of the tree when a transaction reads these.
  private func releaseResidentPages() {
    guard chunkCount - releasedChunkCount >= Self.releasedAtOnceCount else { return }
    do throws(LMDBError) {
      try database.environment.read { (transaction) throws(LMDBError) in
        guard let part = writtenPart else { return }
        var chunks: [UnsafeRawBufferPointer] = []
        _ = try database.forEachChunk(
          releasedChunkCount...chunkCount - 1, of: part.bodyID, part.chunks, in: transaction
        ) { (_, _, chunk) in
          chunks.append(chunk)
        }
        database.environment.releaseResidentPages(of: chunks, in: transaction)
      }
    } catch {
      // It is only about memory. A failure that lasts ends the next commit.
    }
    releasedChunkCount = chunkCount
  }

  private func beginIfNeeded(in transaction: borrowing WriteTransaction) throws(LMDBError) -> UInt64 {
    if let claim { return claim.bodyID }
    let bodyID = try database.change(in: transaction) { (changes) throws(LMDBError) in
      try database.beginBody(changes: &changes, in: transaction)
    }
    // Before the commit shows the body to other processes.
    claim = BodyClaim(bodyID, in: database)
    return bodyID
  }

  private func putChunks(
    _ sizes: [Int], bodyID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var (index, offset) = (0, 0)
    for (chunk, size) in sizes.enumerated() {
      let key = ChunkKey(bodyID: bodyID, index: UInt32(chunkCount + chunk))
      try database.bodies.reserve(byteCount: size, for: key, in: transaction, mode: .append) { destination in
        var filled = 0
        while filled < size {
          let part = rest[index].dropFirst(offset).prefix(size - filled)
          part.copyBytes(to: UnsafeMutableRawBufferPointer(rebasing: destination[filled...]))
          (filled, offset) = (filled + part.count, offset + part.count)
          if offset == rest[index].count { (index, offset) = (index + 1, 0) }
        }
      }
    }
  }

  private func putTable(
    rowCount: Int, bodyID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    for row in 0..<rowCount {
      let first = row * BlockTable.blockCountPerRow
      let blocks = checksum.blocks[first..<min(first + BlockTable.blockCountPerRow, checksum.blocks.count)]
      try database.putTableRow(tableRowCount + row, blocks, of: bodyID, in: transaction)
    }
  }
}
