import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB
import Synchronization

/// The removals that this process knows.
///
/// Lookups need the removals that are in force but not applied. Holders of copies need the latest ones.
final class KnownRemovals: Sendable {
  private struct Known {
    /// The latest removals in the log.
    var logged: RemovalIndex
    var tombstones: [Tombstone] = []
    /// The transaction that last changed the tombstones.
    var tombstonesChange: UInt64 = 0
    /// The active tombstones of a transaction, with the removals up to a sequence number.
    var active: (tombstones: [Tombstone], transactionID: UInt64, sequence: UInt64) = ([], 0, 0)
  }

  /// The maximum number of remembered removals; older copies count as removed.
  static let maximumMemory = 4096

  private let database: RecordDatabase
  private let log: RemovalLog
  /// All removals up to this number are known.
  private let sequence: Atomic<UInt64>
  /// From this transaction on, no record is affected, unless a removal is newer than ``sequence``.
  private let settledIn = Atomic<UInt64>(.max)
  private let known: Monitor<Known>

  init(database: RecordDatabase, log: RemovalLog) {
    self.database = database
    self.log = log
    let newest = log.sequence
    let floor = newest - min(newest, UInt64(log.frameCount))
    sequence = Atomic(floor)
    known = Monitor(Known(logged: RemovalIndex(after: floor, capacity: Self.maximumMemory)))
  }

  /// The tombstones that hide records in a transaction, or make them stale: those in the database, and one for each
  /// logged removal that is not applied. Usually there is none, and then no lock is taken.
  @inline(__always)
  func activeTombstones(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> [Tombstone] {
    let settled = settledIn.load(ordering: .acquiring)
    let isSettled = log.sequence == sequence.load(ordering: .acquiring) && transaction.id >= settled
    return isSettled ? [] : try unsettledTombstones(in: transaction)
  }

  @inline(never)
  private func unsettledTombstones(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [Tombstone] {
    let active = known.withLock { $0.active }
    if active.transactionID == transaction.id, active.sequence == log.sequence { return active.tombstones }
    return try readActiveTombstones(in: transaction)
  }

  private func readActiveTombstones(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [Tombstone] {
    let id = transaction.id
    let counters = try database.counters(in: transaction)
    let change = counters.lastTombstoneChange
    let tombstones = try tombstones(changedIn: change, in: transaction)
    return known.withLock { known in
      catchUp(&known)
      // In a snapshot older than the remembered removals, every record counts as removed.
      let applied = counters.lastAppliedRemoval
      let logged = known.logged.removals(after: applied).map { removals in
        zip((applied + 1)..., removals).map { Tombstone(removal: $1, sequence: $0) }
      }
      let active = tombstones + (logged ?? [Tombstone(removal: Removal(.everything))])
      if id >= known.active.transactionID { known.active = (active, id, known.logged.last) }
      if change > known.tombstonesChange {
        known.tombstonesChange = change
        known.tombstones = tombstones
      }
      if active.isEmpty, id < settledIn.load(ordering: .relaxed) { settledIn.store(id, ordering: .releasing) }
      return active
    }
  }

  func tombstones(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> [Tombstone] {
    try tombstones(changedIn: database.counters(in: transaction).lastTombstoneChange, in: transaction)
  }

  private func tombstones(
    changedIn change: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [Tombstone] {
    if let tombstones = known.withLock({ $0.tombstonesChange == change ? $0.tombstones : nil }) { return tombstones }
    return try database.tombstones(in: transaction)
  }

  /// Reads the latest removals before later ones overwrite them in the log.
  func catchUp() {
    known.withLock { catchUp(&$0) }
  }

  /// Reads the logged removals that this process does not know yet.
  private func catchUp(_ known: inout Known) {
    let newest = log.sequence
    guard newest > known.logged.last else { return }
    let oldest = newest - min(newest, UInt64(log.frameCount))
    if oldest > known.logged.last { known.logged.forget(upTo: oldest) }
    while known.logged.last < newest {
      let number = known.logged.last + 1
      if let removal = log.removal(number) { known.logged.append(removal) } else { known.logged.forget(upTo: number) }
    }
    // Keep this order: a thread that sees the new number must not see an old `settledIn`.
    settledIn.store(.max, ordering: .releasing)
    sequence.store(newest, ordering: .releasing)
  }

  /// The effect of the removals after a number on a response; forgotten removals count as hard ones. The number is
  /// moved to the last removal that was compared. Costs a nanosecond if there was none.
  ///
  /// The parameters are those of ``CacheModel/RemovalIndex/effect(after:on:storedAt:fields:)``.
  func effect(
    after number: inout UInt64, on key: @autoclosure () -> RequestKey?, storedAt: @autoclosure () -> Date,
    fields: () -> HeaderFields?
  ) -> RemovalEffect {
    guard log.sequence != number else { return .none }
    let (bytes, date) = (key()?.bytes, storedAt())
    return known.withLock { known in
      catchUp(&known)
      defer { number = max(number, known.logged.last) }
      return known.logged.effect(after: number, on: bytes, storedAt: date, fields: fields)
    }
  }

  /// Whether a removal between two numbers may cover a response.
  ///
  /// - Parameter key: The cache key of the response; nil if any removal may cover it.
  func mayCover(_ key: RequestKey?, after number: UInt64, before removal: UInt64) -> Bool {
    guard removal > number + 1 else { return removal <= number }
    guard let key, let later = known.withLock({ $0.logged.removals(after: number) }) else { return true }
    return later.prefix(Int(clamping: removal - number - 1)).contains { $0.scope.mayCover(key) }
  }

  /// The effect of removals on a pending write since it was accepted. A write that only discards a record counts as
  /// removed.
  ///
  /// - Parameter date: The date of the record that an update changes, which never becomes earlier.
  func effect(on write: PendingWrite, datedAtLeast date: Date = .distantPast) -> RemovalEffect {
    if write.isDiscard { return .removed }
    var number = write.removalSequence
    return effect(after: &number, on: write.key, storedAt: max(write.head.updatedAt, date)) { write.head.fields }
  }
}
