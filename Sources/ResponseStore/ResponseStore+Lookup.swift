import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB

extension ResponseStore {
  /// The stored response for a key: of the variants that `matches` accepts the newest by its Date (RFC 9111, section 4),
  /// and rather one that varies than one that does not (section 4.1).
  ///
  /// Freshness is not looked at. Damage, and any trouble with the file, is a miss. Safe from any thread, at any rate;
  /// waits for nothing but the disk.
  ///
  /// - Complexity: O(log entries) and a copy of the head and the body.
  public func lookup(
    _ key: RequestKey, where matches: (VarySelection) -> Bool = { _ in true }
  ) -> StoredResponse? {
    guard isUsable else { return nil }
    // What is staged stands before what is on disk, and a lookup behind the staging area sees at least what was committed
    // when it looked there.
    let found =
      staging.mayContain(key)
      ? findStagedOrOnDisk(key, where: matches) : findOnDisk(key, above: nil, where: matches)
    counts.lookups.count(isHit: found != nil)
    return found
  }

  /// Calls `body` with how each variant was selected that a lookup of a key would choose from. Copies no record, and
  /// does not count as a lookup.
  package func forEachVariant(of key: RequestKey, _ body: (VarySelection) -> Void) {
    guard isUsable else { return }
    let matches = { (vary: VarySelection) -> Bool in
      body(vary)
      return false
    }
    _ =
      staging.mayContain(key)
      ? findStagedOrOnDisk(key, where: matches) : findOnDisk(key, above: nil, where: matches)
  }

  private func findStagedOrOnDisk(
    _ key: RequestKey, where matches: (VarySelection) -> Bool
  ) -> StoredResponse? {
    var best: (response: StagedResponse, rank: Rank)?
    var stagedVariants: [VarySelection] = []
    for staged in staging.variants(of: key) {
      // Also of one that was removed since: what lies on disk for the variant is older still.
      stagedVariants.append(staged.vary)
      guard !wasRemoved(staged), matches(staged.vary) else { continue }
      let rank = Rank(vary: staged.vary, date: staged.facts.date)
      if best.map({ $0.rank < rank }) ?? true { best = (staged, rank) }
    }
    let onDisk = findOnDisk(key, above: best?.rank, besides: stagedVariants.count) { vary in
      !stagedVariants.contains(vary) && matches(vary)
    }
    return onDisk ?? best.map { StoredResponse($0.response) }
  }

  /// Which of several responses that match is taken: one that varies before one that does not, then the newer one
  /// (RFC 9111, sections 4 and 4.1).
  struct Rank: Comparable {
    var isVarying: Bool
    var date: Date

    init(vary: VarySelection, date: Date) {
      isVarying = vary.isVarying
      self.date = date
    }

    static func < (left: Rank, right: Rank) -> Bool {
      left.isVarying == right.isVarying ? left.date < right.date : right.isVarying
    }
  }

  /// - Parameter stagedCount: How many variants of the key wait for the writer: they are others of what is found.
  func findOnDisk(
    _ key: RequestKey, above staged: Rank?, besides stagedCount: Int = 0, where matches: (VarySelection) -> Bool
  ) -> StoredResponse? {
    do throws(LMDBError) {
      var tries = 0
      while true {
        var isOutdated = false
        let found = try read { (transaction) throws(LMDBError) -> StoredResponse? in
          let choice = try choose(key, above: staged, in: transaction, isOutdated: &isOutdated, where: matches)
          guard var chosen = choice else { return nil }
          if stagedCount > 0 { chosen.hasOthers = true }
          noteUse(of: chosen)
          guard let record = try copy(chosen, in: transaction) else {
            reportDamage(chosen.rowID)
            return nil
          }
          return StoredResponse(record)
        }
        tries += 1
        guard found == nil, isOutdated, tries < 4 else { return found }
      }
    } catch {
      readFailed(error)
      return nil
    }
  }

  /// Runs `body` with a read transaction.
  @inline(__always)
  func read<R>(_ body: (borrowing ReadTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    try environment.use { environment in
      Result { () throws(LMDBError) in try environment.read(body) }
    }.get()
  }

  /// A record on disk. The head lies in the map, where it stays as long as the transaction lasts.
  struct Chosen {
    var rowID: UInt64
    var head: HeadLayout
    /// Where it was found; nil without an index.
    var slot: IndexSlot?
    /// Whether other records are stored for the key.
    var hasOthers: Bool
    /// The last removal before it was looked for.
    var snapshot: UInt64
  }

  /// The best of the records that a key has and that `matches` accepts, if it is above what is staged.
  ///
  /// - Parameter isOutdated: Set if nothing was found, and a newer snapshot or index may have it.
  func choose(
    _ key: RequestKey, above staged: Rank?, in transaction: borrowing ReadTransaction, isOutdated: inout Bool,
    where matches: (VarySelection) -> Bool
  ) throws(LMDBError) -> Chosen? {
    if isStructureUnchecked.load(ordering: .relaxed) {
      do throws(LMDBError) {
        try checkPaths(to: key.bytes, in: transaction)
      } catch {
        guard error.isOutdatedSnapshot else { throw error }
        isOutdated = true
        return nil
      }
    }
    // Before the removals are looked at, so that what comes later is compared with the copy.
    let snapshot = removalLog.sequence
    let purges = try removals.purges(in: transaction)
    var best = Best(rank: staged, snapshot: snapshot)
    guard let index = index.use({ $0.unretained }) else {
      try chooseWithoutIndex(key, &best, purges, in: transaction, where: matches)
      return best.chosen
    }
    var hasMissing = false
    let digest = key.bytes.withUnsafeBytes { file.keyDigest(of: $0) }
    var slots = index._withUnsafeGuaranteedRef { $0.matches(of: digest) }
    while let match = slots.next() {
      if try consider(match.rowID, (index, match), key, &best, purges, in: transaction, where: matches) { continue }
      // Eviction may have moved the record, and the index not yet tell.
      if let moved = index._withUnsafeGuaranteedRef({ $0.rowID(movedFrom: match.rowID) }),
        try consider(moved, nil, key, &best, purges, in: transaction, where: matches)
      {
        continue
      }
      hasMissing = true
      if !index._withUnsafeGuaranteedRef({ $0.hasRow(of: match) }) { isOutdated = true }
    }
    if hasMissing, file.environment.lastTransactionID != transaction.id { isOutdated = true }
    // A record that was not found may be the newer one.
    if isOutdated { return nil }
    if best.chosen == nil {
      // The index may have been replaced since it was looked at.
      isOutdated = self.index.use { $0.unretained?.toOpaque() != index.toOpaque() }
      if !isOutdated, options.opensExistingOnly,
        index._withUnsafeGuaranteedRef({ !$0.isComplete || $0.hasJournal })
      {
        try chooseWithoutIndex(key, &best, purges, in: transaction, where: matches)
      }
    }
    return best.chosen
  }

  typealias IndexSlot = (index: Unmanaged<RecordIndex>, match: RecordIndex.Match)

  /// What a lookup has found so far.
  private struct Best {
    var rank: Rank?
    let snapshot: UInt64
    var chosen: Chosen?
    var count = 0

    init(rank: Rank?, snapshot: UInt64) {
      self.rank = rank
      self.snapshot = snapshot
    }
  }

  /// Compares a record with the best one so far. False if its row is not there: the index is a hint, and may name a row that is
  /// gone or not yet there.
  @inline(__always)
  private func consider(
    _ rowID: UInt64, _ slot: IndexSlot?, _ key: RequestKey, _ best: inout Best, _ purges: [Purge],
    in transaction: borrowing ReadTransaction, where matches: (VarySelection) -> Bool
  ) throws(LMDBError) -> Bool {
    let record = try file.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { $0 }
    }
    guard let record else { return false }
    guard let head = HeadLayout(record), isIntact(head, rowID: rowID) else {
      reportDamage(rowID)
      return true
    }
    guard head.hasKey(key.bytes) else { return true }
    best.count += 1
    best.chosen?.hasOthers = true
    if !purges.isEmpty, purges.contains(where: { $0.covers(rowID: rowID, layout: head) }) { return true }
    let vary = head.vary.isEmpty ? VarySelection(selectors: []) : FieldCoding.decodeVary(head.vary)
    guard matches(vary) else { return true }
    let rank = Rank(vary: vary, date: head.facts.date)
    if let other = best.rank, !(other < rank) {
      // Of equal ones the one that was stored later.
      guard !(rank < other), let chosen = best.chosen,
        (chosen.head.storedAt, chosen.rowID) < (head.storedAt, rowID)
      else { return true }
    }
    best.rank = rank
    best.chosen = Chosen(rowID: rowID, head: head, slot: slot, hasOthers: best.count > 1, snapshot: best.snapshot)
    return true
  }

  /// For a store that is only looked at, whose index nobody makes: a walk over the dates.
  private func chooseWithoutIndex(
    _ key: RequestKey, _ best: inout Best, _ purges: [Purge], in transaction: borrowing ReadTransaction,
    where matches: (VarySelection) -> Bool
  ) throws(LMDBError) {
    guard options.opensExistingOnly, !isStructureUnchecked.load(ordering: .relaxed) else { return }
    for rowID in try file.rowIDs(withTag: IndexEntry.tag(of: file.keyDigest(of: key.bytes)), in: transaction) {
      _ = try consider(rowID, nil, key, &best, purges, in: transaction, where: matches)
    }
  }

  /// Notes that a record was used.
  @inline(__always)
  func noteUse(of chosen: Chosen) {
    guard let slot = chosen.slot else { return }
    slot.index._withUnsafeGuaranteedRef { $0.noteUse(of: slot.match) }
  }

  /// Whether a head matches its checksum; looked at once in a process, and again when the head changes.
  private func isIntact(_ head: HeadLayout, rowID: UInt64) -> Bool {
    // The record is marked as verified when its body has been compared too.
    isVerified(head, rowID: rowID) || head.hasRightChecksum
  }

  func isVerified(_ head: HeadLayout, rowID: UInt64) -> Bool {
    !options.verifiesEveryRead && verified.contains(rowID: rowID, checksum: head.checksum)
  }

  /// Copies a record out and compares what was copied; nil if it is damaged.
  func copy(
    _ chosen: Chosen, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> CopiedRecord? {
    let (rowID, head) = (chosen.rowID, chosen.head)
    let bodyID = head.bodyID(ofRow: rowID)
    let chunks = file.chunks(of: head)
    // A damaged head may claim any size. With its last chunk there, it claims what can be.
    var last: UnsafeRawBufferPointer?
    if chunks.count > 0 {
      last = try chunk(chunks.count - 1, of: bodyID, chunks, in: transaction)
      if last == nil { return nil }
    }
    let record = CopiedRecord(head, rowID: rowID, snapshot: chosen.snapshot, hasOthers: chosen.hasOthers)
    for index in 0..<chunks.count {
      let isLast = index == chunks.count - 1
      guard let chunk = isLast ? last : try chunk(index, of: bodyID, chunks, in: transaction) else { return nil }
      (record.bodyMemory + chunks.range(index).lowerBound).copyMemory(from: chunk.baseAddress!, byteCount: chunk.count)
    }
    if !isVerified(head, rowID: rowID) {
      guard record.isIntact else { return nil }
      verified.insert(rowID: rowID, checksum: head.checksum)
    }
    return record
  }

  /// A chunk of a body, where it lies in the map as long as the transaction lasts; nil if it is missing or has the wrong size.
  func chunk(
    _ index: Int, of bodyID: UInt64, _ chunks: BodyChunks, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> UnsafeRawBufferPointer? {
    let key = ChunkKey(bodyID: bodyID, index: UInt32(truncatingIfNeeded: index))
    let chunk = try file.bodies.withValue(for: key, in: transaction) { (chunk) throws(LMDBError) in
      chunk.withUnsafeBytes { $0 }
    }
    guard let chunk, chunk.count == chunks.range(index).count else { return nil }
    return chunk
  }

  // MARK: Trouble

  func reportDamage(_ rowID: UInt64) {
    let isNew = queue.update { $0.damagedRowIDs.insert(rowID).inserted }
    guard isNew else { return }
    counts.damagedRecords.add(1, ordering: .relaxed)
    log(.damagedRecord, "A stored response did not match its checksum; it counts as missing and is removed")
    suspectDamage()
  }

  func readFailed(_ error: LMDBError) {
    switch error.code {
    case .readersFull, .mapResized:
      // Others hold the table or are resizing: this lookup misses, the next may not.
      log(.failedRead, "A lookup failed and counts as a miss: \(error)")
    case _ where error.isDamage:
      condemn("\(error)")
    default:
      log(.failedRead, "A lookup failed and counts as a miss: \(error)")
    }
  }
}
