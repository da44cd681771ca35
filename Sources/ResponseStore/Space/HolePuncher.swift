import LMDB

/// Returns free pages to the file system, because `data.mdb` never shrinks by itself.
///
/// Owns the position of a pass over the free pages. The eviction thread runs it in steps. Calls ``DiskSpace``.
struct HolePuncher: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let space: DiskSpace
  private let state = Monitor(State())

  private struct State {
    /// Whether a removal has freed pages. If most of the file is free, the pages are returned.
    var isAfterRemoval = false
    var pass: Pass?
  }

  private struct Pass {
    var position: LMDBEnvironment.FreePagePosition
    /// Whether the directory exceeds its limit, so that every free page is returned. Otherwise only long runs are.
    var isNeeded: Bool
  }

  /// Records that a removal has freed pages.
  func noteRemoval() {
    state.withLock { $0.isAfterRemoval = true }
  }

  // MARK: Steps

  /// Returns free pages if the directory exceeds its limit, or after removals that left most of the file free.
  ///
  /// The limit is the disk usage with the whole map in use. Below it, free pages are kept for later records: a hole
  /// costs a system call, and pages written into holes are fragmented on disk. For an oversized file the limit is the
  /// capacity, so that the pages of a few transactions fit.
  ///
  /// - Returns: Whether there is more to do.
  func reclaimFreePages(maximumPageCount: Int = 128) throws(LMDBError) -> Bool {
    let budget = space.budget
    let ceiling =
      budget.isFileOversized
      ? max(budget.capacityByteCount, budget.transactionStartPageCount * database.pageByteCount) : space.diskCeiling
    let isOverCeiling = space.diskByteCount > ceiling
    if let pass = state.withLock({ $0.pass }) {
      return try reclaimFreePages(pass, maximumPageCount: maximumPageCount)
    }
    let isAfterRemoval = state.withLock { state -> Bool in
      // Do not retry pages that a reader or the file system kept; the next removal does.
      defer { state.isAfterRemoval = false }
      return state.isAfterRemoval
    }
    guard isOverCeiling || isAfterRemoval else { return false }
    // A small surplus is not worth the commits, and will soon be reused.
    let surplus = try space.diskByteCount - space.livePageCount() * database.pageByteCount
    let isTooMuch = isOverCeiling && space.diskByteCount > ceiling && surplus > budget.capacityByteCount / 32
    guard isTooMuch || (isAfterRemoval && surplus > budget.capacityByteCount / 2) else { return false }
    // Pages freed by the last transactions can be punched only after two more commits.
    for _ in 0..<2 { try space.commitEmptyTransaction() }
    return try reclaimFreePages(Pass(position: .start, isNeeded: isTooMuch), maximumPageCount: maximumPageCount)
  }

  private func reclaimFreePages(_ pass: Pass, maximumPageCount: Int) throws(LMDBError) -> Bool {
    if pass.position == .start { space.noteReleasedReserve() }
    // Writers wait during this call. The cost of a hole does not depend on its length.
    let next =
      pass.isNeeded
      ? try database.environment.releaseFreePages(from: pass.position, maximumPageCount: maximumPageCount).next
      : try database.environment.releaseFreePages(
        from: pass.position, maximumPageCount: 64 * maximumPageCount, minimumRunPageCount: 32
      ).next
    state.withLock { $0.pass = next.map { Pass(position: $0, isNeeded: pass.isNeeded) } }
    return next != nil
  }
}
