import FoundationEssentials
import Glibc
import LMDB

/// Bodies larger than a batch: written over several transactions, so that none dirties more than a batch; the head, which
/// makes the response visible, comes with the last. What an attempt leaves behind is found by a row in `meta` and swept.
extension ResponseStore {
  func writeLarge(_ staged: StagedResponse, byteLimit: Int) throws(LMDBError) -> Outcome {
    var bodyID: UInt64 = 0
    do throws(LMDBError) {
      return try writeLarge(staged, byteLimit: byteLimit, bodyID: &bodyID)
    } catch {
      if bodyID != 0 { file.lostBodies.note(bodyID) }
      // At once, since the pieces take room that the next attempt needs.
      do throws(LMDBError) {
        while try sweepLostBodies() {}
      } catch {
        // The disk is full, or worse; the eviction thread goes on trying.
      }
      throw error
    }
  }

  private func writeLarge(
    _ staged: StagedResponse, byteLimit: Int, bodyID: inout UInt64
  ) throws(LMDBError) -> Outcome {
    let chunks = staged.head.layout { file.chunks(of: $0) }
    let (chunkCount, chunkByteCount) = (chunks.count, chunks.range(0).count)
    let chunksPerTransaction = max(1, byteLimit / max(chunkByteCount, 1))
    var next = 0
    while next < chunkCount, isStillWanted(staged) {
      let range = next..<min(next + chunksPerTransaction, chunkCount)
      try makeRoom(pageCount: range.count * file.pageCount(ofChunk: chunkByteCount) + 16, entryCount: 1)
      let known = bodyID
      bodyID = try commit { (transaction) throws(LMDBError) -> UInt64 in
        let bodyID = try known != 0 ? known : reserveBody(in: transaction)
        try file.putChunks(range, of: staged.bodyApart, head: staged.head, bodyID: bodyID, in: transaction)
        return bodyID
      }
      next = range.upperBound
    }
    let isComplete = next == chunkCount
    try makeRoom(pageCount: file.pageCount(ofChunk: staged.head.bytes.count) + 16)
    let reserved = bodyID
    return try commit { (transaction) throws(LMDBError) in
      var outcome = Outcome()
      var counters = try file.counters(in: transaction)
      if isComplete, isStillWanted(staged) {
        counters.knownRemoval = max(counters.knownRemoval, removalLog.sequence)
        try write(staged, bodyID: reserved, counters: &counters, outcome: &outcome, in: transaction)
        try file.meta.remove(MetaKey.partial(reserved), in: transaction)
      } else {
        file.lostBodies.note(reserved)
        outcome.dropped += 1
        try removeWhatItReplaces(staged, counters: &counters, outcome: &outcome, in: transaction)
      }
      try file.setCounters(counters, in: transaction)
      return outcome
    }
  }

  /// Takes a number, and notes that chunks without a head are this process's.
  private func reserveBody(in transaction: borrowing WriteTransaction) throws(LMDBError) -> UInt64 {
    var counters = try file.counters(in: transaction)
    let bodyID = counters.takeNumber()
    try file.setCounters(counters, in: transaction)
    try file.meta.put(PartialBody.encode(processID: getpid()), for: MetaKey.partial(bodyID), in: transaction)
    return bodyID
  }
}
