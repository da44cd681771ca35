import LMDBURLCache
import RedisTier

func joinFleet(at url: URL, secret: Data) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  do {
    options.fleet = try RedisTier(url: "redis://127.0.0.1:6379", secret: secret)
  } catch {
    print(error.code == .invalidConfiguration, error.reason)
    throw error
  }
  return try LMDBURLCache(directory: url, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}
