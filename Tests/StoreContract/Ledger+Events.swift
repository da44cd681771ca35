import FoundationEssentials

/// Recording events.
extension Ledger {
  // MARK: Writes

  /// When a response was current at the origin, for the purges that cover it.
  package enum Basis: Sendable {
    /// During the call that stores it.
    case call
    /// At its version, which the origin took.
    case version
    /// Between two positions around the reading of a removal token, which is that of a fetch: a purge since then covers
    /// the response, also one while its body arrives.
    case token(after: UInt64, before: UInt64)
  }

  /// Records the beginning of a write, and returns its version.
  ///
  /// - Parameters:
  ///   - date: The earliest date at which the store may store it.
  ///   - began: The position at which the call began that stores or fetches it; nil for now.
  package func beginWrite(
    to slot: Int, by process: Int, at date: Date? = nil, basis: Basis = .call, began: UInt64? = nil
  ) -> UInt64 {
    let version = takePosition()
    record(version, slot, process, date: date ?? Self.date(version), basis: basis, began: began ?? version)
    raise(index(.started, slot), to: version)
    return version
  }

  /// Records the beginning of an update of a version after a validation, and returns its revision.
  ///
  /// - Parameter date: The earliest date at which the store may update it.
  package func beginUpdate(
    of version: UInt64, in slot: Int, by process: Int, at date: Date? = nil, basis: Basis
  ) -> UInt64 {
    let revision = takePosition()
    // The date of an update is never before that of storing, or of an earlier update.
    let stored = entry(version).map { Date(timeIntervalSinceReferenceDate: $0.date) } ?? Self.date(version)
    let earlier = entry(accepted(slot, by: process)).map { Date(timeIntervalSinceReferenceDate: $0.date) } ?? stored
    record(
      revision, slot, process, date: max(date ?? Self.date(revision), stored, earlier), basis: basis, began: revision)
    return revision
  }

  private func record(
    _ position: UInt64, _ slot: Int, _ process: Int, date: Date, basis: Basis, began: UInt64
  ) {
    let (lower, upper): (UInt64, UInt64) =
      switch basis {
      case .call: (position, 0)
      case .version: (position, position)
      case .token(let after, let before): (after, before)
      }
    set(index(.position, position), 0)
    let values: [(EntryWord, UInt64)] = [
      (.owner, UInt64(slot) << 16 | UInt64(process)), (.began, began), (.ended, 0), (.lower, lower),
      (.upper, upper), (.date, date.timeIntervalSinceReferenceDate.bitPattern), (.durable, 0), (.validated, 0),
      (.position, position),
    ]
    for (word, value) in values { set(index(word, position), value) }
  }

  /// Records the end of a write.
  ///
  /// - Parameter isAccepted: Whether the store accepted it. If not, the older response may be gone.
  package func endWrite(_ version: UInt64, to slot: Int, by process: Int, isAccepted: Bool = true) {
    end(version)
    raise(isAccepted ? index(.accepted, slot, by: process) : index(.unsure, slot), to: isAccepted ? version : position)
  }

  /// Records the end of an update.
  package func endUpdate(_ revision: UInt64, in slot: Int, by process: Int, isAccepted: Bool) {
    end(revision)
    if isAccepted { raise(index(.accepted, slot, by: process), to: revision) }
  }

  private func end(_ position: UInt64) {
    guard load(index(.position, position)) == position else { return }
    let now = takePosition()
    set(index(.ended, position), now)
    if load(index(.upper, position)) == 0 { set(index(.upper, position), now) }
  }

  /// The newest version or revision of a slot that a process was told to be accepted, or 0.
  package func accepted(_ slot: Int, by process: Int) -> UInt64 { load(.accepted, slot, by: process) }

  /// Whether a purge that has returned covers the newest accepted version of a process, or there is none.
  package func isPurged(_ slot: Int, by process: Int) -> Bool {
    let newest = accepted(slot, by: process)
    guard newest > 0, let entry = entry(newest) else { return true }
    return entry.upper != 0 && isCovered(entry, before: position, after: load(.hardCalled, slot), isSoft: false)
  }

  /// Records that the origin confirmed at a position that a version is current.
  package func noteValidation(of version: UInt64, at position: UInt64) {
    if load(index(.position, version)) == version { raise(index(.validated, version), to: position) }
  }

  // MARK: Purges

  /// A purge in progress.
  package struct Purge: Sendable {
    package let called: UInt64
    fileprivate let isSoft: Bool
    fileprivate let process: Int
    fileprivate let after: Date?
    fileprivate let slots: [Int]
    /// The slots of which responses in flight may be dropped.
    fileprivate let affected: [Int]
  }

  /// Records the beginning of a purge.
  ///
  /// - Parameters:
  ///   - after: The date of a purge by date, which covers what was stored later.
  ///   - mayCover: Whether a response in flight for a slot may be dropped; `covers` by default.
  package func beginPurge(
    by process: Int, isSoft: Bool, after: Date? = nil, covers: (Int) -> Bool, mayCover: ((Int) -> Bool)? = nil
  ) -> Purge {
    let affected = (0..<shape.slotCount).filter { mayCover?($0) ?? covers($0) }
    for slot in affected { add(index(isSoft ? .softOpen : .hardOpen, slot, by: process)) }
    return Purge(
      called: takePosition(), isSoft: isSoft, process: process, after: after,
      slots: (0..<shape.slotCount).filter(covers), affected: affected)
  }

  /// Records the end of a purge.
  ///
  /// - Parameter tookEffect: Whether the call has succeeded; otherwise the purge may be in force or not.
  package func end(_ purge: Purge, tookEffect: Bool = true) {
    if tookEffect {
      if let after = purge.after {
        append(after, calledAt: purge.called, isSoft: purge.isSoft)
      } else {
        for slot in purge.slots { raise(index(purge.isSoft ? .softCalled : .hardCalled, slot), to: purge.called) }
      }
    }
    let ended = takePosition()
    for slot in purge.affected {
      // If dates are exact, a purge by date that has succeeded itself tells what it covers.
      if purge.after == nil || !isExact || !tookEffect {
        raise(index(purge.isSoft ? .softEnded : .hardEnded, slot), to: ended)
      }
      add(index(purge.isSoft ? .softOpen : .hardOpen, slot, by: purge.process), .max)
    }
  }

  /// Records a purge before and after it.
  ///
  /// - Parameter body: Purges, and returns whether that has succeeded.
  package func purge(
    by process: Int, isSoft: Bool, after: Date? = nil, covers: (Int) -> Bool, mayCover: ((Int) -> Bool)? = nil,
    _ body: () -> Bool
  ) {
    let purge = beginPurge(by: process, isSoft: isSoft, after: after, covers: covers, mayCover: mayCover)
    end(purge, tookEffect: body())
  }

  private func append(_ after: Date, calledAt called: UInt64, isSoft: Bool) {
    let count = isSoft ? HeaderWord.softRangeCount : .hardRangeCount
    let first = rangeIndex(add(count.rawValue), isSoft: isSoft)
    // An older purge that is no longer known may have covered anything.
    let forgotten = load(first + 2)
    for slot in 0..<shape.slotCount where forgotten > 0 {
      raise(index(isSoft ? .softEnded : .hardEnded, slot), to: forgotten)
    }
    set(first + 2, .max)
    set(first, after.timeIntervalSinceReferenceDate.bitPattern)
    set(first + 1, called)
    set(first + 2, takePosition())
  }

  // MARK: Flushes, deaths and losses

  /// A flush in progress: the newest accepted version or revision of each slot.
  package struct Flush: Sendable {
    fileprivate let accepted: [UInt64]
  }

  /// Records the beginning of a flush.
  package func beginFlush(by process: Int) -> Flush {
    Flush(accepted: (0..<shape.slotCount).map { load(.accepted, $0, by: process) })
  }

  /// Records the end of a flush, or of closing a store, after which other processes find what was stored.
  ///
  /// - Parameter isDurable: Whether it has succeeded. If not, writes since the last flush may be lost.
  package func endFlush(_ flush: Flush, by process: Int, isDurable: Bool) {
    let now = takePosition()
    for (slot, newest) in flush.accepted.enumerated() {
      let flushed = load(.flushed, slot, by: process)
      if !isDurable {
        if load(.accepted, slot, by: process) > flushed { raise(index(.unsure, slot), to: now) }
      } else if newest > flushed {
        raise(index(.flushed, slot, by: process), to: newest)
        if load(index(.position, newest)) == newest { set(index(.durable, newest), now) }
      }
    }
  }

  /// Records that a process was killed: what it had not flushed may be lost, and its purges in progress are in force or
  /// never will be.
  package func processDied(_ process: Int) {
    let now = takePosition()
    for slot in 0..<shape.slotCount {
      set(index(.accepted, slot, by: process), load(.flushed, slot, by: process))
      for (open, ended) in [(ProcessWord.hardOpen, SlotWord.hardEnded), (.softOpen, .softEnded)]
      where load(open, slot, by: process) != 0 {
        raise(index(ended, slot), to: now)
        set(index(open, slot, by: process), 0)
      }
    }
  }

  /// Records that everything may be lost, because the store failed or its data is damaged.
  package func storeWasLost() {
    let now = takePosition()
    for slot in 0..<shape.slotCount { raise(index(.unsure, slot), to: now) }
  }

  /// Makes what a process found that has the directory alone the expected state of a slot.
  ///
  /// - Parameter found: The version or revision; 0 if there is none.
  package func settle(_ slot: Int, found: UInt64) {
    for process in 0..<shape.processCount {
      for word in [ProcessWord.accepted, .flushed] { set(index(word, slot, by: process), process == 0 ? found : 0) }
    }
    set(index(.started, slot), found)
    guard found > 0, load(index(.position, found)) == found else { return }
    // The process that stored it may have been killed during the call.
    if load(index(.ended, found)) == 0 { end(found) }
    if load(index(.durable, found)) == 0 { set(index(.durable, found), takePosition()) }
  }
}
