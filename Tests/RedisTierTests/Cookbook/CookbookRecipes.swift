import Foundation
import FoundationNetworking
import LMDBURLCache
import RedisTier

func openWithHourLongResponses(of host: String, in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  options.overrides = { request in
    guard request.url?.host == host else { return .init() }
    // The API's cookies are not stored, and responses do not vary.
    return .init(lifetime: 3600, ignoredResponseFields: ["Set-Cookie", "Vary"], ignoredQueryParameters: ["token"])
  }
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

func openInWorker(_ directory: URL) throws -> LMDBURLCache {
  // The memory tier belongs to the process, and the directory to all processes.
  try LMDBURLCache(directory: directory, memoryCapacity: 16 << 20, diskCapacity: 512 << 20)
}

func refreshAfterDeployment(of host: String, in cache: LMDBURLCache) async throws {
  try await cache.purge(.host(host), mode: .soft)
}

func openForFailingOrigin(in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  // The origin responds with 500, 502, 503 or 504: for a day, unless the response has a stale-if-error of its own.
  options.caching.staleIfErrorByDefault = 86_400
  // The origin does not respond.
  options.caching.servesStaleWhenUnreachable = true
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

func openForTenants(in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  options.partition = { request in request.value(forHTTPHeaderField: "X-Tenant") ?? "" }
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

func openForManyUsers(in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  options.caching.mode = .shared
  return try LMDBURLCache(directory: directory, memoryCapacity: 64 << 20, diskCapacity: 512 << 20, options: options)
}

/// Handles a request of the server. Requests for one page at the same time become one request to the service.
func page(_ path: String, of service: URL, through cache: LMDBURLCache) async throws -> (status: Int, body: Data) {
  let (body, response) = try await cache.data(from: service.appendingPathComponent(path))
  return ((response as? HTTPURLResponse)?.statusCode ?? 502, body)
}

func report(on url: URL, through cache: LMDBURLCache) async throws -> String {
  let result = try await cache.load(URLRequest(url: url))
  let refusal = result.storageRefusal.map { "not stored: \($0)" } ?? "stored or from the cache"
  return "\(url.path) from \(result.source.rawValue), \(refusal)"
}

func warm(_ cache: LMDBURLCache, with urls: [URL]) async -> Int {
  await withTaskGroup(of: Bool.self) { group in
    var (next, successCount) = (urls.makeIterator(), 0)
    func addTask(_ url: URL) { group.addTask { (try? await cache.data(from: url)) != nil } }
    for _ in 0..<4 { if let url = next.next() { addTask(url) } }
    while let isSuccess = await group.next() {
      if isSuccess { successCount += 1 }
      if let url = next.next() { addTask(url) }
    }
    return successCount
  }
}

func openMachine(in directory: URL, redis: String, secret: Data) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  options.fleet = try RedisTier(url: redis, secret: secret)
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

/// Responds to each request with a page that is fresh for a minute.
final class PageStub: URLProtocol {
  override class func canInit(with request: URLRequest) -> Bool { true }
  override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }
  override func stopLoading() {}

  override func startLoading() {
    guard let url = request.url,
      let response = HTTPURLResponse(
        url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: ["Cache-Control": "max-age=60"])
    else { return }
    client?.urlProtocol(self, didReceive: response, cacheStoragePolicy: .allowed)
    client?.urlProtocol(self, didLoad: Data("a page".utf8))
    client?.urlProtocolDidFinishLoading(self)
  }
}

func openForTest(in directory: URL, clock: @escaping @Sendable () -> Date) throws -> LMDBURLCache {
  let configuration = URLSessionConfiguration.ephemeral
  configuration.protocolClasses = [PageStub.self]
  var options = LMDBURLCache.Options()
  options.transport = .urlSession(configuration)
  options.clock = clock
  return try LMDBURLCache(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 0, options: options)
}
