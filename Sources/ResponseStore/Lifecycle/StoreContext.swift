import CacheActivity
import CacheModel
import Glibc
import LMDB
import Synchronization

/// The parts that the components of a store share: its files, options and counters, the writes that are not committed,
/// and whether the store is usable.
///
/// Each component holds the context and reaches the others only through references of its own. The context calls no
/// component. Its members can be used from any thread.
final class StoreContext: Sendable {
  /// The store's directory.
  let directory: String
  let options: ResponseStore.Options
  let storeDirectory: StoreDirectory
  let database: RecordDatabase
  let environment: Unretained<LMDBEnvironment>
  let index: Unretained<IndexMapping>
  let removalLog: RemovalLog
  let removals: KnownRemovals
  /// Statistics. A reopened store continues those of the failed one.
  let counts: StoreCounters
  /// The shared counters. Their ``ProcessTable`` lists this process while the store is open.
  let activityFile: ActivityFile?
  /// Distinguishes removal tokens from those of other stores of this process; in the upper bits of a token.
  let tokenTag: UInt64
  /// Wakes and ends the eviction thread.
  let maintenance = Monitor(MaintenanceSignal())
  /// The status page of ``storeDirectory``.
  private let statusPage: SharedStatusPage
  /// The generation of the open data.
  private let generation: UInt64
  let queue = Monitor(WriteQueue())
  let pendingWrites = PendingWrites()
  private let loggedIssues = Monitor<Set<Issue>>([])
  private let state = Atomic<State.RawValue>(State.open.rawValue)
  private let progress = Atomic<UInt64>(0)

  enum State: UInt8 {
    case open
    /// The generation has ended, or this process must open the data again: LMDB could not write a meta page, or the
    /// directory has moved.
    case failed
    /// The process is exiting: lookups by its other threads miss.
    case exiting
    case closed
  }

  /// The kinds of issues. Each is logged once.
  enum Issue: Hashable, Sendable {
    case corruptRecord, absentIndex, fullDisk, fileSizeLimit, fullDatabase, fullIndex, fullQueue
    case failed, failedRead, failedWrite, failedRemoval, failedEviction
    case failedClosing, resized, lowCapacity, forked, oversizedBody, oversizedHead, tooManyVariants
  }

  struct MaintenanceSignal {
    /// Whether a thread asked for a step.
    var isWanted = false
    var isClosing = false
  }

  init(
    directory: StoreDirectory, database: RecordDatabase, removalLog: RemovalLog, options: ResponseStore.Options,
    counts: StoreCounters
  ) {
    self.directory = directory.path
    self.options = options
    storeDirectory = directory
    (statusPage, generation) = (directory.lockedStatusPage, directory.generation)
    self.database = database
    environment = Unretained(database.environment)
    index = Unretained(database.index.mapping)
    self.removalLog = removalLog
    removals = KnownRemovals(database: database, log: removalLog)
    self.counts = counts
    activityFile = counts.activity.file
    // No tag is that of ``RemovalToken/max``.
    tokenTag = (Self.storeCount.wrappingAdd(1, ordering: .relaxed).oldValue % 0xFFFF) << Self.tagShift
  }

  // MARK: State

  /// Whether the store can be used. Traps after it was closed.
  var isUsable: Bool {
    switch state.load(ordering: .relaxed) {
    case State.open.rawValue:
      if isGenerationInUse { return true }
      goOffline("another process replaces the data")
      return false
    case State.closed.rawValue: Trap.usedAfterClose(directory)
    default: return false
    }
  }

  /// The same for the store's threads, which may go on after a close that timed out. Never traps.
  var isUsableInBackground: Bool {
    guard state.load(ordering: .relaxed) == State.open.rawValue else { return false }
    if !isGenerationInUse { goOffline("another process replaces the data") }
    return isGenerationInUse
  }

  /// Whether the generation of the data has not ended. Costs a load.
  ///
  /// Removals then count, even if this process must open the data again.
  @inline(__always)
  var isGenerationInUse: Bool { statusPage[.generation] == generation }

  /// Whether a response with No-Vary-Search may be stored. While no process has stored one in this generation, a miss
  /// of a URL needs no lookup for equivalent ones. Costs a load.
  @inline(__always)
  var mayHaveEquivalentURLs: Bool { statusPage[.plainGeneration] != generation + 1 }

  /// Call this before the record of a path's key space can be found.
  func noteEquivalentURLs() { statusPage[.plainGeneration] = 0 }

  /// A random number that the processes have in common which have the generation open together.
  var keySpaceSeed: UInt64 { statusPage[.keySpaceSeed] }

  /// Whether the store has neither failed nor been closed. Never traps.
  var isOpen: Bool { state.load(ordering: .relaxed) == State.open.rawValue && isGenerationInUse }
  var hasFailed: Bool {
    switch state.load(ordering: .relaxed) {
    case State.open.rawValue: !isGenerationInUse
    case State.failed.rawValue: true
    default: false
    }
  }
  var isExiting: Bool { state.load(ordering: .relaxed) == State.exiting.rawValue }
  var isClosed: Bool { state.load(ordering: .relaxed) == State.closed.rawValue }

  /// Whether the store is unusable, after a check of its directory.
  var isUnusable: Bool {
    failIfDirectoryMoved()
    return !isUsable
  }

  /// Whether this is a forked child. The threads and LMDB's reader slots belong to the parent, so the store does not
  /// work here.
  var isForked: Bool { getpid() != database.environment.openedProcessID }

  /// Whether the threads are to end.
  var isClosing: Bool { maintenance.withLock { $0.isClosing } }

  /// Sets the state for good. Call this when the threads have ended.
  func close(as final: State) {
    state.store(final.rawValue, ordering: .relaxed)
  }

  // MARK: Failure

  /// Ends the generation in every process: lookups miss, writes are dropped, and the next open creates an empty store.
  func fail(_ reason: String) {
    // An inspection leaves the decision to the next process that opens the store for use.
    if !options.opensExistingOnly { storeDirectory.endGeneration() }
    goOffline(reason)
  }

  /// Fails the store if its data or its lock file is no longer where it was opened. Costs two `stat`.
  ///
  /// Other processes would not find new responses there, and their removals would not be seen. In a directory that was
  /// renamed, the data is intact.
  func failIfDirectoryMoved() {
    guard !isForked, isOpen else { return }
    let reason: String
    if !database.environment.isDataFile(ofDirectory: storeDirectory.dataDirectory) {
      reason = "its directory or its data was deleted, renamed or replaced"
    } else if !storeDirectory.isLockFileInPlace {
      reason = "\(StoreDirectory.lockFileName) was deleted or replaced"
    } else {
      return
    }
    if storeDirectory.isInPlace { fail(reason) } else { goOffline(reason) }
  }

  /// Fails the store in this process alone, which must open the directory again.
  private func goOffline(_ reason: String) {
    let (isFirst, _) = state.compareExchange(
      expected: State.open.rawValue, desired: State.failed.rawValue, ordering: .sequentiallyConsistent)
    guard isFirst else { return }
    if !isForked { storeDirectory.endUse() }
    counts.activity.add(1, .failures)
    counts.activity.observers.emit(.storeFailed(reason: reason))
    log(.failed, "The store failed and is offline: \(reason). Lookups miss until it is reopened")
    wakeMaintenance()
  }

  /// Fails the store because of an error after which it cannot go on. Returns false for other errors.
  ///
  /// After `MDB_PANIC` this process has to open the data again. LMDB reports it when it could not write a meta page.
  /// The data is intact then, and other processes go on.
  func fail(after error: LMDBError) -> Bool {
    switch error.code {
    case .panic: goOffline("\(error)")
    case _ where error.isCorruption: fail("\(error)")
    default: return false
    }
    return true
  }

  /// Handles an error of a read that is treated as a miss.
  func readFailed(_ error: LMDBError) {
    if fail(after: error) { return }
    log(.failedRead, "A lookup failed and was treated as a miss: \(error)")
  }

  func log(_ issue: Issue, _ text: @autoclosure () -> String) {
    guard loggedIssues.withLock({ $0.insert(issue).inserted }) else { return }
    options.log("LMDBURLCache: \(text()) (\(directory))")
  }

  // MARK: Threads

  /// Wakes the eviction thread for a step.
  func wakeMaintenance() {
    maintenance.update { $0.isWanted = true }
  }

  /// Records a step of a long operation of the eviction thread, for ``waitUnlessStalled(_:timeout:countsSteps:for:)``.
  func noteProgress() {
    progress.add(1, ordering: .relaxed)
  }

  /// Waits like `Monitor.wait`, but returns nil after a stall of ``ResponseStore/Options/stallTimeout``.
  ///
  /// A stall is a time in which no process commits. Returns at most an eighth of the timeout after the end of the
  /// stall.
  ///
  /// - Parameter countsSteps: Whether calls of ``noteProgress()`` end a stall, too. Choosing victims or reclaiming
  ///   pages may take longer than a commit. A caller that waits for the writer must not count them: the eviction thread
  ///   wakes up every few seconds, also while no process can commit.
  func waitUnlessStalled<Value, R>(
    _ monitor: Monitor<Value>, timeout: Duration? = nil, countsSteps: Bool = false, for body: (inout Value) -> R?
  ) -> R? {
    func position() -> (UInt64, UInt64) {
      (database.environment.lastTransactionID, countsSteps ? progress.load(ordering: .relaxed) : 0)
    }
    let timeout = timeout ?? options.stallTimeout
    var last = position()
    var deadline = MonotonicTime.now + timeout
    while true {
      let rest = MonotonicTime.now.duration(to: deadline)
      if let result = monitor.wait(timeout: min(rest, timeout / 8), for: body) { return result }
      let newest = position()
      if newest != last {
        last = newest
        deadline = .now + timeout
      } else if deadline <= .now {
        return nil
      }
    }
  }

  // MARK: Removal tokens

  /// The number of stores that this process has opened.
  private static let storeCount = Atomic<UInt64>(0)
  private static let tagShift: UInt64 = 48

  /// The sequence number in a removal token; nil if the token is from another store, whose removals this one does not
  /// know.
  @inline(__always)
  func removalNumber(in token: UInt64) -> UInt64? {
    let number = token ^ tokenTag
    return number >> Self.tagShift == 0 ? number : nil
  }
}
