import FoundationEssentials
import Glibc
import LMDB

/// Bodies larger than a batch: written over several transactions, so that none dirties more than a batch; the head, which
/// makes the response visible, comes with the last. What an attempt leaves behind is found by a row in `meta` and swept.
extension ResponseStore {
  func writeLarge(_ staged: StagedResponse, byteLimit: Int) throws(LMDBError) -> Outcome {
    var rowID: UInt64 = 0
    do throws(LMDBError) {
      return try writeLarge(staged, byteLimit: byteLimit, rowID: &rowID)
    } catch {
      if rowID != 0 { maintenance.withLock { state in _ = state.lostRowIDs.insert(rowID) } }
      // At once, since the pieces take room that the next attempt needs.
      do throws(LMDBError) {
        _ = try sweepLostBodies()
      } catch {
        // The disk is full, or worse; the eviction thread goes on trying.
      }
      throw error
    }
  }

  private func writeLarge(
    _ staged: StagedResponse, byteLimit: Int, rowID: inout UInt64
  ) throws(LMDBError) -> Outcome {
    let chunks = staged.head.layout { file.chunks(of: $0) }
    let (chunkCount, chunkByteCount) = (chunks.count, chunks.range(0).count)
    let chunksPerTransaction = max(1, byteLimit / max(chunkByteCount, 1))
    var next = 0
    while next < chunkCount, isStillWanted(staged) {
      let range = next..<min(next + chunksPerTransaction, chunkCount)
      try makeRoom(pageCount: range.count * file.pageCount(ofChunk: chunkByteCount) + 16)
      let known = rowID
      rowID = try commit { (transaction) throws(LMDBError) -> UInt64 in
        let rowID = try known != 0 ? known : reserveRow(in: transaction)
        try file.putChunks(range, of: staged.bodyApart, head: staged.head, rowID: rowID, in: transaction)
        return rowID
      }
      next = range.upperBound
    }
    let isComplete = next == chunkCount
    try makeRoom(pageCount: file.pageCount(ofChunk: staged.head.bytes.count) + 16)
    let reserved = rowID
    return try commit { (transaction) throws(LMDBError) in
      var outcome = Outcome()
      var counters = try file.counters(in: transaction)
      if isComplete, isStillWanted(staged) {
        counters.knownRemoval = max(counters.knownRemoval, removalLog.sequence)
        try write(staged, rowID: reserved, counters: &counters, outcome: &outcome, in: transaction)
      } else {
        try file.removeChunks(of: reserved, in: transaction)
        outcome.dropped += 1
        try removeWhatItReplaces(staged, counters: &counters, outcome: &outcome, in: transaction)
      }
      try file.meta.remove(MetaKey.partial(reserved), in: transaction)
      try file.setCounters(counters, in: transaction)
      return outcome
    }
  }

  /// Takes a row number, and notes that chunks without a head are this process's.
  private func reserveRow(in transaction: borrowing WriteTransaction) throws(LMDBError) -> UInt64 {
    var counters = try file.counters(in: transaction)
    let rowID = counters.nextRowID
    counters.nextRowID += StorageFormat.rowIDStep
    try file.setCounters(counters, in: transaction)
    var writer = ByteWriter()
    writer.append(UInt64(getpid()))
    try file.meta.put(writer.bytes, for: MetaKey.partial(rowID), in: transaction)
    return rowID
  }

  // MARK: Lost pieces

  /// Notes the bodies whose writers are gone: while opening alone all of them, otherwise those of processes that are no
  /// more. Their row numbers are always new ones, so what is noted can be swept at any later time.
  func notePartialBodies(isAlone: Bool) throws(LMDBError) {
    let partial = try file.environment.read { (transaction) throws(LMDBError) in
      try partialBodies(in: transaction)
    }
    let lost = partial.filter { isAlone || Self.isDead($0.processID) }.map(\.rowID)
    maintenance.withLock { $0.lostRowIDs.formUnion(lost) }
  }

  /// Removes the chunks of one lost body; false if there is none.
  func sweepLostBodies() throws(LMDBError) -> Bool {
    guard let rowID = maintenance.withLock({ $0.lostRowIDs.first }) else { return false }
    try commit { (transaction) throws(LMDBError) in
      // Nothing to do for one whose head was committed after all.
      if try file.meta.remove(MetaKey.partial(rowID), in: transaction) {
        try file.removeChunks(of: rowID, in: transaction)
      }
    }
    maintenance.withLock { state in _ = state.lostRowIDs.remove(rowID) }
    return true
  }

  func partialBodies<T: Transaction & ~Copyable>(
    in transaction: borrowing T
  ) throws(LMDBError) -> [(rowID: UInt64, processID: Int32)] {
    var bodies: [(rowID: UInt64, processID: Int32)] = []
    try file.meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.partialPrefix)
      while more {
        guard let rowID = MetaKey.number(in: try cursor.checkedKey(), after: MetaKey.partialPrefix) else { return }
        let processID = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { bytes -> UInt64 in
            var reader = ByteReader(bytes)
            return reader.read(UInt64.self) ?? 0
          }
        }
        bodies.append((rowID, Int32(truncatingIfNeeded: processID)))
        more = try cursor.next()
      }
    }
    return bodies
  }

  /// Whether a process is surely no more. This one's own bodies may be under way.
  private static func isDead(_ processID: Int32) -> Bool {
    processID <= 0 || (kill(processID, 0) != 0 && errno == ESRCH)
  }
}
