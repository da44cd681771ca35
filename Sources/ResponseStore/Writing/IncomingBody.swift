import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB
import Synchronization

/// A body that is written to a store while it arrives, and becomes visible with
/// ``store(_:for:attachment:askedAt:by:)``.
///
/// Its bytes take disk space within the capacity at once. If this object is released before, they are deleted, and
/// after a `kill -9` other processes delete them, or the next one that opens the store.
///
/// `@unchecked Sendable`: `writer` is used by ``write(_:)`` and ``complete()``, whose callers call them one at a time.
package final class IncomingBody: @unchecked Sendable {
  private let store: ResponseStore
  private let writer: BodyWriter
  private let state = Mutex(State())

  private struct State {
    /// The bytes that are committed.
    var written: StoredBody.Location?
    /// Set when the body is complete.
    var checksum: UInt64?
    var hasFailed = false
  }

  init(in store: ResponseStore) {
    self.store = store
    writer = BodyWriter(store.context.database, space: store.space, evictor: store.evictor)
  }

  private var context: StoreContext { store.context }

  /// Appends the bytes of the pieces, in their order. Blocks while they are written.
  ///
  /// - Returns: False if the body cannot be stored, also for all later calls. The disk is full or failing, or there is
  ///   no space for this body: all bodies in progress may take half of the capacity, and those that began earlier have
  ///   precedence.
  package func write(_ pieces: [Data]) -> Bool {
    let byteCount = pieces.reduce(0) { $0 + $1.count }
    guard !state.withLock({ $0.hasFailed }), context.isUsable, !context.isForked, !context.hasFailed,
      context.database.makeWay(for: writer.claim, by: byteCount, limit: store.space.maximumBodyByteCount)
    else { return fail() }
    let isWritten = attempt { () throws(LMDBError) in
      try writer.append(pieces) ? true : nil
    } again: { () throws(LMDBError) in
      try writer.append([]) ? true : nil
    }
    guard isWritten != nil else { return fail() }
    state.withLock { $0.written = writer.writtenPart }
    return true
  }

  /// The number of bytes that can be read. Fewer than were written, until the body is finished.
  package var readableByteCount: Int { state.withLock { $0.written?.byteCount ?? 0 } }

  /// Reads bytes that were written; nil if they were removed meanwhile. May wait for the disk.
  package func read(_ range: Range<Int>) -> Data? {
    guard let written = state.withLock({ $0.written }), range.upperBound <= written.byteCount else { return nil }
    return store.reader.copyBytes(range, of: written, verifies: false)
  }

  /// Writes what is left. Blocks. Returns false if the body cannot be stored.
  package func complete() -> Bool {
    guard !state.withLock({ $0.hasFailed }), context.isUsable, !context.isForked else { return fail() }
    let finished = attempt { () throws(LMDBError) in
      try writer.finish()
    } again: { () throws(LMDBError) in
      try writer.finish()
    }
    guard let finished else { return fail() }
    state.withLock { ($0.written, $0.checksum) = (finished.location, finished.checksum) }
    return true
  }

  /// Stores the response with this body, which is complete, like
  /// ``ResponseStore/store(_:for:attachment:askedAt:waitsForSpace:)``. Does not block.
  ///
  /// - Parameter response: The response; its body is not used.
  package func store(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]?, askedAt token: RemovalToken?,
    by holder: (any CopyHolder)?
  ) -> StorageOutcome {
    let body = state.withLock { state in
      state.checksum.flatMap { checksum in state.written.map { (location: $0, checksum: checksum) } }
    }
    return store.intake.store(response, for: key, attachment: attachment, body: body, askedAt: token, by: holder)
  }

  private func fail() -> Bool {
    state.withLock { $0.hasFailed = true }
    return false
  }

  /// Runs `work`, and `again` while the database is full and space can be freed. Nil if that fails.
  ///
  /// Several times, because other bodies may take the freed pages first, and readers may hold them.
  private func attempt<R>(_ work: () throws(LMDBError) -> R?, again: () throws(LMDBError) -> R?) -> R? {
    for number in 0... {
      do throws(LMDBError) {
        return try number == 0 ? work() : again()
      } catch {
        let mayRecover = error.code == .mapFull && number < Self.maximumRecoveryCount
        if mayRecover, store.evictor.recoverFromMapFull() { continue }
        store.writer.handleFailure(error)
        return nil
      }
    }
    return nil
  }

  private static let maximumRecoveryCount = 8
}

extension ResponseStore {
  /// Begins a body that is written while it arrives.
  package func makeIncomingBody() -> IncomingBody { IncomingBody(in: self) }
}
