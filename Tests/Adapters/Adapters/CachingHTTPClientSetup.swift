import AsyncHTTPClient
import CachingStorage

/// Opens a cache of at most 512 MiB, and returns a client that uses it.
func openCachingHTTPClient(directory: String) throws -> CachingHTTPClient {
  let store = try ResponseStore.open(directory: directory, options: .init(capacityByteCount: 512 << 20))
  let client = HTTPClient(configuration: AsyncHTTPClientTransport.configuration)
  return CachingHTTPClient(cachingClient: CachingClient(store: store), client: client)
}
