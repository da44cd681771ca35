import Foundation
import FoundationNetworking
import LMDBURLCache

func fetch(_ url: URL, cachingIn directory: URL) async throws {
  // The error names the path, the cause and the remedy.
  let cache = try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)

  // URLCache.shared is this cache, and URLSession.shared caches. To be called before the first URLSession is made.
  LMDBURLCache.installShared(cache)

  // Any other session caches too: data tasks with completion handler, delegate or async.
  let session = URLSession(configuration: .default.caching(with: cache))
  let (page, _) = try await session.data(from: url)

  // For servers: a hit never touches URLSession, and runs on the caller's thread.
  let (data, response) = try await cache.data(for: URLRequest(url: url))
  print(page == data, response.url == url, cache.statistics.requests.hits)

  // When a purge returns, no thread and no process reads what it covers any more.
  cache.removeCachedResponses(since: Date(timeIntervalSinceNow: -600))
  cache.removeCachedResponses(forHost: "api.example.com")
}
