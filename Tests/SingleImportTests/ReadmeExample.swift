import Foundation
import FoundationNetworking
import LMDBURLCache

func fetch(_ url: URL, cachingIn directory: URL) async throws {
  // Throws a StoreError that names the path, the cause and the remedy.
  let cache = try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)

  // Makes the cache URLCache.shared and enables caching in URLSession.shared.
  // Call this before the process creates its first URLSession.
  LMDBURLCache.installShared(cache)

  // Any other session: data tasks with a completion handler, a delegate or async are cached.
  let session = URLSession(configuration: .default.caching(with: cache))
  let (page, _) = try await session.data(from: url)

  // Servers: a hit runs on the calling thread and does not use URLSession.
  let (data, response) = try await cache.data(for: URLRequest(url: url))
  print(page == data, response.url == url, cache.statistics.requests.hits)

  // Large bodies arrive in chunks, both from the origin and from the disk.
  let (chunks, _) = try await cache.bytes(for: URLRequest(url: url))
  for try await chunk in chunks { print(chunk.count) }

  // When a purge returns, no thread or process can read the purged responses.
  try await cache.purge(.since(Date(timeIntervalSinceNow: -600)))
  try await cache.purge(.host("api.example.com"))
  // After a soft purge they are stale: they are validated before use.
  try await cache.purge(.prefix(url), mode: .soft)
}
