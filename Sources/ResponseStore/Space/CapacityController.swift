import LMDB

/// Applies a capacity: writes it down, fits the map, and tells when the surplus is evicted.
///
/// Setting a capacity runs on the caller's thread and waits for the eviction thread, which applies it: that thread may
/// wait for another process's write lock as long as necessary.
///
/// Owns the capacity that is set and not yet applied. Calls ``DiskSpace`` and ``Evictor``.
final class CapacityController: Sendable {
  private let context: StoreContext
  private let database: RecordDatabase
  private let space: DiskSpace
  private let evictor: Evictor
  private let state = Monitor(State())

  private struct State {
    /// A capacity that is set and not yet begun.
    var wanted: Int?
    /// How often a capacity was set, and how many of these are begun and applied.
    var setCount: UInt64 = 0
    var begunCount: UInt64 = 0
    var appliedCount: UInt64 = 0
    var isClosing = false
  }

  init(_ context: StoreContext, space: DiskSpace, evictor: Evictor) {
    self.context = context
    database = context.database
    self.space = space
    self.evictor = evictor
  }

  // MARK: For callers

  /// Whether a capacity that was set is still being applied.
  var isApplying: Bool { state.withLock { $0.appliedCount < $0.setCount } }

  /// Sets the capacity for all processes, and waits until it is applied or the disk stalls.
  ///
  /// - Parameter step: Does one step of maintenance in a store without threads; false when there is nothing left to do.
  func set(_ capacity: Int, step: () -> Bool) {
    // Another process may have set a capacity that this process has not seen. If it cannot be read, it counts as unchanged.
    try? space.refreshCapacity()
    // A capacity that is being applied counts as the current one.
    guard capacity != state.withLock({ $0.wanted }) ?? space.capacityByteCount else { return }
    let order = state.withLock { state -> UInt64 in
      state.wanted = capacity
      state.setCount += 1
      return state.setCount
    }
    context.wakeMaintenance()
    guard context.options.runsInBackground else {
      while step() {}
      return
    }
    let isDone = context.waitUnlessStalled(state) { $0.appliedCount >= order || $0.isClosing ? true : nil }
    if isDone == nil {
      context.log(
        .resized,
        "The new disk capacity is pending: it takes effect when the process that holds the write lock resumes or exits")
    }
  }

  /// Ends the waits of callers, as the eviction thread is about to end.
  func endWaits() {
    state.update { $0.isClosing = true }
  }

  // MARK: For the eviction thread

  /// Begins with a capacity that was set. The next steps evict the surplus.
  func applyWanted() {
    let capacity = state.withLock { state -> Int? in
      defer { state.wanted = nil }
      if state.wanted != nil { state.begunCount = state.setCount }
      return state.wanted
    }
    guard let capacity else { return }
    do throws(LMDBError) {
      try apply(capacity)
    } catch {
      context.log(.resized, "The capacity could not be set: \(error)")
      noteApplied()
    }
  }

  /// Notes that the surplus is evicted.
  func noteApplied() {
    state.update { state in
      // A capacity that was set meanwhile needs steps of its own.
      state.appliedCount = max(state.appliedCount, state.begunCount)
    }
  }

  /// Writes the capacity down and fits the map. Evicting the surplus and shrinking the file take more steps, maybe for
  /// minutes.
  func apply(_ capacity: Int) throws(LMDBError) {
    try space.growMap(toCapacity: capacity)
    let stored = try database.environment.read { (transaction) throws(LMDBError) in
      try database.counters(in: transaction).capacityByteCount
    }
    if stored != UInt64(capacity) {
      do throws(LMDBError) {
        try write(capacity)
      } catch {
        guard error.code == .mapFull, evictor.recoverFromMapFull() else { throw error }
        try write(capacity)
      }
    }
    space.setBudget(capacityByteCount: capacity)
    let budget = space.budget
    let usage = try space.usage()
    let isTooMuch = usage.pageCount > budget.maximumLivePageCount || usage.entryCount > budget.highEntryCount
    guard isTooMuch || database.index.isTooLarge || space.diskByteCount > space.diskCeiling else { return }
    space.beginShrinking()
    context.wakeMaintenance()
  }

  private func write(_ capacity: Int) throws(LMDBError) {
    try space.commit { (transaction) throws(LMDBError) in
      var counters = try database.counters(in: transaction)
      counters.capacityByteCount = UInt64(capacity)
      try database.setCounters(counters, in: transaction)
    }
  }
}
