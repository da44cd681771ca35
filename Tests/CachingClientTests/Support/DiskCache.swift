import CachingStorage
import FoundationEssentials
import HTTPCaching
import Testing

/// Runs a test with a cache in a new directory, which stores responses of any lifetime on disk, with the test's clock.
/// Ends with a check of the store's invariants.
///
/// - Parameters:
///   - memoryCapacity: 0 by default, so that each lookup reads the disk.
///   - caching: By default, the sender of a body waits for the store as long as a busy test machine takes.
func withDiskCache(
  memoryCapacity: Int = 0, diskCapacity: Int = 4 << 20, clock: ManualClock = ManualClock(),
  caching: CachingOptions = .patient, maximumBodyByteCount: Int? = nil,
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
  if let maximumBodyByteCount { options.maximumStoredBodyByteCount = maximumBodyByteCount }
  let cache = try ResponseCache(
    directory: directory.path(), memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, options: options)
  cache.minimumDiskLifetime = 0
  try await body(cache)
  #expect(cache.flush(), "\(label)")
  #expect(cache.tiers.store?.checkInvariants() == [], "\(label)")
}

extension CachingOptions {
  static var patient: CachingOptions {
    var options = CachingOptions()
    options.storageWaitLimit = .seconds(60)
    return options
  }
}
