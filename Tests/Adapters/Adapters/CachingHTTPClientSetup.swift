import AsyncHTTPClient
import CachingStorage

/// Opens a cache of at most 512 MiB on disk and 32 MiB in memory, and returns a client that uses it.
func openCachingHTTPClient(directory: String) throws -> CachingHTTPClient {
  let cache = try ResponseCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
  let client = HTTPClient(configuration: AsyncHTTPClientTransport.configuration)
  return CachingHTTPClient(cachingClient: CachingClient(cache), client: client)
}
