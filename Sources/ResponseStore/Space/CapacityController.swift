import LMDB

/// Applies a new capacity: stores it in the database, adapts the map, and reports when the surplus is evicted.
///
/// The caller's thread only requests a capacity and waits. The eviction thread applies it, because it can wait for
/// another process's write lock without limit.
///
/// Owns the capacity that was requested and not yet applied. Calls ``DiskSpace`` and ``Evictor``.
struct CapacityController: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let space: DiskSpace
  let evictor: Evictor
  private let state = Monitor(State())

  private struct State {
    /// The requested capacity; nil after the eviction thread has begun to apply it.
    var requested: Int?
    /// The capacity that the eviction thread is storing, possibly while it waits for another process's write lock.
    var applying: Int?
    /// Whether the surplus of an applied capacity may not be evicted yet.
    var isEvicting = false
    var isClosing = false

    var isApplied: Bool { requested == nil && !isEvicting }
  }

  // MARK: For callers

  /// Whether a requested capacity is not completely applied yet.
  var isApplying: Bool { state.withLock { !$0.isApplied } }

  /// Sets the capacity for all processes, and waits until it is applied or the disk stalls.
  ///
  /// - Parameter step: Does one step of maintenance in a store without threads; returns false if nothing is left to do.
  func set(_ capacity: Int, step: () -> Bool) {
    // Another process may have set a capacity that this process has not seen. If it cannot be read, it counts as
    // unchanged.
    try? space.refreshCapacity()
    // A capacity that is being applied counts as the current one.
    if capacity != state.withLock({ $0.requested ?? $0.applying }) ?? space.capacityByteCount {
      state.withLock { $0.requested = capacity }
      context.wakeMaintenance()
    } else if !isApplying {
      return
    }
    guard context.options.runsInBackground else {
      while step() {}
      return
    }
    let isDone = context.waitUnlessStalled(state, countsSteps: true) { $0.isApplied || $0.isClosing ? true : nil }
    if isDone == nil {
      context.log(
        .resized,
        "The new disk capacity is pending: it takes effect when the process that holds the write lock resumes or exits")
    }
  }

  /// Ends the waits of callers, because the eviction thread is about to end.
  func endWaits() {
    state.update { $0.isClosing = true }
  }

  // MARK: For the eviction thread

  /// Begins to apply a requested capacity. The next steps evict the surplus.
  func applyRequested() {
    let capacity = state.withLock { state -> Int? in
      defer { state.requested = nil }
      if state.requested != nil { state.isEvicting = true }
      state.applying = state.requested
      return state.requested
    }
    guard let capacity else { return }
    defer { state.withLock { $0.applying = nil } }
    do throws(LMDBError) {
      try apply(capacity)
    } catch {
      context.log(.resized, "The capacity could not be set: \(error)")
      noteApplied()
    }
  }

  /// Records that the surplus is evicted. A capacity that was requested in between needs further steps.
  func noteApplied() {
    state.update { $0.isEvicting = false }
  }

  /// Stores the capacity and adapts the map.
  ///
  /// Evicting the surplus and shrinking the file take further steps, possibly for minutes.
  func apply(_ capacity: Int) throws(LMDBError) {
    try space.growMap(toCapacity: capacity)
    if try database.counters().capacityByteCount != UInt64(capacity) {
      do throws(LMDBError) {
        try write(capacity)
      } catch {
        guard error.code == .mapFull, evictor.recoverFromMapFull() else { throw error }
        try write(capacity)
      }
    }
    space.setBudget(capacityByteCount: capacity)
    let budget = space.budget
    if budget.isCapacityTooLowForFiles {
      let byteCount = budget.maximumFilePageCount * database.pageByteCount
      context.log(
        .lowCapacity,
        "The capacity is too low for the files of the previous one: until a process opens the directory alone, the "
          + "data file takes up to \(byteCount) bytes")
    }
    let usage = try space.usage()
    let isTooMuch = usage.pageCount > budget.maximumLivePageCount || usage.entryCount > budget.highEntryCount
    guard isTooMuch || database.index.isTooLarge || space.diskByteCount > space.diskCeiling else { return }
    space.beginShrinking()
    context.wakeMaintenance()
  }

  private func write(_ capacity: Int) throws(LMDBError) {
    try space.commit(changesRecords: false) { (transaction) throws(LMDBError) in
      try database.change(in: transaction) { $0.counters.capacityByteCount = UInt64(capacity) }
    }
  }
}
