import Glibc
import LMDB
import Synchronization

/// The end of a store whose data cannot be trusted or reached any more, and how its directory comes into use again.
///
/// The object stays what it is: every lookup misses, every store is dropped. Whoever holds it may open the directory anew, in
/// the same process too; what then closes the old files waits for whoever still reads them.
extension ResponseStore {
  /// Whether the store was given up: because damage was found in it, a removal could not be written down, or its directory was
  /// deleted or renamed. Nothing is found in it and nothing is stored any more, and a removal does nothing.
  /// ``open(directory:options:)`` opens the directory anew, and finds it empty.
  public var isGivenUp: Bool { isCondemned }

  /// Opens the directory anew, in place of this store, which was given up. Its counts go on.
  ///
  /// - Throws: ``StoreError``, also when others have the old data open and have not noticed yet.
  package func openAnew(options: Options) throws(StoreError) -> ResponseStore {
    try StoreRegistry.shared.open(directory: directory, options: options, inPlaceOf: self)
  }

  /// Whether somebody may have opened the directory anew by now, after this store was given up.
  package var mayHaveSuccessor: Bool { storeDirectory.mayHoldOtherData }

  /// Gives the data up: reads miss in all processes, stores are dropped, and the next opening starts anew.
  func condemn(_ why: String) {
    // Whoever only looks leaves the verdict to the next one who opens it to use it.
    giveUp(why, condemnsData: !options.opensExistingOnly)
  }

  /// Gives the store up when its data is not where it was opened any more: what is stored would be found by nobody else, and
  /// purges by others would not be seen. The data may be good, wherever it is now. Costs a `stat`.
  func giveUpIfMoved() {
    guard !isForked, state.load(ordering: .relaxed) == State.open.rawValue,
      !file.environment.isDataFile(ofDirectory: directory)
    else { return }
    giveUp("its directory or its data was deleted, renamed or replaced", condemnsData: false)
  }

  /// Has the eviction thread look at the pages that lead to the records, if nobody has since the directory was opened first.
  func suspectDamage() {
    guard storeDirectory.suspectDamage() else { return }
    isStructureUnchecked.store(true, ordering: .relaxed)
    maintenance.update { state in
      state.structurePosition = .start
      state.datesPosition = nil
      state.areDatesChecked = false
      state.isWanted = true
    }
  }

  /// After a full map that nothing relieved: whether that is so because the list of free pages is damaged. Then nobody could store or
  /// delete anything any more.
  func hasLostPages() -> Bool {
    do throws(LMDBError) {
      // It adds up to the page; a few would not fill the map.
      return try file.environment.lostPageCount() > 16
    } catch {
      return error.isDamage
    }
  }

  /// Whether it is of no use any more, also for a reason that nobody has looked at yet.
  var isLost: Bool {
    giveUpIfMoved()
    return !isUsable
  }

  private func giveUp(_ why: String, condemnsData: Bool) {
    guard
      state.compareExchange(
        expected: State.open.rawValue, desired: State.condemned.rawValue, ordering: .sequentiallyConsistent
      ).exchanged
    else { return }
    Self.givenUpCount.add(1, ordering: .sequentiallyConsistent)
    if condemnsData { storeDirectory.condemn() }
    log(.condemned, "The response store is given up, and nothing is found in it until it is opened anew: \(why)")
    maintenance.update { $0.isWanted = true }
  }

  // MARK: Letting go

  /// Closes the files of a store that was given up, so that the directory can be opened anew. False if somebody is still at
  /// work in them.
  func letGo() -> Bool {
    guard !isForked, isCondemned else { return false }
    closeNow(as: .condemned)
    return closeFiles()
  }

  /// For the eviction thread when it ends: whether it is to go on with ``closeFiles()``.
  func beginsLettingGo() -> Bool {
    // Whoever was first to close waits for this thread, which so must not wait for him.
    isCondemned && options.letsGoWhenGivenUp && closeNow(as: .condemned, waitsForOthers: false)
  }

  /// The second half of ``letGo()``.
  func closeFiles() -> Bool {
    hasLetGo.withLock { hasLetGo -> Bool in
      guard !hasLetGo else { return true }
      guard queue.withLock({ $0.isClosed }), file.environment.close() else { return false }
      storeDirectory.letGo()
      StoreRegistry.shared.forget(self)
      hasLetGo = true
      return true
    }
  }

  // MARK: Snapshots

  /// How many stores this process has given up.
  private static let givenUpCount = Atomic<UInt64>(0)
  private static let snapshotMarkShift: UInt64 = 48

  /// A store that is opened in place of another has another mark, as that was given up before. Zero at first.
  static var currentSnapshotMark: UInt64 {
    givenUpCount.load(ordering: .sequentiallyConsistent) << snapshotMarkShift
  }

  /// The number of a removal in a snapshot that was given out; nil if it is from a store in whose place this was opened.
  @inline(__always)
  func removalNumber(in snapshot: UInt64) -> UInt64? {
    let number = snapshot ^ snapshotMark
    return number >> Self.snapshotMarkShift == 0 ? number : nil
  }
}
