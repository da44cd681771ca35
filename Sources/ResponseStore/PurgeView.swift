import LMDB
import Synchronization

/// The purges in force as this process last saw them, so that a lookup need not read them each time.
final class PurgeView: Sendable {
  private struct Seen {
    var change: UInt64 = 0
    var purges: [Purge] = []
  }

  private let file: StoreFile
  /// The newest transaction whose purges are known.
  private let transactionID = Atomic<UInt64>(0)
  /// The transaction that last changed them, and how many there are since.
  private let change = Atomic<UInt64>(0)
  private let count = Atomic<Int>(0)
  private let seen = Monitor(Seen())

  init(file: StoreFile) {
    self.file = file
  }

  /// The purges in force in a transaction; usually none, and then without a lock.
  func purges<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> [Purge] {
    let id = transaction.id
    if id > transactionID.load(ordering: .acquiring) {
      let change = try file.counters(in: transaction).lastPurgeChange
      if change > self.change.load(ordering: .relaxed) {
        let purges = try file.purges(in: transaction)
        seen.withLock { seen in
          guard change > seen.change else { return }
          seen.change = change
          seen.purges = purges
          // First the change: who finds no purges any more must also find since when.
          self.change.store(change, ordering: .releasing)
          count.store(purges.count, ordering: .releasing)
        }
      }
      transactionID.max(id, ordering: .releasing)
    }
    if count.load(ordering: .acquiring) == 0, id >= change.load(ordering: .acquiring) { return [] }
    let (known, purges) = seen.withLock { ($0.change, $0.purges) }
    // A reader of an older snapshot still sees rows that a purge, finished since, has to hide from it.
    return id >= known ? purges : try file.purges(in: transaction)
  }
}
