import FoundationEssentials

/// Judging the responses that lookups find.
///
/// A violation is reported only if no order of overlapping operations permits the response:
/// - A response whose write overlaps with a purge may be found or not.
/// - An older response of another process may be found: its commit may follow the one of the newer response. Not so if
///   it was durable before the write of the newer one began, and the newer one is durable, too.
/// - A process finds at least what it stored last, and everybody at least what was flushed, unless it was removed
///   since.
extension Ledger {
  /// The details of a version or revision.
  struct Entry {
    let position: UInt64
    let slot: Int
    let process: Int
    let began, ended, lower, upper: UInt64
    let date: Double
    let durable: UInt64
    /// The position up to which it is known to be current.
    let current: UInt64
  }

  /// Returns the details of a position; nil if nothing was written there, or too long ago.
  func entry(_ position: UInt64) -> Entry? {
    func word(_ word: EntryWord) -> UInt64 { load(index(word, position)) }
    guard position > 0, word(.position) == position else { return nil }
    let owner = word(.owner)
    let upper = word(.upper)
    let entry = Entry(
      position: position, slot: Int(owner >> 16), process: Int(owner & 0xffff), began: word(.began),
      ended: word(.ended), lower: word(.lower), upper: upper, date: Double(bitPattern: word(.date)),
      durable: word(.durable), current: max(upper, word(.validated)))
    return word(.position) == position ? entry : nil
  }

  /// The position after which a version or revision was current at the origin.
  package func lowerBound(of position: UInt64) -> UInt64 { entry(position)?.lower ?? 0 }

  /// The facts that were known before a lookup began.
  package struct Facts: Sendable {
    package let slot: Int
    /// The process that looks up.
    package let process: Int
    package let position: UInt64
    fileprivate let hardCalled, softCalled: UInt64
    /// The newest version or revision that the process was told to be accepted.
    fileprivate let accepted: UInt64
    /// The newest one that any process has flushed.
    fileprivate let durable: UInt64
  }

  /// Returns what is known before a lookup.
  ///
  /// - Parameter process: The number of the process that looks up. One that does not write may have any number.
  package func facts(_ slot: Int, by process: Int) -> Facts {
    let hardCalled = load(.hardCalled, slot)
    let softCalled = load(.softCalled, slot)
    let accepted = process < shape.processCount ? load(.accepted, slot, by: process) : 0
    return Facts(
      slot: slot, process: process, position: position, hardCalled: hardCalled, softCalled: softCalled,
      accepted: accepted, durable: highest(.flushed, slot))
  }

  /// A response that a lookup found.
  package struct FoundResponse: Sendable {
    package var version: UInt64
    /// The revision, if the response was updated.
    package var revision: UInt64
    /// When it was stored, if that is known.
    package var storedAt: Date?
    /// The time of the last update or of storing; nil if it is unknown.
    package var updatedAt: Date?
    /// Whether it is stale because of a soft purge; nil if that is unknown.
    package var isSoftPurged: Bool?

    package init(
      version: UInt64, revision: UInt64 = 0, storedAt: Date? = nil, updatedAt: Date? = nil,
      isSoftPurged: Bool? = nil
    ) {
      (self.version, self.revision, self.isSoftPurged) = (version, revision, isSoftPurged)
      (self.storedAt, self.updatedAt) = (storedAt, updatedAt)
    }

    /// The position that is compared with newer ones.
    package var newest: UInt64 { max(version, revision) }
  }

  /// A broken promise.
  package struct Violation: Error, CustomStringConvertible, Sendable {
    package enum Kind: String, CaseIterable, Sendable {
      case removed = "a removed response was found"
      case fresh = "a response was found fresh after a soft purge"
      case stale = "a response was found stale without a soft purge"
      case older = "an older response was found than the last one that was stored"
      case missing = "a response is missing"
      case unknown = "a response was found that was never stored"
      case wrong = "wrong bytes were found"
      case unsound = "the store is unsound"
    }

    package let kind: Kind
    package let text: String
    package var description: String { "\(kind.rawValue): \(text)" }

    package init(_ kind: Kind, _ text: String) {
      (self.kind, self.text) = (kind, text)
    }
  }

  /// Returns the promise that a lookup breaks; nil if its result is right.
  ///
  /// - Parameters:
  ///   - found: The response; nil for a miss.
  ///   - facts: The facts that were known before the lookup.
  package func violation(_ found: FoundResponse?, after facts: Facts) -> Violation? {
    guard let found else { return violationOfMiss(facts) }
    let (slot, newest) = (facts.slot, found.newest)
    func broken(_ kind: Violation.Kind, _ reason: String) -> Violation {
      var text = "slot \(slot), \(describe(found.version))"
      if found.revision > 0 { text += ", updated: \(describe(found.revision))" }
      return Violation(kind, "\(text); \(reason); the lookup by process \(facts.process) began at \(facts.position)")
    }
    guard found.version <= position, newest <= position else { return broken(.unknown, "no such version") }
    guard let version = entry(found.version) else { return nil }
    guard version.slot == slot else { return broken(.unknown, "it was stored in slot \(version.slot)") }
    let date = found.storedAt?.timeIntervalSinceReferenceDate ?? version.date
    if version.upper != 0,
      isCovered(version, date: date, before: facts.position, after: facts.hardCalled, isSoft: false)
    {
      return broken(.removed, "purged at \(facts.hardCalled), or by date")
    }
    guard let current = entry(newest) else { return nil }
    let updated = found.updatedAt?.timeIntervalSinceReferenceDate ?? current.date
    if current.upper != 0,
      isCovered(current, date: updated, before: facts.position, after: facts.hardCalled, isSoft: false)
    {
      return broken(.removed, "purged at \(facts.hardCalled), or by the date of its update")
    }
    if found.isSoftPurged == false, current.upper != 0,
      isCovered(current, date: updated, before: facts.position, after: facts.softCalled, isSoft: true)
    {
      return broken(.fresh, "softly purged at \(facts.softCalled), or by date")
    }
    if found.isSoftPurged == true, isExact, highest(.softOpen, slot) == 0, current.lower > load(.softEnded, slot),
      !ranges(isSoft: true).contains(where: { updated > $0.after && current.lower <= $0.ended })
    {
      return broken(.stale, "the last soft purge ended at \(load(.softEnded, slot))")
    }
    let unsure = load(.unsure, slot)
    func isOutdated(by newer: UInt64, since settled: UInt64) -> Bool {
      guard newer > newest, newer > unsure, settled != 0 else { return false }
      let began = entry(newer)?.began ?? newer
      // A purge of another thread may have dropped the newer one before it was stored.
      return settled < began && (isExact || !mayBePurged(slot, since: began))
    }
    if current.process == facts.process, !isFaulty, isOutdated(by: facts.accepted, since: current.ended) {
      return broken(.older, "the process stored \(describe(facts.accepted))")
    }
    if isOutdated(by: facts.durable, since: current.durable) {
      return broken(.older, "flushed was \(describe(facts.durable))")
    }
    return nil
  }

  private func violationOfMiss(_ facts: Facts) -> Violation? {
    let slot = facts.slot
    let expected = max(isFaulty ? 0 : facts.accepted, facts.durable)
    // A later write that was dropped may have deleted the response.
    guard expected > load(.unsure, slot), expected >= load(.started, slot), !isEvicting,
      !mayBeRemoved(slot, since: entry(expected)?.lower ?? expected), !isInRange(expected, of: slot),
      // An update that is not durable may have moved the date of the response into that of a purge.
      facts.accepted <= expected || !isInRange(facts.accepted, of: slot)
    else { return nil }
    let state = facts.durable == expected ? "flushed" : "stored by this process"
    return Violation(
      .missing,
      "slot \(slot), \(describe(expected)), \(state); the lookup by process \(facts.process) began at \(facts.position)"
    )
  }

  /// Whether a hard purge by date may cover a version or revision of a slot, if dates are exact.
  ///
  /// An earlier revision may have moved the date of the version into that of a purge. A later one does not bring it
  /// back.
  private func isInRange(_ position: UInt64, of slot: Int) -> Bool {
    guard let entry = entry(position) else { return true }
    let lower = min(entry.lower, load(.started, slot))
    return ranges(isSoft: false).contains { entry.date > $0.after && lower <= $0.ended }
  }

  /// Whether a hard purge may cover a version, so that it may be missing.
  func mayBeRemoved(_ version: UInt64) -> Bool {
    guard let entry = entry(version) else { return true }
    return mayBeRemoved(entry.slot, since: entry.lower) || isInRange(version, of: entry.slot)
  }

  /// Whether a hard purge that may cover a slot is in progress, or ended at a position or later.
  package func mayBeRemoved(_ slot: Int, since position: UInt64) -> Bool {
    // A purge records its end before it lowers the count, so reading the count first misses no purge.
    highest(.hardOpen, slot) != 0 || load(.hardEnded, slot) >= position
  }

  /// The same for hard and soft purges.
  private func mayBePurged(_ slot: Int, since position: UInt64) -> Bool {
    mayBeRemoved(slot, since: position) || highest(.softOpen, slot) != 0 || load(.softEnded, slot) >= position
  }

  /// Whether a purge covers an entry: the last one at `called`, or one by date that returned before `position`.
  func isCovered(
    _ entry: Entry, date: Double? = nil, before position: UInt64, after called: UInt64, isSoft: Bool
  ) -> Bool {
    let current = isSoft ? entry.current : entry.upper
    if current < called { return true }
    return ranges(isSoft: isSoft).contains { range in
      range.ended <= position && (date ?? entry.date) > range.after && current < range.called
    }
  }

  /// The last purges by date that have returned.
  private func ranges(isSoft: Bool) -> [(after: Double, called: UInt64, ended: UInt64)] {
    let count = load((isSoft ? HeaderWord.softRangeCount : .hardRangeCount).rawValue)
    return (0..<min(count, UInt64(Self.rangeCount))).compactMap { number in
      let first = rangeIndex(count - number, isSoft: isSoft)
      let ended = load(first + 2)
      let (after, called) = (Double(bitPattern: load(first)), load(first + 1))
      // Another thread may be writing it.
      return ended != 0 && ended != .max && load(first + 2) == ended ? (after, called, ended) : nil
    }
  }

  private func describe(_ position: UInt64) -> String {
    guard let entry = entry(position) else { return "version \(position)" }
    return "version \(position) of process \(entry.process) (begun at \(entry.began), ended at \(entry.ended))"
  }
}
