/// The shape of one scenario of the series `tiers`: what each process does, and what the disk does to it.
///
/// All checks are made in all scenarios. The first three scenarios only make one kind of violation likely.
struct TierScenario: Sendable {
  var name: String
  var processCount = 2
  /// The caches of the directory that each process opens, by the capacity of their memory tiers in bytes.
  var memoryCapacities = [1 << 20, 1 << 20]
  var diskCapacity = 64 << 20
  /// Keys whose responses are stored by `storeCachedResponse(_:for:)`.
  var storedKeyCount = 0
  /// Keys whose responses come from the origin.
  var fetchedKeyCount = 0
  var sizes = TierContent.Sizes.aroundMemoryLimits
  // In each process:
  var lookupThreadCount = 1
  var storeThreadCount = 1
  var fetchTaskCount = 0
  var purgeThreadCount = 1
  /// The longest time between two purges of a thread, in microseconds.
  var purgePause = 1500
  /// Whether all purges cover much.
  var purgesWidely = false
  /// The longest time between two stores of a thread, in microseconds.
  var storePause = 3000
  /// Whether a key is stored again only when a purge has covered it.
  var storesAfterPurges = false
  /// Whether processes run the tool `urlcache purge`, too.
  var usesTool = false
  /// The longest delay of the origin in milliseconds.
  var originDelay = 0
  var disk = Disk.healthy

  enum Disk: Equatable, Sendable {
    case healthy
    /// Each sync takes so many milliseconds longer.
    case slow(milliseconds: Int)
    /// One write or sync of each process fails with EIO.
    case failing
  }

  static let all: [TierScenario] = [
    // Many threads meet a removal on the same few entries of the memory tier.
    TierScenario(
      name: "hits", memoryCapacities: [1 << 20], storedKeyCount: 4, sizes: .small, lookupThreadCount: 24,
      purgePause: 300, purgesWidely: true, storePause: 500, storesAfterPurges: true),
    // The memory tier rejects or trims a response that is still on its way to the disk.
    TierScenario(
      name: "replacements", processCount: 1, memoryCapacities: [1 << 20, 0], storedKeyCount: 8, sizes: .upToFourMiB,
      lookupThreadCount: 4, purgePause: 300_000, storePause: 50_000),
    // Other processes, the tool and the other cache of the process purge while the origin is slow.
    TierScenario(
      name: "fetches", fetchedKeyCount: 24, sizes: .small, storeThreadCount: 0, fetchTaskCount: 12,
      purgePause: 20_000, usesTool: true, originDelay: 60),
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
