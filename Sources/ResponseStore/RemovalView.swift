import LMDB
import Synchronization

/// The removals as this process knows them: those that are in force and not yet carried out, for lookups, and the latest, for
/// whoever holds a copy.
final class RemovalView: Sendable {
  private struct Logged {
    var sequence: UInt64
    var scope: RemovalScope
  }

  private struct Known {
    /// The latest removals in order, all from `floor` + 1 on.
    var logged: [Logged] = []
    /// What was removed up to this number is not known any more.
    var floor: UInt64
    /// The marks in the data, and the transaction that last changed them.
    var marks: [Purge] = []
    var marksChange: UInt64 = 0
    var sequence: UInt64
    /// What hides something in a transaction, with all removals up to a number.
    var hiding: (purges: [Purge], transactionID: UInt64, sequence: UInt64) = ([], 0, 0)

    /// The removals after a number; nil if that is too long ago.
    func logged(after number: UInt64) -> ArraySlice<Logged>? {
      guard number >= floor else { return nil }
      return logged.dropFirst(Int(clamping: number - floor))
    }
  }

  /// How many removals are remembered for those who hold copies; older copies count as removed.
  static let longestMemory = 4096

  private let file: StoreFile
  private let log: RemovalLog
  /// All removals up to this number are known.
  private let sequence: Atomic<UInt64>
  /// With no removal newer than ``sequence``, nothing is hidden in any transaction from this one on.
  private let settledIn = Atomic<UInt64>(.max)
  private let known: Monitor<Known>

  init(file: StoreFile, log: RemovalLog) {
    self.file = file
    self.log = log
    let newest = log.sequence
    let floor = newest - min(newest, UInt64(log.slotCount))
    sequence = Atomic(floor)
    known = Monitor(Known(floor: floor, sequence: floor))
  }

  /// What hides records in a transaction; usually nothing, and then without a lock.
  func purges<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> [Purge] {
    let id = transaction.id
    let settled = settledIn.load(ordering: .acquiring)
    if log.sequence == sequence.load(ordering: .acquiring), id >= settled, settled >= lastMark { return [] }
    let hiding = known.withLock { $0.hiding }
    if hiding.transactionID == id, hiding.sequence == log.sequence { return hiding.purges }
    return try purgesNow(in: transaction)
  }

  /// The last transaction that may have made a mark without the log.
  @inline(__always)
  private var lastMark: UInt64 {
    file.index.unretained?._withUnsafeGuaranteedRef { $0[IndexLayout.Word.lastMark] } ?? .max
  }

  private func purgesNow<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> [Purge] {
    let id = transaction.id
    let counters = try file.counters(in: transaction)
    let change = counters.lastPurgeChange
    let marks = try marks(changedIn: change, in: transaction)
    return known.withLock { known in
      catchUp(&known)
      // A snapshot that is older than what is remembered may have lost sight of something: better it finds nothing.
      let hidden = known.logged(after: counters.adoptedRemoval).map { logged in
        logged.map { Purge(sequence: $0.sequence, scope: $0.scope, lastRowID: .max) }
      }
      let purges = marks + (hidden ?? [Purge(sequence: .max, scope: .everything, lastRowID: .max)])
      if id >= known.hiding.transactionID { known.hiding = (purges, id, known.sequence) }
      if change > known.marksChange {
        known.marksChange = change
        known.marks = marks
      }
      let settled = settledIn.load(ordering: .relaxed)
      if purges.isEmpty, id < settled || settled < lastMark { settledIn.store(id, ordering: .releasing) }
      return purges
    }
  }

  /// The removals that stand in the data as marks.
  func marks<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> [Purge] {
    try marks(changedIn: file.counters(in: transaction).lastPurgeChange, in: transaction)
  }

  private func marks<T: Transaction & ~Copyable>(
    changedIn change: UInt64, in transaction: borrowing T
  ) throws(LMDBError) -> [Purge] {
    if let marks = known.withLock({ $0.marksChange == change ? $0.marks : nil }) { return marks }
    return try file.purges(in: transaction)
  }

  /// Takes note of the latest removals, before the log has no room for them any more.
  func catchUp() {
    known.withLock { catchUp(&$0) }
  }

  /// Takes over what the log has and this process does not know yet.
  private func catchUp(_ known: inout Known) {
    let newest = log.sequence
    guard newest > known.sequence else { return }
    var number = max(known.sequence, newest - min(newest, UInt64(log.slotCount)))
    if number > known.sequence { forget(&known, upTo: number) }
    while number < newest {
      number += 1
      switch log.content(of: number) {
      case .removal(let scope): known.logged.append(Logged(sequence: number, scope: scope))
      case .overwritten: forget(&known, upTo: number)
      }
    }
    if known.logged.count > Self.longestMemory {
      forget(&known, upTo: known.logged[known.logged.count - Self.longestMemory / 2].sequence)
    }
    known.sequence = newest
    // First this: who finds the new number must not find that nothing is hidden.
    settledIn.store(.max, ordering: .releasing)
    sequence.store(newest, ordering: .releasing)
  }

  private func forget(_ known: inout Known, upTo number: UInt64) {
    known.logged.removeAll { $0.sequence <= number }
    known.floor = max(known.floor, number)
  }

  /// Whether a removal after a number covers what is described; what is not known any more counts as removed. The number is
  /// moved to the last removal that was looked at. Costs a nanosecond when there was none.
  func wasRemoved(after number: inout UInt64, isCovered: (RemovalScope) -> Bool) -> Bool {
    guard log.sequence != number else { return false }
    let (later, newest) = known.withLock { known -> (ArraySlice<Logged>?, UInt64) in
      catchUp(&known)
      return (known.logged(after: number), known.sequence)
    }
    number = max(number, newest)
    guard let later else { return true }
    return later.contains { isCovered($0.scope) }
  }
}
