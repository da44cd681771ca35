import CachingStorage
import FoundationEssentials
import HTTPCaching
import Testing

/// Runs a test with a cache in a new directory, which stores responses of any lifetime on disk, with the test's clock.
/// Ends with a check of the store's invariants.
///
/// - Parameter memoryCapacity: 0 by default, so that each lookup reads the disk.
func withDiskCache(
  memoryCapacity: Int = 0, diskCapacity: Int = 4 << 20, clock: ManualClock = ManualClock(),
  caching: CachingOptions = CachingOptions(),
  _ label: String = "", _ body: (ResponseCache) async throws -> Void
) async throws {
  let directory = FileManager.default.temporaryDirectory.appending(path: "cache-\(UUID().uuidString)")
  defer {
    // A leftover directory does no harm.
    try? FileManager.default.removeItem(at: directory)
  }
  var options = ResponseCache.Options()
  options.clock = { clock.now }
  options.caching = caching
  let cache = try ResponseCache(
    directory: directory.path(), memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, options: options)
  cache.minimumDiskLifetime = 0
  try await body(cache)
  #expect(cache.flush(), "\(label)")
  #expect(cache.tiers.store?.checkInvariants() == [], "\(label)")
}
