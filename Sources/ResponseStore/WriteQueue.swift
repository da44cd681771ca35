import Glibc
import LMDB

/// What waits for the writer. Stores are limited by their bytes.
struct WriteQueue {
  private var stores: [StagedResponse] = []
  private(set) var storeByteCount = 0
  /// The writer is carrying out what it took.
  private(set) var isWriting = false
  /// Removals could not be taken over from the log; the next try comes then.
  var adoptionPausedUntil: MonotonicTime?
  /// Records found damaged, to be removed.
  var damagedRowIDs: Set<UInt64> = []
  /// How many places in the queue were taken, and how many of them are done with, ever.
  private(set) var queuedCount: UInt64 = 0
  private(set) var doneCount: UInt64 = 0
  /// The number of the latest store that was accepted; see ``Loss``.
  private(set) var acceptedNumber: UInt64 = 0
  private(set) var loss: Loss?
  /// When the oldest waiting store was queued.
  private(set) var oldestQueuedAt = MonotonicTime.now
  /// Flushes want what is queued now, at once.
  var flushCount = 0
  /// How many stores were done with when one last waited for room in vain. Until there are more, no other waits.
  var stalledDoneCount: UInt64?
  var isStalled: Bool { stalledDoneCount == doneCount }
  /// What the writer has taken and not finished.
  private(set) var inFlightByteCount = 0
  /// What the writer is done with, whose memory is still to be given back.
  private var written: [StagedResponse] = []
  /// When the writer tries again what it could not do; until then it waits for something new.
  private(set) var retriesAt: MonotonicTime?
  /// No more is taken in.
  var isClosing = false
  /// All that was taken in is written, and the threads are gone.
  var isClosed = false

  /// Stores that were accepted and then lost: what a flush has to tell.
  struct Loss {
    /// The number of the latest of them.
    var number: UInt64
    var cause: LMDBError?
  }

  var isEmpty: Bool { stores.isEmpty && damagedRowIDs.isEmpty }
  /// Whether removals may be taken over now.
  var mayAdopt: Bool { adoptionPausedUntil.map { $0 <= .now } ?? true }
  /// Whether there is something for the writer to do now.
  var mayWrite: Bool {
    !isEmpty && (retriesAt.map { $0 <= .now } ?? true || flushCount > 0 || isClosing)
  }
  var hasStores: Bool { !stores.isEmpty }
  /// The bytes that stores hold in memory until they are committed.
  var heldByteCount: Int { storeByteCount + inFlightByteCount }

  /// The place of the store that is taken next.
  private var firstPosition: UInt64 { queuedCount - UInt64(stores.count) }

  /// Whether a store that was queued still waits, and the writer has not taken it.
  func isQueued(_ response: StagedResponse) -> Bool { response.queuePosition >= firstPosition }

  /// Whether a response fits; one that is larger than the whole queue goes in alone.
  ///
  /// - Parameter superseded: A store whose place it takes.
  func hasRoom(for response: StagedResponse, inPlaceOf superseded: StagedResponse? = nil, limit: Int) -> Bool {
    let rest = heldByteCount - (superseded?.byteCount ?? 0)
    return rest == 0 || rest + response.byteCount <= limit
  }

  /// Queues a store, at the end or in the place of one that still waits. It stays there however often it is superseded
  /// in turn: so it is written when its turn comes, and a flush that waits for the older one waits for the newer one.
  mutating func add(_ response: StagedResponse, inPlaceOf superseded: StagedResponse?) {
    acceptedNumber += 1
    response.number = acceptedNumber
    retriesAt = nil
    guard let superseded else { return append(response) }
    storeByteCount += response.byteCount
    response.queuePosition = superseded.queuePosition
    storeByteCount -= superseded.byteCount
    stores[Int(superseded.queuePosition - firstPosition)] = response
  }

  /// Queues a discard in the place of a store that could not be written, to be tried after a pause. It keeps that one's
  /// number: a flush tells of one loss.
  mutating func add(_ discard: StagedResponse, insteadOf failed: StagedResponse, pause: Duration) {
    discard.number = failed.number
    retriesAt = .now + pause
    append(discard)
  }

  private mutating func append(_ response: StagedResponse) {
    if !hasStores { oldestQueuedAt = .now }
    storeByteCount += response.byteCount
    response.queuePosition = queuedCount
    stores.append(response)
    queuedCount += 1
  }

  /// The next stores in order: at least one, and no more than `byteLimit` bytes beyond it, nor `countLimit` in all. The caller
  /// becomes the writer.
  ///
  /// Whoever stores waits for the lock meanwhile. So what goes in one transaction, as it does unless stores come faster than the
  /// disk takes them, is handed over as it is: nothing is copied, nothing allocated, none of it looked at.
  mutating func takeStores(byteLimit: Int, countLimit: Int) -> [StagedResponse] {
    isWriting = true
    var batch: [StagedResponse] = []
    if storeByteCount <= byteLimit, stores.count <= countLimit {
      swap(&batch, &stores)
      inFlightByteCount += storeByteCount
      storeByteCount = 0
      return batch
    }
    var byteCount = 0
    var count = 0
    while count < min(stores.count, countLimit) {
      let next = stores[count].byteCount
      if count > 0, byteCount + next > byteLimit { break }
      byteCount += next
      count += 1
    }
    // With storage of its own, so that the rest stays where it is.
    batch.append(contentsOf: stores[..<count])
    // Moves the rest; what stayed behind in front would hold its body in memory.
    stores.removeSubrange(..<count)
    storeByteCount -= byteCount
    inFlightByteCount += byteCount
    return batch
  }

  /// Notes that stores could not be committed. Before they count as done with, so that no flush misses it.
  mutating func noteLoss(of stores: [StagedResponse], _ cause: LMDBError?) {
    guard let number = stores.map(\.number).max(), number > loss?.number ?? 0 else { return }
    loss = Loss(number: number, cause: cause)
  }

  /// Notes that all stores up to a number are lost, with the response store that had accepted them. Numbers go on from
  /// there.
  mutating func noteLoss(upTo number: UInt64) {
    acceptedNumber = max(acceptedNumber, number)
    if number > loss?.number ?? 0 { loss = Loss(number: number) }
  }

  /// The writer is done with a batch of so many bytes, for which it gets what is left of the one before, to let go of it without the
  /// lock.
  mutating func finish(_ batch: inout [StagedResponse], byteCount: Int) {
    isWriting = false
    doneCount += UInt64(batch.count)
    inFlightByteCount -= byteCount
    swap(&batch, &written)
  }

  /// Two of those that are written, to be let go of by whoever stores: it is the caller's processor that has their memory at hand, and
  /// the writer that all wait for.
  mutating func takeWritten() -> (StagedResponse?, StagedResponse?) {
    written.isEmpty ? (nil, nil) : (written.removeLast(), written.popLast())
  }

  mutating func takeAllWritten() -> [StagedResponse] {
    defer { written = [] }
    return written
  }
}
