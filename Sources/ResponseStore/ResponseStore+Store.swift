import FoundationEssentials
import HTTPCaching
import LMDB

extension ResponseStore {
  /// Stores a response, in place of the one that was stored for the same key and Vary selection.
  ///
  /// Returns at once: the response can be looked up in this process from now on, and is committed within
  /// ``Options/commitDelay``. When more than ``Options/queueByteCount`` bytes wait for the writer, the call waits for
  /// room, and after ``Options/fullQueueTimeout`` the response is dropped and counted. A response larger than what the
  /// store may hold is dropped and counted, too. Where one is dropped, the one that it was to replace goes all the
  /// same: an older response must not come back. Safe from any thread.
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
    var isStored = false
    forEachVariant(of: newer.key) { if $0 == newer.vary { isStored = true } }
    guard isStored, !isForked else { return }
    let nothing = NewResponse(
      key: newer.key, status: 0, fields: HTTPFields(), body: Data(), facts: newer.facts, vary: newer.vary)
    let staged = StagedResponse(
      nothing, storedAt: options.clock(), purpose: .discard, snapshot: removalLog.sequence,
      inlineByteCount: file.inlineByteCount)
    // It takes few bytes, and finds room where a response has found none.
    let limit = options.queueByteCount + options.queueByteCount / 8
    if case .queued(true, _)? = queue.withLock({ enqueue(staged, in: &$0, limit: limit) }) { queue.wakeAll() }
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
      while !queue.withLock({ $0.hasRoom(for: staged, limit: options.queueByteCount) }), writePending() {}
    }
    let limit = options.queueByteCount
    let result =
      waitsForRoom
      ? queue.wait(timeout: options.fullQueueTimeout) { enqueue(staged, in: &$0, limit: limit) }
      : queue.withLock { enqueue(staged, in: &$0, limit: limit) }
    switch result {
    case .queued(let wakesWriter, _):
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
        try file.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
          record.withUnsafeBytes { HeadLayout($0)?.isSameRecord(as: staged.head) ?? false }
        } ?? false
      }
    } catch {
      readFailed(error)
      return false
    }
  }

  private enum Enqueued {
    case queued(wakesWriter: Bool, letGo: (StagedResponse?, StagedResponse?))
    case refused
  }

  /// Puts a response at once into the staging area and the queue, so that both have one order; nil if there is no room.
  private func enqueue(_ staged: StagedResponse, in queue: inout WriteQueue, limit: Int) -> Enqueued? {
    guard !queue.isClosing else { return .refused }
    guard queue.hasRoom(for: staged, limit: limit) else { return queue.isStalled ? .refused : nil }
    if case .replaceHead = staged.purpose, let newest = staging.newest(of: staged.key, vary: staged.vary),
      !newest.isSameRecord(as: staged)
    {
      // A later response waits already: what was validated is no longer stored.
      return .refused
    }
    staging.insert(staged)
    let isFirst = !queue.hasStores
    queue.append(staged)
    return .queued(wakesWriter: isFirst || queue.storeByteCount >= wakeByteCount, letGo: queue.takeWritten())
  }

  /// So much waiting ends the writer's wait for more.
  var wakeByteCount: Int { limits.withLock { $0.batchByteCount } }

  /// Returns when all that was stored before is safe on disk, also against a power cut, and what was removed before is
  /// deleted or, if it is much, marked.
  ///
  /// - Throws: ``StoreError`` when the disk failed, the store was given up (``StoreError/Code/givenUp``), or nothing could be
  ///   written for ``Options/stallTimeout`` (``StoreError/Code/busy``). Responses that could not be written for lack of room
  ///   are dropped and counted, without an error.
  public func flush() throws(StoreError) {
    var isDone = true
    if isUsable, !isForked {
      let target = queue.update { queue -> UInt64 in
        queue.flushCount += 1
        return queue.queuedCount
      }
      if options.runsInBackground {
        // Also while the store is being closed: everything queued is done with in the end.
        let removal = removalLog.sequence
        isDone =
          waitUnlessStalled(queue) { queue -> Bool? in
            // What cannot be taken over now stays hidden by the log.
            let isAdopted = removalLog.adopted >= removal || queue.adoptionPausedUntil != nil
            return queue.doneCount >= target && isAdopted ? true : nil
          } != nil
      } else {
        while queue.withLock({ $0.doneCount < target }) || hasRemovalsToAdopt, writePending() {}
      }
      queue.withLock { $0.flushCount -= 1 }
    }
    if isCondemned {
      throw StoreError(
        .givenUp, directory: directory, reason: "the store was given up, and what was stored in it is lost",
        remedy: "Open the directory again, unless a cache does; it starts empty")
    }
    guard isDone else {
      throw StoreError(
        .busy, directory: directory, reason: "nothing could be written for too long",
        remedy: "See whether a process that uses the directory is stopped, and let it go on or end it")
    }
    do throws(LMDBError) {
      try file.environment.synchronize()
    } catch {
      throw .storage(error, directory: directory, doing: "Flushing")
    }
  }

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
