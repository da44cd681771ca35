import CacheModel
public import CachingClient
public import FoundationEssentials
public import HTTPCaching
import ResponseStore
import SystemFiles

extension ResponseCache {
  /// Options that are fixed for the life of a cache.
  public struct Options: Sendable {
    /// The rules of HTTP to apply: those of a private cache by default, of a shared one with `caching.mode = .shared`.
    public var caching = CachingOptions()
    /// The same as `caching.staleAfter`.
    public var staleAfter: Duration? {
      get { caching.staleAfter }
      set { caching.staleAfter = newValue }
    }
    /// The same as `caching.coalescingTimeout`.
    public var coalescingTimeout: Duration? {
      get { caching.coalescingTimeout }
      set { caching.coalescingTimeout = newValue }
    }
    /// The maximum size in bytes of a body that a caching client stores; no limit of its own by default.
    ///
    /// In any case it is a quarter of the disk capacity, or 5% of the memory capacity if that is more. Values below 0
    /// count as 0. A body of more than 1 MiB is written to disk while it arrives. A larger one than this is streamed to
    /// the caller and not stored.
    public var maximumStoredBodyByteCount = Int.max
    /// The tier that the caches of several machines share; none by default.
    ///
    ///     options.fleet = try RedisTier(url: "redis://10.0.0.5:6379", secret: secret)   // product RedisTier
    ///
    /// Purges then hold on all machines, and a machine that cannot learn of purges validates each response. The cache
    /// needs a disk tier.
    public var fleet: (any FleetTier)?
    /// Whether the directory may be a symbolic link or belong to another user. False by default.
    public var allowsUntrustedDirectory = false
    /// Whether every read from disk verifies the checksums; false by default.
    ///
    /// If false, only a process's first read of a record does. If true, each read costs a pass over header and body.
    public var verifiesEveryRead = false
    /// Returns the time; the system clock by default.
    public var clock: @Sendable () -> Date = { Date() }
    /// Receives one line per kind of error; no line contains a query, header value or body.
    ///
    /// Standard error by default. A line is dropped if standard error is closed, full or has no reader. Called on the
    /// thread that met the error; it must not use the cache.
    public var log: @Sendable (String) -> Void = { line in StandardError.writeLine(line) }
    /// Whether the mode is recorded in the directory, for tools; true by default. A tool does not count as a program.
    package var recordsMode = true

    /// Creates options with their default values.
    public init() {}

    /// Returns the options of a store in the directory of the cache.
    package func storeOptions(diskCapacity: Int) -> ResponseStore.Options {
      var options = ResponseStore.Options(capacityByteCount: diskCapacity)
      options.clock = clock
      options.allowsUntrustedDirectory = allowsUntrustedDirectory
      options.verifiesEveryRead = verifiesEveryRead
      options.checksLease = fleet != nil
      options.log = log
      return options
    }
  }
}
