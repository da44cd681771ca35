public import FoundationEssentials
import HTTPCaching
import LMDB

/// The body of a stored response, read from the store in pieces.
///
/// It pins no snapshot and no page. If the response is evicted, removed or replaced, the rest of the body cannot be
/// read. All bytes belong to the response that was looked up, whose checksum was verified before.
///
/// Safe from any thread.
public final class StoredBody: Sendable {
  /// The rows of a body in `bodies`. No other body ever has the same ID.
  struct Location: Sendable {
    let byteCount: Int
    let bodyID: UInt64
    let chunks: ChunkLayout
  }

  /// The body's size in bytes.
  public var byteCount: Int { location.byteCount }
  let location: Location
  private let reader: Reader
  /// Keeps the store open.
  private let store: ResponseStore
  /// The location of the map at the last read.
  private let residentPages = Monitor(ResidentPages())

  init(_ location: Location, in store: ResponseStore) {
    self.location = location
    self.store = store
    reader = store.reader
  }

  /// Copies a part of the body. Returns nil if the response was removed or replaced, or cannot be read.
  ///
  /// May wait for the disk.
  ///
  /// - Parameter range: A range within the body; any other traps. Use at most a few hundred kilobytes: during the copy,
  ///   no freed page can be reused.
  public func read(_ range: Range<Int>) -> Data? {
    guard range.lowerBound >= 0, range.upperBound <= byteCount else { Trap.outsideBody(range, byteCount) }
    var pages = residentPages.withLock { $0 }
    defer { residentPages.withLock { $0 = pages } }
    return reader.copyBytes(range, of: location.bodyID, location.chunks, releasing: &pages)
  }
}

extension Reader {
  /// See ``ResponseStore/lookup(_:leavingBodiesBeyond:where:)``.
  ///
  /// - Parameter store: The store, which the body keeps open.
  func lookup(
    _ key: RequestKey, leavingBodiesBeyond limit: Int, in store: ResponseStore, where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    guard isUsable else { return nil }
    let found =
      pendingWrites.mightContain(key)
      ? findPendingOrOnDisk(key, leaving: (limit, store), where: matches)
      : findInPieces(key, above: nil, limit: limit, in: store, where: matches)
    count(isHit: found != nil)
    return found
  }

  /// Finds the best record of a key on disk, and leaves a large body there.
  ///
  /// - Parameters:
  ///   - pending: The rank of the best pending write; only a higher record is returned.
  ///   - pendingCount: The number of pending variants of the key.
  func findInPieces(
    _ key: RequestKey, above pending: VariantRank?, besides pendingCount: Int = 0, limit: Int,
    in store: ResponseStore, where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    do throws(LMDBError) {
      return try findRecordInPieces(
        key, above: pending, besides: pendingCount, limit: limit, in: store, where: matches)
    } catch {
      context.readFailed(error)
      return nil
    }
  }

  /// Returns an update of a record whose body is in the store, with the body; nil if the record was removed since.
  func copy(_ update: PendingWrite, _ body: StoredBody.Location) -> StoredResponse? {
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) -> StoredResponse? in
        // Allocate memory only if the body exists.
        guard try chunk(body.chunks.count - 1, of: body.bodyID, body.chunks, in: transaction) != nil else { return nil }
        let record = update.head.layout {
          CopiedRecord($0, rowID: update.rowID, removalSequence: update.removalSequence, hasOthers: true)
        }
        for index in 0..<body.chunks.count {
          guard let chunk = try chunk(index, of: body.bodyID, body.chunks, in: transaction) else { return nil }
          (record.bodyMemory + body.chunks.range(index).lowerBound)
            .copyMemory(from: chunk.baseAddress!, byteCount: chunk.count)
        }
        return StoredResponse(record)
      }
    } catch {
      context.readFailed(error)
      return nil
    }
  }

  /// Whether ``lookup(_:leavingBodiesBeyond:in:where:)`` would read a whole body. Does not count as a lookup.
  func hasUnverifiedBody(
    _ key: RequestKey, beyond limit: Int, where matches: (VaryKey) -> Bool
  ) -> Bool {
    guard isUsable else { return false }
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) in
        var isOutdated = false
        let selected = try selectRecord(key, above: nil, in: transaction, isOutdated: &isOutdated, where: matches)
        guard let selected, selected.head.isReadInPieces(beyond: limit) else { return false }
        return !isVerified(selected.head, rowID: selected.rowID)
      }
    } catch {
      return false
    }
  }

  private enum LookupResult {
    case nothing
    case found(StoredResponse)
    /// The body must be compared with its checksum first.
    case unverified(RecordInPieces)
  }

  /// Looks a response up on disk, and leaves a large body there.
  ///
  /// - Parameter countsUse: False for a lookup that must not affect eviction.
  func findRecordInPieces(
    _ key: RequestKey, above pending: VariantRank? = nil, besides pendingCount: Int = 0, limit: Int,
    in store: ResponseStore, countsUse: Bool = true, where matches: (VaryKey) -> Bool
  ) throws(LMDBError) -> StoredResponse? {
    // The checksum of a record whose body was just verified. It is looked up again, because it may have been removed in
    // between.
    var intactChecksum: UInt64?
    for _ in 0..<4 {
      var isOutdated = false
      let look = try read { (transaction) throws(LMDBError) -> LookupResult in
        let choice = try selectRecord(key, above: pending, in: transaction, isOutdated: &isOutdated, where: matches)
        guard var selected = choice else { return .nothing }
        if pendingCount > 0 { selected.hasOthers = true }
        if countsUse { recordUse(of: selected) }
        guard selected.head.isReadInPieces(beyond: limit) else {
          guard let record = try copy(selected, in: transaction) else {
            reportCorruptRecord(selected.rowID)
            return .nothing
          }
          return .found(StoredResponse(record))
        }
        let record = RecordInPieces(selected, in: store)
        let isIntact = intactChecksum == selected.head.checksum || isVerified(selected.head, rowID: selected.rowID)
        guard isIntact else { return .unverified(record) }
        if selected.isSoftPurged {
          record.head.endFreshness(at: softPurgeTime(of: selected.head, rowID: selected.rowID, in: transaction))
        }
        return .found(StoredResponse(record))
      }
      switch look {
      case .found(let response): return response
      case .nothing: if !isOutdated { return nil }
      case .unverified(let record):
        switch isIntact(record) {
        case true?: intactChecksum = markVerified(record)
        case false?:
          reportCorruptRecord(record.head.origin.rowID)
          return nil
        // The record was replaced or evicted. Look again.
        case nil: break
        }
      }
    }
    return nil
  }

  /// Whether a body matches its checksum; nil if the record was replaced or evicted.
  ///
  /// Each piece is read in its own transaction, because a long one would pin freed pages.
  private func isIntact(_ record: RecordInPieces) -> Bool? {
    guard record.head.withHead({ $0.hasRightChecksum }) else { return false }
    let checksum = XXHash.Stream()
    var start = 0
    while start < record.body.byteCount {
      let end = min(start + Self.comparedPieceByteCount, record.body.byteCount)
      guard let piece = record.body.read(start..<end) else { return nil }
      piece.withUnsafeBytes { checksum.append($0) }
      start = end
    }
    return record.head.withHead { $0.bodyChecksum } == checksum.digest
  }

  /// Records that header and body match their checksums. Returns the header's checksum.
  private func markVerified(_ record: RecordInPieces) -> UInt64 {
    let checksum = record.head.withHead { $0.checksum }
    verified.insert(rowID: record.head.origin.rowID, checksum: checksum)
    return checksum
  }

  private static let comparedPieceByteCount = 256 << 10

  fileprivate func copyBytes(
    _ range: Range<Int>, of bodyID: UInt64, _ chunks: ChunkLayout, releasing pages: inout ResidentPages
  ) -> Data? {
    guard isUsable, !range.isEmpty else { return range.isEmpty ? Data() : nil }
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) -> Data? in
        var copy = Data(capacity: range.count)
        for index in chunks.indices(of: range) {
          guard let chunk = try chunk(index, of: bodyID, chunks, in: transaction) else { return nil }
          let start = chunks.range(index).lowerBound
          let part = range.clamped(to: chunks.range(index))
          copy.append(
            contentsOf: UnsafeRawBufferPointer(rebasing: chunk[part.lowerBound - start..<part.upperBound - start]))
          // Otherwise a large body would become resident memory of this process.
          pages.release(chunk, of: database.environment, transaction)
        }
        return copy
      }
    } catch {
      context.readFailed(error)
      return nil
    }
  }
}

/// A record whose header was copied, and whose body is still in the store.
final class RecordInPieces: Sendable {
  let head: CopiedRecord
  let body: StoredBody

  init(_ selected: Reader.SelectedRecord, in store: ResponseStore) {
    let layout = selected.head
    head = CopiedRecord(
      headOf: layout, rowID: selected.rowID, removalSequence: selected.removalSequence, hasOthers: selected.hasOthers)
    body = StoredBody(
      StoredBody.Location(
        byteCount: layout.bodyByteCount, bodyID: layout.bodyID(ofRow: selected.rowID),
        chunks: store.context.database.chunks(of: layout)),
      in: store)
  }

  /// Creates the record that an update will make of a record whose body is in the store.
  init(_ update: PendingWrite, _ location: StoredBody.Location, in store: ResponseStore) {
    head = update.head.layout {
      CopiedRecord(headOf: $0, rowID: update.rowID, removalSequence: update.removalSequence, hasOthers: true)
    }
    body = StoredBody(location, in: store)
  }
}

extension RecordHeaderView {
  /// Whether the body stays in the store. The body of an incomplete response is read at once, to be combined with
  /// others.
  fileprivate func isReadInPieces(beyond limit: Int) -> Bool {
    !isBodyInline && bodyByteCount > limit && !freshness.flags.contains(.incomplete)
  }
}
