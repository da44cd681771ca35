import Glibc
import LMDB

/// Builds the index while it is absent, and replaces it with one of another size.
///
/// Owns the turn of this process, and when it tries again after a failure. The eviction thread and the writer thread
/// call it; opening a store builds a small index.
struct IndexMaintainer: Sendable {
  /// The maximum number of records whose index is built while the store is opened.
  static let recordCountIndexedAtOnce = 32_768
  /// An index with at most this number of cells is replaced by the writer, which takes a millisecond.
  private static let directCellCount = 1 << 16

  let context: StoreContext
  private var database: RecordDatabase { context.database }
  private var index: IndexFile { context.database.index }
  /// A thread that changes the file holds this lock.
  private let turn = Monitor(State())

  private struct State {
    /// When this process may try again after a failure.
    var retriesAt = MonotonicTime.now
    /// When this process may wait again for another one that replaces the index.
    var waitsAt = MonotonicTime.now
  }

  // MARK: Building

  /// Uses the index of this boot, if there is one that fits the data, and builds that of a small store.
  ///
  /// - Parameter isAlone: Whether no other process uses the directory.
  func prepare(isAlone: Bool) throws(LMDBError) {
    if isAlone { index.deleteUnfinishedFile() }
    let recordCount = try database.counters().entryCount
    if try hasFittingIndex(), isAlone, index.current.map({ UInt64($0.recordCount) }) != recordCount { index.discard() }
    let isSmall = recordCount <= UInt64(Self.recordCountIndexedAtOnce)
    if index.isAbsent, isSmall || !context.options.runsInBackground { _ = ensureIndex(waits: false) }
  }

  /// Lets a store that is only inspected do without an index that lacks a commit of a killed process, because only a
  /// writer can complete it.
  ///
  /// - Parameter isAlone: Whether no other process uses the directory.
  func prepareInspection(isAlone: Bool) throws(LMDBError) {
    guard isAlone, let index = index.current else { return }
    try database.environment.read { (transaction) throws(LMDBError) in
      if !index.isUpToDate(withCommit: transaction.id) { try database.buildPrivateIndex(in: transaction) }
    }
  }

  /// Returns whether an index is in use. While there is none, builds it, or waits for the process that does.
  ///
  /// - Parameter waits: Whether to wait for another process.
  func ensureIndex(waits: Bool = true) -> Bool {
    if !index.isAbsent, index.current != nil { return true }
    return turn.withLock { state in
      let start = MonotonicTime.now
      while context.isOpen {
        do throws(LMDBError) {
          if try hasFittingIndex() { return true }
          guard state.retriesAt <= .now else { return false }
          if claimFile(since: start) {
            defer { context.storeDirectory.releaseIndexClaim() }
            try build()
          } else if waits {
            usleep(10_000)
          } else {
            return false
          }
        } catch {
          noteFailure(error, &state)
          return false
        }
      }
      return false
    }
  }

  /// Maps the index in use, unless it is not of the last commit. Returns whether there is one.
  private func hasFittingIndex() throws(LMDBError) -> Bool {
    guard !index.isAbsent else { return false }
    do throws(LMDBError) {
      try database.write { (_) throws(LMDBError) in }
    } catch {
      guard index.isAbsent else { throw error }
    }
    return !index.isAbsent
  }

  private func build() throws(LMDBError) {
    while index.isAbsent, context.isOpen {
      if try database.buildIndex(progress: context.noteProgress) { return }
    }
  }

  private func noteFailure(_ error: LMDBError, _ state: inout State) {
    state.retriesAt = .now + (context.options.runsInBackground ? .seconds(1) : .zero)
    if context.fail(after: error) { return }
    context.log(.absentIndex, "The index cannot be built or mapped, so lookups miss and writes are dropped: \(error)")
  }

  /// Claims the new file for this process, so that processes do not build the same index at once.
  ///
  /// A claim ends with its process. If a suspended process has it, any other may do the work after the stall timeout:
  /// the first one that finishes puts its file in use.
  private func claimFile(since start: MonotonicTime) -> Bool {
    context.storeDirectory.claimIndex() || start.duration(to: .now) > context.options.stallTimeout
  }

  // MARK: Replacing

  /// Makes space for new records before their transaction. A large index that is not full is left to the eviction
  /// thread.
  func makeSpace(for count: Int) {
    guard let cellCount = index.wantedCellCount(adding: count), let present = index.current else { return }
    if present.cellCount <= Self.directCellCount || !present.hasSpace(for: count) {
      _ = replaceIndex(cellCount: cellCount, waits: true)
    } else {
      context.wakeMaintenance()
    }
  }

  /// Replaces an index that is nearly full, or too large for the capacity. Returns whether it did.
  func replaceIndex() -> Bool {
    index.wantedCellCount().map { replaceIndex(cellCount: $0, waits: false) } ?? false
  }

  /// Replaces the index. Only copying the records takes the write lock.
  private func replaceIndex(cellCount: Int, waits: Bool) -> Bool {
    turn.withLock { state in
      let start = MonotonicTime.now
      // Another thread or process may have done it.
      while let old = index.current, old.cellCount != cellCount, state.retriesAt <= .now {
        guard context.storeDirectory.claimIndex() else {
          // If the other process is suspended, records are evicted instead.
          let timeout = context.options.stallTimeout
          guard waits, state.waitsAt <= start else { return false }
          if start.duration(to: .now) > timeout / 10 { state.waitsAt = .now + timeout } else { usleep(1000) }
          continue
        }
        defer { context.storeDirectory.releaseIndexClaim() }
        do throws(LMDBError) {
          return replace(old, with: try index.create(cellCount: cellCount))
        } catch {
          state.retriesAt = .now + (context.options.runsInBackground ? .seconds(1) : .zero)
          return false
        }
      }
      return false
    }
  }

  private func replace(_ old: RecordIndex, with new: NewIndexFile) -> Bool {
    // Try again for the next records, without a pause: evicting others instead would outlast an error of the disk.
    // On an error the old index remains in use.
    let isDone = try? database.write { (transaction) throws(LMDBError) in
      index.current === old && index.replace(with: new, transactionID: transaction.id)
    }
    if isDone != true { new.delete() }
    return isDone == true
  }
}
