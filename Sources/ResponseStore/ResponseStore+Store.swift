import FoundationEssentials
import HTTPCaching
import LMDB

extension ResponseStore {
  /// Stores a response, in place of the one that was stored for the same key and Vary selection. One that still waits
  /// for the writer is not written any more, and its memory is freed.
  ///
  /// Returns at once: the response can be looked up in this process from now on, and is committed within
  /// ``Options/commitDelay``. When more than ``Options/queueByteCount`` bytes wait for the writer, the call waits for
  /// room, and after ``Options/fullQueueTimeout`` the response is dropped and counted. A response larger than what the
  /// store may hold is dropped and counted, too. Where one is dropped, or cannot be committed, the one that it was to
  /// replace goes all the same: an older response must not come back. (Unless so many are dropped while nothing can be
  /// written that the notes of them alone take ``Options/queueByteCount``.) Safe from any thread.
  ///
  /// - Parameters:
  ///   - token: For what an origin was asked for: ``snapshot``, taken before it was asked. A removal that came since
  ///     then covers the response: it is dropped and counted, or hidden. Nil, the default, for a response that exists
  ///     only now.
  ///   - waitsForRoom: False for a thread that must not block: the response is dropped at once where the queue is full.
  /// - Returns: Whether the response was taken in; false if it was dropped.
  @discardableResult
  public func store(
    _ response: NewResponse, askedAt token: RemovalToken? = nil, waitsForRoom: Bool = true
  ) -> Bool {
    let snapshot = token.map { removalNumber(in: $0) } ?? removalLog.sequence
    if let snapshot,
      stage(
        response, storedAt: options.clock(), purpose: .insert, snapshot: snapshot, waitsForRoom: waitsForRoom)
    {
      return true
    }
    counts.droppedStores.add(1, ordering: .relaxed)
    discard(response)
    return false
  }

  /// Gives a stored response other header fields and facts, after a 304 (RFC 9111, section 4.3.4); body, key and
  /// stored time stay. Returns at once, like ``store(_:)``.
  ///
  /// The update of a response that has gone since it was looked up, because it was removed or evicted or another has taken
  /// its place, is dropped and counted: what was removed must not come back, and why it has gone cannot be told.
  ///
  /// - Parameter waitsForRoom: As for ``store(_:askedAt:waitsForRoom:)``.
  /// - Returns: Whether the update was taken in; false if it was dropped.
  @discardableResult
  public func update(
    _ stored: StoredResponse, fields: HTTPFields, facts: FreshnessFacts, waitsForRoom: Bool = true
  ) -> Bool {
    let response = NewResponse(
      key: stored.key, status: stored.status, fields: fields, body: stored.body, facts: facts, vary: stored.vary,
      attachment: stored.attachment)
    let rowID = stored.staged?.rowID ?? stored.rowID
    let isTaken = stage(
      response, storedAt: stored.storedAt, purpose: .replaceHead, rowID: rowID,
      original: rowID == 0 ? stored.staged : nil, snapshot: stored.snapshot, waitsForRoom: waitsForRoom)
    if !isTaken { counts.droppedStores.add(1, ordering: .relaxed) }
    return isTaken
  }

  /// Has this process find nothing any more where a response would stand, and the writer delete what is there: a newer
  /// response exists, and is not to be stored. Returns at once, and costs a lookup where nothing is stored.
  package func discard(_ newer: NewResponse) {
    // While the index is rebuilt, what is stored may be found later.
    var isStored = !file.isIndexComplete
    forEachVariant(of: newer.key) { if $0 == newer.vary { isStored = true } }
    guard isStored, !isForked else { return }
    let staged = StagedResponse(
      discarding: newer.vary, of: newer.key, facts: newer.facts, storedAt: options.clock(),
      snapshot: removalLog.sequence)
    // It takes few bytes, and finds room where a response has found none.
    let result = queue.withLock { enqueue(staged, in: &$0, limit: discardLimit) }
    if case .queued(true, _, _)? = result { queue.wakeAll() }
  }

  /// Up to so many bytes wait with the discards among them.
  private var discardLimit: Int { 2 * options.queueByteCount }

  /// Has this process go on to miss, and the writer delete later, what is on disk in the place of responses that could not be
  /// written: an older one must not come back. To be called before these go from the staging area.
  func discardWhatStays(behind failed: [StagedResponse]) {
    guard isUsable, !isForked else { return }
    queue.withLock { queue in
      guard !queue.isClosing else { return }
      for failed in failed where !failed.isUpdate && staging.rivals(of: failed, in: queue).queued(in: queue) == nil {
        // A newer one that waits would take the old one's place, or come here itself. Whether anything is stored is not looked up: a
        // record is on disk a moment before the index has it.
        let discard = StagedResponse(
          discarding: failed.vary, of: failed.key, facts: failed.facts, storedAt: failed.storedAt,
          snapshot: failed.snapshot)
        guard queue.hasRoom(for: discard, limit: discardLimit) else { return }
        staging.insert(discard)
        queue.add(discard, insteadOf: failed, pause: options.runsInBackground ? .seconds(1) : .zero)
      }
    }
  }

  /// The largest body that can be stored beside anything else: half of what the capacity leaves for live pages.
  public var largestBodyByteCount: Int {
    limits.withLock { $0.livePageCount } * file.pageByteCount / 2
  }

  /// The largest head: key, header fields, attachment. It is one value, and must find its pages in one piece.
  var largestHeadByteCount: Int {
    limits.withLock { min(max($0.batchByteCount, 256 << 10), $0.livePageCount * file.pageByteCount / 8) }
  }

  private func stage(
    _ response: NewResponse, storedAt: Date, purpose: StagedResponse.Purpose, rowID: UInt64 = 0,
    original: StagedResponse? = nil, snapshot: UInt64, waitsForRoom: Bool
  ) -> Bool {
    guard isUsable, !isForked, response.body.count <= largestBodyByteCount,
      FieldCoding.byteCount(of: response.fields) <= 16 << 20, response.attachment?.count ?? 0 <= 16 << 20
    else { return false }
    let staged = StagedResponse(
      response, storedAt: storedAt, purpose: purpose, rowID: rowID, original: original, snapshot: snapshot,
      inlineByteCount: file.inlineByteCount)
    guard staged.headByteCount <= largestHeadByteCount, hasTarget(staged), !wasRemoved(staged) else { return false }
    if !options.runsInBackground {
      while queue.withLock({ isFull($0, for: staged, staging.rivals(of: staged, in: $0)) }), writePending() {}
    }
    let limit = options.queueByteCount
    let result =
      waitsForRoom
      ? queue.wait(timeout: options.fullQueueTimeout) { enqueue(staged, in: &$0, limit: limit) }
      : queue.withLock { enqueue(staged, in: &$0, limit: limit) }
    switch result {
    case .queued(let wakesWriter, _, _):
      if wakesWriter { queue.wakeAll() }
      return true
    case .refused:
      return false
    case nil:
      if waitsForRoom { queue.withLock { $0.stalledDoneCount = $0.doneCount } }
      log(.fullQueue, "Stores come faster than the disk takes them; some are dropped")
      return false
    }
  }

  /// Whether the record that an update is for is still there, on its way to the disk or on it.
  private func hasTarget(_ staged: StagedResponse) -> Bool {
    guard case .replaceHead = staged.purpose else { return true }
    if let newest = staging.newest(of: staged.key, vary: staged.vary) { return newest.isSameRecord(as: staged) }
    // What is not staged any more has a row by now, or was given up.
    let rowID = staged.rowID
    guard rowID != 0 else { return false }
    do {
      return try file.environment.read { (transaction) throws(LMDBError) in
        try file.row(of: staged.head, lastKnownAs: rowID, in: transaction) != nil
      }
    } catch {
      readFailed(error)
      return false
    }
  }

  private enum Enqueued {
    /// With what is no longer needed, to be released without the queue's lock.
    case queued(wakesWriter: Bool, superseded: StagedResponse?, written: (StagedResponse?, StagedResponse?))
    case refused
  }

  /// Puts a response at once into the staging area and the queue, so that both have one order; nil if there is no room.
  private func enqueue(_ staged: StagedResponse, in queue: inout WriteQueue, limit: Int) -> Enqueued? {
    guard !queue.isClosing else { return .refused }
    let rivals = staging.rivals(of: staged, in: queue)
    if isFull(queue, for: staged, rivals, limit: limit) { return queue.isStalled ? .refused : nil }
    // Only the newest of a variant is committed. The writer has what it has taken.
    let superseded = rivals.queued(in: queue)
    if case .replaceHead = staged.purpose, let newest = rivals.sameVariant {
      // If a later response waits already, what was validated is no longer stored.
      guard newest.isSameRecord(as: staged) else { return .refused }
      if let superseded, case .insert = superseded.purpose {
        // The record that is updated has no row yet. From now on this one is the record, which removals find by its own
        // groups.
        guard !wasRemoved(superseded) else { return .refused }
        staged.becomeRecord()
      }
    }
    staging.insert(staged, inPlaceOf: superseded)
    if let superseded, !superseded.isDiscard { counts.supersededStores.add(1, ordering: .relaxed) }
    // Of what is tried again the writer takes no notice until it is time.
    let isFirst = !queue.hasStores || queue.retriesAt != nil
    queue.add(staged, inPlaceOf: superseded)
    return .queued(
      wakesWriter: isFirst || queue.storeByteCount >= wakeByteCount, superseded: superseded,
      written: queue.takeWritten())
  }

  /// Whether the queue has no room for a response, or waits with as many variants of its key as are kept.
  private func isFull(
    _ queue: WriteQueue, for staged: StagedResponse, _ rivals: StagingArea.Rivals, limit: Int? = nil
  ) -> Bool {
    let superseded = rivals.queued(in: queue)
    if case .insert = staged.purpose, superseded == nil, rivals.queuedCount >= StorageFormat.mostVariantsOfOneKey {
      return true
    }
    return !queue.hasRoom(for: staged, inPlaceOf: superseded, limit: limit ?? options.queueByteCount)
  }

  /// So much waiting ends the writer's wait for more.
  var wakeByteCount: Int { limits.withLock { $0.batchByteCount } }

  /// A keyed digest of a credential, for `VarySelection`: equal values have equal digests in this store and no other, and
  /// the value itself is not written. It is no cryptographic hash: who can read the store's directory can test guesses.
  public func credentialDigest(_ value: String) -> String {
    Self.digest(of: value, secret: file.format.secret)
  }

  /// The same for a cache that has no store: equal values have equal digests in this process and no other.
  public static func credentialDigestInProcess(_ value: String) -> String {
    digest(of: value, secret: RequestKey.secret)
  }

  private static func digest(of value: String, secret: [UInt8]) -> String {
    var value = value
    let digest = value.withUTF8 { XXHash.digest128(UnsafeRawBufferPointer($0), secret: secret) }
    return String(digest.high, radix: 16) + "-" + String(digest.low, radix: 16)
  }
}
