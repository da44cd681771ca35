import CacheModel
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
    return reader.copyBytes(range, of: location.bodyID, location.chunks)
  }
}

extension Reader {
  /// See ``ResponseStore/hasUnverifiedBody(_:beyond:where:)``.
  func hasUnverifiedBody(_ key: RequestKey, beyond limit: Int, where matches: (VaryKey) -> Bool) -> Bool {
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

  fileprivate func copyBytes(_ range: Range<Int>, of bodyID: UInt64, _ chunks: ChunkLayout) -> Data? {
    guard isUsable, !range.isEmpty else { return range.isEmpty ? Data() : nil }
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) -> Data? in
        var copy = Data(capacity: range.count)
        for index in chunks.indices(of: range) {
          guard let chunk = try database.chunk(index, of: bodyID, chunks, in: transaction) else { return nil }
          let start = chunks.range(index).lowerBound
          let part = range.clamped(to: chunks.range(index))
          copy.append(
            contentsOf: UnsafeRawBufferPointer(rebasing: chunk[part.lowerBound - start..<part.upperBound - start]))
          // Otherwise a large body would become resident memory of this process.
          database.environment.releaseResidentPages(of: chunk, in: transaction)
        }
        return copy
      }
    } catch {
      context.readFailed(error)
      return nil
    }
  }
}
