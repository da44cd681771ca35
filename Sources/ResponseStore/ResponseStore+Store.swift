import FoundationEssentials
import HTTPCaching
import LMDB

extension ResponseStore {
  /// Stores a response, in place of the one that was stored for the same key and Vary selection.
  ///
  /// Returns at once: the response can be looked up in this process from now on, and is committed within
  /// ``Options/commitDelay``. When more than ``Options/queueByteCount`` bytes wait for the writer, the call waits for
  /// room, and after ``Options/fullQueueTimeout`` the response is dropped and counted. A response larger than what the
  /// store may hold is dropped and counted, too. Safe from any thread.
  public func store(_ response: NewResponse) {
    stage(response, storedAt: options.clock(), purpose: .insert, snapshot: removalLog.sequence)
  }

  /// Gives a stored response other header fields and facts, after a 304 (RFC 9111, section 4.3.4); body, key and
  /// stored time stay. Returns at once, like ``store(_:)``.
  ///
  /// The update of a response that has gone since it was looked up, because it was removed or evicted or another has taken
  /// its place, is dropped and counted: what was removed must not come back, and why it has gone cannot be told.
  public func update(_ stored: StoredResponse, fields: HTTPFields, facts: FreshnessFacts) {
    let response = NewResponse(
      key: stored.key, status: stored.status, fields: fields, body: stored.body, facts: facts, vary: stored.vary,
      attachment: stored.attachment)
    let rowID = stored.staged?.rowID ?? stored.rowID
    stage(
      response, storedAt: stored.storedAt, purpose: .replaceHead, rowID: rowID,
      original: rowID == 0 ? stored.staged : nil, snapshot: stored.snapshot)
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
    original: StagedResponse? = nil, snapshot: UInt64
  ) {
    guard isUsable, !isForked, response.body.count <= largestBodyByteCount,
      FieldCoding.byteCount(of: response.fields) <= 16 << 20, response.attachment?.count ?? 0 <= 16 << 20
    else { return drop() }
    let staged = StagedResponse(
      response, storedAt: storedAt, purpose: purpose, rowID: rowID, original: original, snapshot: snapshot,
      inlineByteCount: file.inlineByteCount)
    guard staged.headByteCount <= largestHeadByteCount, hasTarget(staged) else { return drop() }
    if !options.runsInBackground {
      while !queue.withLock({ $0.hasRoom(for: staged, limit: options.queueByteCount) }), writePending() {}
    }
    switch queue.wait(timeout: options.fullQueueTimeout, for: { enqueue(staged, in: &$0) }) {
    case .queued(let wakesWriter, _):
      if wakesWriter { queue.wakeAll() }
    case .refused:
      drop()
    case nil:
      queue.withLock { $0.stalledDoneCount = $0.doneCount }
      drop()
      log(.fullQueue, "Stores come faster than the disk takes them; some are dropped")
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
  private func enqueue(_ staged: StagedResponse, in queue: inout WriteQueue) -> Enqueued? {
    guard !queue.isClosing else { return .refused }
    guard queue.hasRoom(for: staged, limit: options.queueByteCount) else { return queue.isStalled ? .refused : nil }
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

  private func drop() {
    counts.droppedStores.add(1, ordering: .relaxed)
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
    var value = value
    let digest = value.withUTF8 { XXHash.digest128(UnsafeRawBufferPointer($0), secret: file.format.secret) }
    return String(digest.high, radix: 16) + "-" + String(digest.low, radix: 16)
  }
}
