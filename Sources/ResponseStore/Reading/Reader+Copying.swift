import CacheModel
import FoundationEssentials
import LMDB

/// Copies of records out of the map, and their verification.
extension Reader {
  /// Copies a record, and verifies the copy if necessary. Returns nil if the record is corrupt.
  func copy(
    _ selected: SelectedRecord, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> StoredResponse? {
    let (rowID, head) = (selected.rowID, selected.head)
    let copy = try copyBody(head.bodyID(ofRow: rowID), database.chunks(of: head), in: transaction) {
      StoredResponse(
        copying: head, rowID: rowID, removalSequence: selected.removalSequence, hasOthers: selected.hasOthers)
    }
    guard let record = copy else { return nil }
    if !isVerified(head, rowID: rowID) {
      guard record.isIntact else { return nil }
      verified.insert(rowID: rowID, checksum: head.checksum)
    }
    // After the comparison, as the checksum does not match the changed copy.
    if selected.isSoftPurged { record.endFreshness(at: softPurgeTime(of: head, rowID: rowID, in: transaction)) }
    return record
  }

  /// Copies the chunks of a body into the record that `allocate` returns. Returns nil if one is missing.
  @inline(__always)
  func copyBody(
    _ bodyID: UInt64, _ chunks: ChunkLayout, in transaction: borrowing ReadTransaction,
    to allocate: () -> StoredResponse
  ) throws(LMDBError) -> StoredResponse? {
    // A corrupt header may claim any size. Allocate memory only if the last chunk exists.
    var last: UnsafeRawBufferPointer?
    if chunks.count > 0 {
      last = try database.chunk(chunks.count - 1, of: bodyID, chunks, in: transaction)
      if last == nil { return nil }
    }
    let record = allocate()
    guard chunks.count > 0, let memory = record.bodyMemory else { return record }
    for index in 0..<chunks.count {
      let isLast = index == chunks.count - 1
      guard let chunk = isLast ? last : try database.chunk(index, of: bodyID, chunks, in: transaction) else {
        return nil
      }
      (memory + chunks.range(index).lowerBound).copyMemory(from: chunk.baseAddress!, byteCount: chunk.count)
    }
    return record
  }

  /// Returns the time of the earliest soft removal that covers a record and has not marked it yet.
  ///
  /// Reads the tombstones again, because every hit would pay for keeping the time with the record. If so many removals
  /// have come since that this one is forgotten, or the tombstones cannot be read, the response has been stale forever.
  @inline(never)
  func softPurgeTime(
    of head: RecordHeaderView, rowID: UInt64, in transaction: borrowing ReadTransaction
  ) -> Date {
    do throws(LMDBError) {
      if case .stale(let date) = try removals.activeTombstones(in: transaction).effect(rowID: rowID, head) {
        return date
      }
    } catch {
      // As if it were forgotten.
    }
    return .distantPast
  }

  /// Copies the header of a record whose body stays in the store.
  ///
  /// - Parameters:
  ///   - isIntact: Whether the body was verified just now.
  ///   - unverified: Set to the body if it must be verified first.
  @inline(never)
  func copyHead(
    of selected: SelectedRecord, _ store: ResponseStore, isIntact: Bool, in transaction: borrowing ReadTransaction,
    unverified: inout StoredBody?
  ) -> StoredResponse {
    let (rowID, head) = (selected.rowID, selected.head)
    let location = StoredBody.Location(
      byteCount: head.bodyByteCount, bodyID: head.bodyID(ofRow: rowID), chunks: database.chunks(of: head), rowID: rowID
    )
    let record = StoredResponse(
      copying: head, rowID: rowID, removalSequence: selected.removalSequence, hasOthers: selected.hasOthers,
      storedBody: StoredResponse.BodyInStore(location, in: store))
    if !isIntact, !isVerified(head, rowID: rowID), !isTableVerified(head, rowID: rowID) {
      unverified = record.storedBody
    } else if selected.isSoftPurged {
      record.endFreshness(at: softPurgeTime(of: head, rowID: rowID, in: transaction))
    }
    return record
  }

  /// Returns the response of a pending write.
  ///
  /// The body of an update is in the store: it stays there or is copied. Returns nil if that record was removed since.
  func response(
    of write: PendingWrite, leaving large: (limit: Int, store: ResponseStore)?
  ) -> StoredResponse? {
    guard let body = write.storedBody else { return StoredResponse(write) }
    func record(_ storedBody: StoredResponse.BodyInStore? = nil) -> StoredResponse {
      write.head.layout { head in
        StoredResponse(
          copying: head, rowID: write.rowID, removalSequence: write.removalSequence, hasOthers: true,
          storedBody: storedBody, pendingWrite: write)
      }
    }
    if let large, body.byteCount > large.limit { return record(StoredResponse.BodyInStore(body, in: large.store)) }
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) in
        try copyBody(body.bodyID, body.chunks, in: transaction) { record() }
      }
    } catch {
      context.readFailed(error)
      return nil
    }
  }

  /// Whether a record whose body is in the store matches its checksums; nil if it was replaced or evicted.
  ///
  /// Of a large body only the table is read; each of its blocks is compared when it is read. Each piece is read in its
  /// own transaction, because a long one would pin freed pages.
  func isIntact(_ record: StoredResponse, _ body: StoredBody) throws(LMDBError) -> Bool? {
    guard record.withHead({ $0.hasRightChecksum }) else { return false }
    let checksum = XXHash.Stream()
    let rowCount = BlockTable.rowCount(bodyByteCount: body.byteCount)
    for row in 0..<rowCount {
      let key = BlockTable.key(bodyID: body.location.bodyID, row: row)
      let found: Void? = try read { (transaction) throws(LMDBError) in
        try database.bodies.withValue(for: key, in: transaction) { (value) throws(LMDBError) in
          value.withUnsafeBytes { checksum.append($0) }
        }
      }
      guard found != nil else { return nil }
    }
    if rowCount > 0 { return record.withHead { $0.bodyChecksum } == checksum.digest }
    var start = 0
    while start < body.byteCount {
      let end = min(start + Self.comparedPieceByteCount, body.byteCount)
      guard let piece = body.read(start..<end) else { return nil }
      piece.withUnsafeBytes { checksum.append($0) }
      start = end
    }
    return record.withHead { $0.bodyChecksum } == checksum.digest
  }

  private static let comparedPieceByteCount = 256 << 10
}

extension RecordHeaderView {
  /// Whether the body stays in the store.
  func isReadInPieces(beyond limit: Int) -> Bool { !isBodyInline && bodyByteCount > limit }
}
