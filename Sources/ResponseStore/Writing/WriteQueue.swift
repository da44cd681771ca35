import CacheModel
import LMDB

/// The writer's queue, whose size in bytes is limited.
struct WriteQueue {
  private var writes: [PendingWrite] = []
  private(set) var queuedByteCount = 0
  /// Whether the writer has taken writes and not finished them.
  private(set) var isWriting = false
  /// When the writer retries to apply logged removals; nil unless that failed.
  var removalsPausedUntil: MonotonicTime?
  /// Corrupt records to delete.
  var corruptRowIDs: Set<UInt64> = []
  /// The number of writes that were ever queued.
  private(set) var queuedCount: UInt64 = 0
  /// The number of queued writes that were committed or dropped.
  private(set) var doneCount: UInt64 = 0
  /// The number of the latest accepted write; see ``Loss``.
  private(set) var acceptedNumber: UInt64 = 0
  private(set) var loss: Loss?
  /// When the oldest queued write was added.
  private(set) var oldestQueuedAt = MonotonicTime.now
  /// The number of flushes that wait for the writer.
  var flushCount = 0
  /// The value of ``doneCount`` when a caller last timed out while it waited for space. Until more writes finish, no
  /// other caller waits.
  var stalledDoneCount: UInt64?
  var isStalled: Bool { stalledDoneCount == doneCount }
  /// The bytes that the writer has taken and not finished.
  private(set) var inFlightByteCount = 0
  /// Finished writes whose memory is not released yet.
  private var written: [PendingWrite] = []
  /// When the writer retries failed discards; nil if there are none.
  private(set) var retriesAt: MonotonicTime?
  /// Whether no more writes are accepted.
  var isClosing = false
  /// Whether all accepted writes are finished and the threads have ended.
  var isClosed = false

  /// The loss of accepted writes, for flushes to report.
  struct Loss {
    /// The number of the latest lost write.
    var number: UInt64
    var cause: LMDBError?
  }

  var isEmpty: Bool { writes.isEmpty && corruptRowIDs.isEmpty }
  /// Whether logged removals may be applied now.
  var mayApplyRemovals: Bool { removalsPausedUntil.map { $0 <= .now } ?? true }
  /// Whether the writer has something to do now.
  var mayWrite: Bool {
    !isEmpty && (retriesAt.map { $0 <= .now } ?? true || flushCount > 0 || isClosing)
  }
  var hasWrites: Bool { !writes.isEmpty }
  /// The bytes that writes hold in memory until they are committed.
  var heldByteCount: Int { queuedByteCount + inFlightByteCount }

  /// The position of the first write in the queue.
  private var firstPosition: UInt64 { queuedCount - UInt64(writes.count) }

  /// Whether the writer has not yet taken a queued write.
  func isQueued(_ response: PendingWrite) -> Bool { response.queuePosition >= firstPosition }

  /// Whether a response fits. One that is larger than the whole queue is accepted if the queue is empty.
  ///
  /// - Parameter superseded: A queued write that the response replaces.
  func hasSpace(for response: PendingWrite, inPlaceOf superseded: PendingWrite? = nil, limit: Int) -> Bool {
    let rest = heldByteCount - (superseded?.byteCount ?? 0)
    return rest == 0 || rest + response.byteCount <= limit
  }

  /// Queues a write, at the end or in the position of a superseded one.
  ///
  /// A flush that waits for the superseded write therefore waits for the newer one.
  mutating func add(_ response: PendingWrite, inPlaceOf superseded: PendingWrite?) {
    acceptedNumber += 1
    response.number = acceptedNumber
    retriesAt = nil
    guard let superseded else { return append(response) }
    queuedByteCount += response.byteCount
    response.queuePosition = superseded.queuePosition
    queuedByteCount -= superseded.byteCount
    writes[Int(superseded.queuePosition - firstPosition)] = response
  }

  /// Queues a discard for a write that failed. The writer processes it after a pause.
  ///
  /// The discard has the number of the write, so that a flush reports one loss.
  mutating func add(_ discard: PendingWrite, insteadOf failed: PendingWrite, pause: Duration) {
    discard.number = failed.number
    retriesAt = .now + pause
    append(discard)
  }

  private mutating func append(_ response: PendingWrite) {
    if !hasWrites { oldestQueuedAt = .now }
    queuedByteCount += response.byteCount
    response.queuePosition = queuedCount
    writes.append(response)
    queuedCount += 1
  }

  /// Takes the next writes in order: at least one, and at most `byteLimit` bytes and `countLimit` writes.
  ///
  /// The caller becomes the writer. Callers of `store(_:)` wait for the lock during this call, so a queue that fits
  /// into one transaction is handed over without a copy.
  mutating func takeWrites(byteLimit: Int, countLimit: Int) -> [PendingWrite] {
    isWriting = true
    retriesAt = nil
    var batch: [PendingWrite] = []
    if queuedByteCount <= byteLimit, writes.count <= countLimit {
      swap(&batch, &writes)
      inFlightByteCount += queuedByteCount
      queuedByteCount = 0
      return batch
    }
    var byteCount = 0
    var count = 0
    while count < min(writes.count, countLimit) {
      let next = writes[count].byteCount
      if count > 0, byteCount + next > byteLimit { break }
      byteCount += next
      count += 1
    }
    // Copy to an own array: a slice would keep the bodies of the batch in memory.
    batch.append(contentsOf: writes[..<count])
    writes.removeSubrange(..<count)
    queuedByteCount -= byteCount
    inFlightByteCount += byteCount
    return batch
  }

  /// Queues the deletion of a corrupt record. Returns false if it is queued already.
  mutating func addCorrupt(_ rowID: UInt64) -> Bool { corruptRowIDs.insert(rowID).inserted }

  /// Records that writes could not be committed.
  ///
  /// Call this before ``finish(_:byteCount:)``, so that no flush misses the loss.
  mutating func noteLoss(of writes: [PendingWrite], _ cause: LMDBError?) {
    guard let number = writes.map(\.number).max(), number > loss?.number ?? 0 else { return }
    loss = Loss(number: number, cause: cause)
  }

  /// Records that a failed store lost all writes up to a number. Later writes have higher numbers.
  mutating func noteLoss(upTo number: UInt64) {
    acceptedNumber = max(acceptedNumber, number)
    if number > loss?.number ?? 0 { loss = Loss(number: number) }
  }

  /// Finishes a batch of `byteCount` bytes.
  ///
  /// Exchanges it for the unreleased writes of the previous batch, which the writer releases without the lock.
  mutating func finish(_ batch: inout [PendingWrite], byteCount: Int) {
    isWriting = false
    doneCount += UInt64(batch.count)
    inFlightByteCount -= byteCount
    swap(&batch, &written)
  }

  /// Returns up to two finished writes for the caller of `store(_:)` to release.
  ///
  /// Releasing them there saves time on the writer thread, which limits the throughput.
  mutating func popReleasable() -> (PendingWrite?, PendingWrite?) {
    written.isEmpty ? (nil, nil) : (written.removeLast(), written.popLast())
  }

  /// Returns all finished writes, for the writer to release.
  mutating func takeAllWritten() -> [PendingWrite] {
    defer { written = [] }
    return written
  }
}
