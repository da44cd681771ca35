/// The parameters of a scenario of the series `tiers`.
///
/// All checks are made in all scenarios. Each of the first five scenarios makes one kind of violation likely.
struct TierScenario: Sendable {
  var name: String
  var processCount = 2
  /// The memory capacities in bytes of the caches that each process opens on the directory.
  var memoryCapacities = [1 << 20, 1 << 20]
  var diskCapacity = 64 << 20
  /// The number of keys whose responses are stored by `storeCachedResponse(_:for:)`.
  var storedKeyCount = 0
  /// The number of keys whose responses come from the origin.
  var fetchedKeyCount = 0
  var sizes = TierContent.Sizes.aroundMemoryLimits
  // In each process:
  var lookupThreadCount = 1
  var storeThreadCount = 1
  /// The number of threads that store bodies in pieces.
  var pieceThreadCount = 0
  var fetchTaskCount = 0
  var purgeThreadCount = 1
  /// The maximum time between two purges of a thread, in microseconds.
  var purgePause = 1500
  /// Whether all purges cover everything, a date range or a host.
  var purgesWidely = false
  /// The maximum time between two writes of a thread, in microseconds.
  var storePause = 3000
  /// Whether a key is stored again only after a purge has covered it.
  var storesAfterPurges = false
  /// Whether the tool `urlcache purge` also purges.
  var usesTool = false
  /// The maximum delay of the origin in milliseconds.
  var originDelay = 0
  /// Whether bodies are read while they arrive, and some not to their end. The origin sends them with pauses, and cuts
  /// some.
  var streams = false
  /// The maximum time between two kills of a process, in milliseconds; 0 for none.
  var killPause = 0
  var disk = Disk.healthy

  enum Disk: Equatable, Sendable {
    case healthy
    /// Each sync is delayed by a number of milliseconds.
    case slow(milliseconds: Int)
    /// One write or sync of each process fails with EIO.
    case failing
  }

  static let all: [TierScenario] = [
    // Many threads look up the same few entries of the memory tier during purges.
    TierScenario(
      name: "hits", memoryCapacities: [1 << 20], storedKeyCount: 4, sizes: .small, lookupThreadCount: 24,
      purgePause: 300, purgesWidely: true, storePause: 500, storesAfterPurges: true),
    // The memory tier rejects or evicts a response that is still a pending write, or that another cache replaces.
    TierScenario(
      name: "replacements", processCount: 1, memoryCapacities: [1 << 20, 1 << 20, 0], storedKeyCount: 8,
      sizes: .upToFourMiB, lookupThreadCount: 6, storeThreadCount: 2, purgePause: 300_000, storePause: 50_000),
    // The caches of a process replace responses that all of them have in memory.
    TierScenario(
      name: "caches", processCount: 1, memoryCapacities: [1 << 20, 1 << 20, 4 << 20], storedKeyCount: 16, sizes: .small,
      lookupThreadCount: 6, storeThreadCount: 3, purgePause: 300_000, storePause: 500),
    // Other processes, the tool and the other cache of the process purge while the origin is slow.
    TierScenario(
      name: "fetches", fetchedKeyCount: 24, sizes: .small, storeThreadCount: 0, fetchTaskCount: 12,
      purgePause: 20_000, usesTool: true, originDelay: 60),
    // Bodies that are written while they arrive, in processes that are killed.
    TierScenario(
      name: "large bodies", processCount: 3, memoryCapacities: [1 << 20, 0], storedKeyCount: 8, fetchedKeyCount: 8,
      sizes: .large, pieceThreadCount: 2, fetchTaskCount: 6, purgePause: 500_000, storePause: 50_000, originDelay: 40,
      streams: true, killPause: 1200),
    together("together"),
    together("slow disk", .slow(milliseconds: 30)),
    together("failing disk", .failing),
  ]

  private static func together(_ name: String, _ disk: Disk = .healthy) -> TierScenario {
    TierScenario(
      name: name, processCount: 3, memoryCapacities: [1 << 20, 4 << 20, 0], storedKeyCount: 40, fetchedKeyCount: 24,
      lookupThreadCount: 3, storeThreadCount: 2, fetchTaskCount: 6, purgePause: 30_000, storePause: 8_000,
      usesTool: true, originDelay: 40, disk: disk)
  }
}
