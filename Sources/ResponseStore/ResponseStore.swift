import FoundationEssentials
import Glibc
import LMDB
import Synchronization

/// Stored HTTP responses in a directory, on LMDB.
///
/// What to rely on:
///
/// - **Bound.** `capacityByteCount` is bytes on disk. The directory never takes more than that and 10 %: the map's size
///   is the ceiling, live pages are the measure, and the eviction thread works ahead of the writer: what has
///   expired first, then what is worth least.
/// - **Reads** run on the caller's thread, take no lock across disk work, never wait for the writer, and return copies.
///   Whatever cannot be read, or does not match its checksum, is a miss.
/// - **Stores** return at once and are readable at once by this process. They are committed by one writer thread, in
///   groups, within ``Options/commitDelay``; kill -9 loses what was not committed, a power cut at most one commit more.
///   ``flush()`` returns when all is safe.
/// - **Removals** return when nothing that they cover can be read again, by any thread or process, nor after a crash.
/// - **Sharing.** Any number of threads and processes may use one directory, on a local file system. Opening it twice in
///   one process gives the same object.
/// - **Failures** while running are misses and dropped stores, counted and logged once each; see ``StoreStatistics``.
///
/// After ``close()`` every use traps. In a child that was forked nothing is found and nothing is stored; the child may
/// open the directory anew.
public final class ResponseStore: Sendable {
  /// How a store is opened.
  public struct Options: Sendable {
    /// The bytes that the directory may take on disk. The least that works is ``ResponseStore/smallestCapacityByteCount``.
    /// All processes share one capacity: the latest to open or set it decides.
    public var capacityByteCount: Int
    /// What tells the time at which something is stored. The system's clock by default.
    public var clock: @Sendable () -> Date = { Date() }
    /// Whether only a store that is there is opened, as it is: nothing is made, repaired or set aside, and its own capacity
    /// is taken in place of ``capacityByteCount``. It waits for nobody who writes. Its data is not written to, also not by
    /// ``ResponseStore/writePending()`` and ``ResponseStore/maintain()``; only removals are made. False by default; for tools
    /// that look at a store.
    public var opensExistingOnly = false
    /// Whether threads write and evict. True by default; without them ``ResponseStore/writePending()`` and
    /// ``ResponseStore/maintain()`` do one step each, for tests.
    public var runsInBackground = true
    /// Whether checksums are compared at every read, not only at the first of a record by this process. False by default.
    public var verifiesEveryRead = false
    /// Whether a directory may be a symbolic link or belong to another user. False by default.
    public var allowsUntrustedDirectory = false
    /// How long a store may wait for others to be committed with it. 10 ms by default.
    public var commitDelay: Duration = .milliseconds(10)
    /// The bytes that may wait for the writer. 32 MiB by default. A store that finds no room waits for it. Notes of what was dropped
    /// may take as much again. The memory of the last group
    /// that was written may be held beside them, until others store or nothing more is to be written.
    public var queueByteCount = 32 << 20
    /// How long a store waits for room in the queue before it is dropped and counted. 1 s by default.
    public var fullQueueTimeout: Duration = .seconds(1)
    /// How long opening waits for another process that is opening or closing. 5 s by default.
    public var openTimeout: Duration = .seconds(5)
    /// How long a flush, closing or a new capacity waits while no process commits anything, and a removal for the log of
    /// removals: the disk hangs, or a process was stopped in the middle of writing. 10 s by default. A flush then throws;
    /// closing leaves behind what is queued; a new capacity takes effect later; a removal gives the store up, as nothing else
    /// would hide what it covers from all processes.
    public var stallTimeout: Duration = .seconds(10)
    /// Whether the threads of a store that was given up let go of its files, so that the directory can be opened anew: for whoever
    /// looks at ``ResponseStore/isGivenUp`` after each removal, and makes it once more in the store that is opened anew.
    package var letsGoWhenGivenUp = false
    /// How often the eviction thread looks whether the directory is still where it was opened: not more often than this, nor than
    /// it wakes, which is every five seconds. 4 s by default.
    var directoryCheckInterval: Duration = .seconds(4)
    /// How long a read transaction that is kept for the next lookup stays unused, at least, before its reader slot goes back to
    /// the other processes. 5 s by default.
    var idleReadTimeout: Duration = .seconds(5)
    /// Gets a line for each kind of trouble, on the thread that met it; it must not use the store. By default it goes to
    /// standard error, or nowhere when standard error is closed, full or has no reader.
    public var log: @Sendable (String) -> Void = { line in StandardError.writeLine(line) }

    /// Options with everything but the capacity at its default.
    public init(capacityByteCount: Int) {
      self.capacityByteCount = capacityByteCount
    }

    /// Options for a look at a store that is there; see ``opensExistingOnly``. No threads run, so nothing changes by itself.
    public static var existing: Options {
      var options = Options(capacityByteCount: smallestCapacityByteCount)
      options.opensExistingOnly = true
      options.runsInBackground = false
      return options
    }
  }

  /// The smallest capacity that works: 1 MiB. Below it LMDB's own pages leave no room.
  public static let smallestCapacityByteCount = 1 << 20

  /// The store's directory.
  public let directory: String

  let options: Options
  let storeDirectory: StoreDirectory
  let file: StoreFile
  /// Of `file`.
  let environment: Lent<Environment>
  /// Of `file`.
  let index: Lent<IndexFile>
  /// Frees segments; the lock is held for a step.
  let cleaner = Monitor(SegmentCleaner())
  let staging = StagingArea()
  let queue = Monitor(WriteQueue())
  /// Up to where ``flush()`` has told what was lost.
  let flushMark = Atomic<UInt64>(0)
  let maintenance = Monitor(MaintenanceState())
  /// Counts steps of whatever takes long; see ``noteProgress()``.
  let progress = Atomic<UInt64>(0)
  let removalLog: RemovalLog
  let removals: RemovalView
  let verified = VerifiedRecords()
  /// Those of the store in whose place this was opened go on.
  let counts: StatisticsCounters
  let limits: Monitor<Limits>
  let troubles = Log()
  let threads = Monitor<[BackgroundThread]>([])
  let state = Atomic<State.RawValue>(State.open.rawValue)
  /// Whether the pages that lead to records are still to be checked; until then a lookup checks those that it goes through.
  let isStructureUnchecked = Atomic(false)
  /// How many callers of `open` share this object and have not closed it.
  let openCount = Monitor(1)
  /// Whether a thread applies removals to the data of a store that has none of its own.
  let applying = Monitor(false)
  /// Whether the files of a store that was given up are closed.
  let hasLetGo = Monitor(false)
  /// Sets the numbers of removals apart from those of a store in whose place this was opened; in the upper bits of a snapshot.
  let snapshotMark: UInt64

  enum State: UInt8 {
    case open
    /// Damage was found, a removal could not be made durable, or the directory has gone: everything misses until the store is
    /// opened anew.
    case condemned
    /// The process is exiting: what its other threads still ask misses.
    case exiting
    case closed
  }

  init(
    directory: StoreDirectory, file: StoreFile, removalLog: RemovalLog, options: Options, counts: StatisticsCounters
  ) {
    self.directory = directory.path
    self.counts = counts
    snapshotMark = Self.currentSnapshotMark
    self.options = options
    storeDirectory = directory
    self.file = file
    environment = Lent(file.environment)
    index = Lent(file.index)
    self.removalLog = removalLog
    removals = RemovalView(file: file, log: removalLog)
    limits = Monitor(
      Self.limits(capacityByteCount: options.capacityByteCount, file: file, removalLog: removalLog))
    setIndexLimit(capacityByteCount: options.capacityByteCount)
  }

  deinit {
    // Threads hold the store only while they work, so the last reference may be theirs; `close` copes with that.
    closeNow(as: .closed)
  }

  /// Opens the store in a directory, which is made if it is missing.
  ///
  /// A directory that this process has open already gives the same object; its options stay, the capacity is set anew
  /// (unless ``Options/opensExistingOnly``). In place of one that was given up (``isGivenUp``) a new one is opened.
  /// Data that is damaged, or of another version, is set aside when nobody else uses it, and the store starts empty. A
  /// store that was closed uses its directory until its last reference is gone.
  ///
  /// Traps if the capacity is below ``smallestCapacityByteCount``.
  ///
  /// - Throws: ``StoreError`` if the directory cannot be used, holds a file that is not ours, or is in use by another
  ///   version of this library.
  /// - Complexity: Constant; it does not depend on the number of entries. What a lower capacity has no room for is evicted in the
  ///   background; ``StoreStatistics/excessByteCount`` says how much is left. After a power cut, or where damage may have ended a
  ///   process, the pages that lead to records are checked there, too.
  public static func open(directory: String, options: Options) throws(StoreError) -> ResponseStore {
    if options.capacityByteCount < smallestCapacityByteCount { Trap.capacityTooSmall(options.capacityByteCount) }
    return try StoreRegistry.shared.open(directory: directory, options: options)
  }

  /// Whether reads and writes go on.
  var isUsable: Bool {
    switch state.load(ordering: .relaxed) {
    case State.open.rawValue:
      if storeDirectory.condemnedFlag?.isSet == true {
        condemn("another process gave it up")
        return false
      }
      return true
    case State.closed.rawValue: Trap.usedAfterClose(directory)
    default: return false
    }
  }

  var isCondemned: Bool { state.load(ordering: .relaxed) == State.condemned.rawValue }

  /// In a child that was forked nothing works, as the threads and LMDB's reader slots are the parent's.
  var isForked: Bool { getpid() != file.environment.openedProcessID }

  func log(_ trouble: Log.Trouble, _ text: @autoclosure () -> String) {
    if troubles.isFirst(trouble) { options.log("LMDBURLCache: \(text()) (\(directory))") }
  }
}
