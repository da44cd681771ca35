import Foundation
import FoundationNetworking
import LMDBURLCache

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

func openForShop(in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  options.caching.tagFieldNames = ["Surrogate-Key"]
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

func productHasChanged(_ number: Int, in cache: LMDBURLCache) async throws {
  try await cache.purge(.tag("product-\(number)"))
}

func openForFailingOrigin(in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  // The origin responds with 500, 502, 503 or 504: for a day, unless the response has a stale-if-error of its own.
  options.caching.staleIfErrorByDefault = 86_400
  // The origin does not respond.
  options.caching.servesStaleWhenUnreachable = true
  // The origin hangs: serve the stale response after two seconds, and fetch in the background.
  options.staleAfter = .seconds(2)
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

func openForTenants(in directory: URL) throws -> LMDBURLCache {
  var options = LMDBURLCache.Options()
  options.partition = { request in request.value(forHTTPHeaderField: "X-Tenant") ?? "" }
  return try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
}

/// Responds to the requests of a server from a cache, or with what a service sends.
struct Gateway: Sendable {
  /// The scheme, host and port of the service, such as `http://10.0.0.5:8080`.
  let service: String
  let transport: CurlTransport
  let client: CachingClient<ResponseCache>

  init(service: String, directory: String, transport: CurlTransport = CurlTransport()) throws {
    self.service = service
    self.transport = transport
    var options = ResponseCache.Options()
    options.caching.mode = .shared
    client = CachingClient(
      try ResponseCache(directory: directory, memoryCapacity: 64 << 20, diskCapacity: 512 << 20, options: options))
  }

  /// Returns the response to a request. Requests for one page at the same time become one request to the service.
  func respond(
    to method: String, _ target: String, _ fields: [(String, String)], _ content: Data = Data()
  ) async throws -> (head: ResponseHead, body: ResponseBodyStream) {
    // Another beginning could change the host.
    guard target.hasPrefix("/"), let url = URL(string: service + target) else {
      return (ResponseHead(status: 400, fields: [:]), .empty)
    }
    var head = RequestHead(method: method, url: url, fields: HeaderFields(fields).withoutHopByHop())
    // The transport sends its own.
    for name in ["Host", "Content-Length", "Expect"] { head.fields.remove(name) }
    let request = CachingClientRequest(head: head, body: content.isEmpty ? nil : .bytes(content))
    let response = try await client.respond(to: request, over: transport)
    return (response.deliveredHead, response.body)
  }
}

func report(on url: URL, through cache: LMDBURLCache) async throws -> String {
  let result = try await cache.load(URLRequest(url: url))
  let refusal = result.storageRefusal.map { "not stored: \($0)" } ?? "stored or from the cache"
  return "\(url.path): \(result.source.rawValue), \(refusal)"
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
