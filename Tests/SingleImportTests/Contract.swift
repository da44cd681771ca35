import LMDBURLCache

// Each line of the public interface that users compile against, with this import alone. The target has the upcoming
// feature MemberImportVisibility.

func openCaches(at url: URL) throws -> [LMDBURLCache] {
  do {
    let cache = try LMDBURLCache(directory: url, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
    let other = LMDBURLCache(memoryCapacity: 20 << 20, diskCapacity: 50 << 20, diskPath: "CustomCache")
    return [cache, other]
  } catch let error as StoreError where error.code == .unusableDirectory {
    print(error.directory, error.reason, error.remedy, error.cause?.function ?? "", error.cause?.code == .accessDenied)
    throw error
  }
}

func share(_ cache: LMDBURLCache) -> URLSession {
  URLCache.shared = cache
  LMDBURLCache.installShared(cache)
  return URLSession(configuration: .default.caching(with: cache))
}

func load(_ url: URL, through cache: LMDBURLCache, and session: URLSession) async throws -> Data {
  let request = URLRequest(url: url, cachePolicy: .returnCacheDataElseLoad, timeoutInterval: 10)
  let (data, response) = try await cache.data(for: request)
  let (page, _) = try await cache.data(for: request, from: session)
  let (chunks, head) = try await cache.bytes(for: request)
  var all = Data()
  for try await chunk in chunks { all.append(chunk) }
  let result = try await cache.load(request)
  print(response.url == head.url, (response as? HTTPURLResponse)?.statusCode ?? 0, page.count == all.count)
  print(result.source == .hit, result.reason == .fresh, result.reason.id, result.storageRefusal?.summary ?? "")
  return data
}

func remove(_ url: URL, since date: Date, from cache: LMDBURLCache) async throws {
  cache.minCacheInterval = 300
  cache.ignoreMemoryOnlyStoragePolicy = false
  print(cache.isCached(url), LMDBURLCache.defaultCachePath)
  cache.removeCachedResponses(since: date)
  cache.removeCachedResponses(forHost: "api.example.com")
  cache.removeCachedResponses(withPrefix: url)
  cache.removeCachedResponses(inGroup: "g", origin: url)
  let scopes: [PurgeScope] = [
    .all, .since(date), .host("example.com"), .prefix(url), .group("g", origin: url), .url(url), .tag("product-42"),
    .tag("product-42", origin: url),
  ]
  for scope in scopes {
    try await cache.purge(scope, mode: .soft)
    try await cache.purge(scope, mode: .hard)
  }
  cache.flush()
}

func inspect(_ cache: LMDBURLCache) -> Int {
  let statistics = cache.statistics
  print(statistics.disk?.entryCount ?? 0, statistics.directory?.storageRefusals ?? [:])
  return Int(statistics.requests.hits)
}

func customOptions() -> LMDBURLCache.Options {
  var options = LMDBURLCache.Options()
  options.caching.mode = .shared
  options.overrides = { request in RequestOverrides(lifetime: request.url?.host == "example.com" ? 60 : nil) }
  var configuration = CurlTransport.Configuration()
  configuration.decodesContent = false
  options.transport = .curl(configuration)
  options.transport = .urlSession(.ephemeral)
  options.log = { print($0) }
  return options
}

func respond(to url: URL, cachingIn directory: String) async throws -> Data {
  let cache = try ResponseCache(directory: directory, memoryCapacity: 16 << 20, diskCapacity: 64 << 20)
  let cachingClient = CachingClient(cache)
  let request = CachingClientRequest(head: RequestHead(url: url, fields: ["Accept": "text/html"]))
  let transport = CurlTransport()
  let response = try await cachingClient.respond(to: request, over: transport)
  print(response.source == .miss, response.head.fields["Content-Type"] ?? "", response.storageRefusal == .noStore)
  return try await response.body.collect(upTo: 1 << 20)
}
