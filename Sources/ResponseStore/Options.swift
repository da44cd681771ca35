import FoundationEssentials
import LMDB
import SystemFiles

extension ResponseStore {
  /// The options for opening a store.
  public struct Options: Sendable {
    /// The capacity of the directory in bytes on disk; at least ``ResponseStore/minimumCapacityByteCount``.
    ///
    /// All processes share one capacity: the last one that was set or used to open the store.
    public var capacityByteCount: Int
    /// Returns the time at which a response is stored. The system's clock by default.
    public var clock: @Sendable () -> Date = { Date() }
    /// Whether to open only an existing store, without changing it; false by default. For tools that inspect a store.
    ///
    /// Nothing is created, repaired or replaced, and the store's own capacity replaces ``capacityByteCount``.
    /// Opening never waits for a writer. Only removals change the store; ``ResponseStore/writePending()`` and
    /// ``ResponseStore/maintain()`` do nothing.
    public var opensExistingOnly = false
    /// Whether the store's user checks the lease of its machine before each lookup.
    package var checksLease = false
    /// Whether threads write and evict. True by default.
    ///
    /// Without threads, ``ResponseStore/writePending()`` and ``ResponseStore/maintain()`` do one step each, for tests.
    public var runsInBackground = true
    /// Whether to verify checksums at every read instead of only at this process's first read of a record; false by
    /// default.
    public var verifiesEveryRead = false
    /// Whether the directory may be a symbolic link or belong to another user; false by default.
    public var allowsUntrustedDirectory = false
    /// How long a write may wait for others to be committed with it; 10 ms by default.
    public var commitDelay: Duration = .milliseconds(10)
    /// The maximum size of the write queue in bytes; 32 MiB by default.
    ///
    /// `store(_:)` waits for space when the queue is full. Pending deletions for dropped writes may take as much again.
    /// The last committed batch may use additional memory until the next writes or until the queue is empty.
    public var queueByteCount = 32 << 20
    /// The maximum size of the write queue with deletions for dropped writes, in bytes.
    var queueByteCountWithDiscards: Int { 2 * min(max(queueByteCount, 0), .max / 2) }
    /// How long a write waits for space in the queue before it is dropped and counted; 1 s by default.
    public var fullQueueTimeout: Duration = .seconds(1)
    /// How long opening waits for another process that is opening or closing; 5 s by default.
    public var openTimeout: Duration = .seconds(5)
    /// How long operations wait while no process commits; 10 s by default.
    ///
    /// Then `flush()` throws, `close()` abandons queued writes, a new capacity is deferred, and a removal fails the
    /// store, because nothing else would hide the removed responses.
    public var stallTimeout: Duration = .seconds(10)
    /// How often the eviction thread checks that the directory has not moved; 4 s by default. The thread wakes every
    /// five seconds.
    package var directoryCheckInterval: Duration = .seconds(4)
    /// The minimum time for which an unused read transaction is kept for the next lookup; 5 s by default.
    package var idleReadTimeout: Duration = .seconds(5)
    /// Receives one line per kind of issue. Called on the thread that met the issue; must not use the store.
    ///
    /// By default the line goes to standard error, or nowhere when standard error is closed, full or has no reader.
    public var log: @Sendable (String) -> Void = { line in StandardError.writeLine(line) }

    /// Creates options with a capacity, and defaults for the rest.
    public init(capacityByteCount: Int) {
      self.capacityByteCount = capacityByteCount
    }

    /// Whether a store that must exist gets lock files if it has none, as by opening a cache; false by default.
    ///
    /// For a program that opens a cache on the directory afterwards.
    package var makesLockFiles = false

    /// Options to inspect an existing store without background threads; see ``opensExistingOnly``.
    public static var existing: Options {
      var options = Options(capacityByteCount: minimumCapacityByteCount)
      options.opensExistingOnly = true
      options.runsInBackground = false
      return options
    }
  }
}
