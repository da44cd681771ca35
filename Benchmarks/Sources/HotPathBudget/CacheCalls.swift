import Foundation
import FoundationNetworking
import LMDBURLCache
import RedisTier

/// - Parameter redis: The socket of a Redis server; nil to leave the calls in a fleet out.
func cacheCalls(_ folder: String, redis: String?) throws -> [HotCall] {
  let inMemory = try LMDBURLCache(
    directory: URL(fileURLWithPath: folder + "/memory"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
  let inFleet = try redis.map {
    try LMDBURLCache(
      directory: URL(fileURLWithPath: folder + "/fleet"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20,
      options: try fleetOptions($0))
  }
  let withRules = try LMDBURLCache(
    directory: URL(fileURLWithPath: folder + "/rules"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20,
    options: try optionsWithRules())
  let onDisk = try LMDBURLCache(
    directory: URL(fileURLWithPath: folder + "/disk"), memoryCapacity: 0, diskCapacity: 64 << 20)
  let fields = [
    "Content-Type": "image/webp", "Content-Length": "1024", "Date": "Fri, 20 Nov 2026 10:00:00 GMT",
    "Cache-Control": "public, max-age=86400", "ETag": "\"5f3e-1\"", "Last-Modified": "Mon, 02 Nov 2026 08:30:00 GMT",
    "Server": "nginx/1.22.1", "Accept-Ranges": "bytes", "X-Request-Id": "0b8f7c1e-1",
    "Strict-Transport-Security": "max-age=63072000",
  ]
  guard let url = URL(string: "http://assets.example.com/images/0000000001/photo.webp"),
    let response = HTTPURLResponse(url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: fields)
  else { fatalError("Foundation makes no response") }
  let request = URLRequest(url: url)
  let cached = CachedURLResponse(response: response, data: Data(repeating: 7, count: 1 << 10))
  for cache in [inMemory, onDisk, withRules] {
    cache.storeCachedResponse(cached, for: request)
    guard cache.flush(), cache.cachedResponse(for: request) != nil else { fatalError("missed") }
  }
  // With a lifetime that does not end.
  var freshFields = fields
  freshFields["Cache-Control"] = "public, max-age=2000000000"
  guard let freshURL = URL(string: "http://assets.example.com/images/0000000002/photo.webp"),
    let freshResponse = HTTPURLResponse(
      url: freshURL, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: freshFields)
  else { fatalError("Foundation makes no response") }
  let fresh = URLRequest(url: freshURL)
  for cache in [inMemory, onDisk, withRules] {
    cache.storeCachedResponse(CachedURLResponse(response: freshResponse, data: cached.data), for: fresh)
    guard cache.flush() else { fatalError("not stored") }
  }
  // Of the size of a usual image or script.
  guard let largerURL = URL(string: "http://assets.example.com/images/0000000003/photo.webp") else {
    fatalError("no URL")
  }
  freshFields["Content-Length"] = "\(usualByteCount)"
  guard
    let largerResponse = HTTPURLResponse(
      url: largerURL, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: freshFields)
  else { fatalError("Foundation makes no response") }
  let larger = URLRequest(url: largerURL)
  for cache in [inMemory, onDisk] {
    let data = Data(repeating: 7, count: usualByteCount)
    cache.storeCachedResponse(CachedURLResponse(response: largerResponse, data: data), for: larger)
    guard cache.flush() else { fatalError("not stored") }
  }
  // Content as search APIs have it.
  var query = URLRequest(url: freshURL)
  query.httpMethod = "QUERY"
  query.setValue("application/json", forHTTPHeaderField: "Content-Type")
  query.httpBody = Data(repeating: UInt8(ascii: "q"), count: 1 << 10)
  inMemory.storeCachedResponse(CachedURLResponse(response: freshResponse, data: cached.data), for: query)
  let equivalent = try storeForEquivalents(in: inMemory)
  var urlOptions = LMDBURLCache.Options()
  urlOptions.caching.usesNoVarySearch = false
  let withoutNoVarySearch = try LMDBURLCache(
    directory: URL(fileURLWithPath: folder + "/urls"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20,
    options: urlOptions)
  try loadOnce(equivalent, through: withoutNoVarySearch)
  let callsInFleet = inFleet.map { inFleet in
    storeInFleet(cached, for: request, in: inFleet)
    storeInFleet(CachedURLResponse(response: freshResponse, data: cached.data), for: fresh, in: inFleet)
    return [
      HotCall(name: "cachedResponse, memory, in a fleet") { _ in
        if inFleet.cachedResponse(for: request) == nil { fatalError("missed") }
      },
      HotCall(name: "data(for:), memory, in a fleet") { _ in load(fresh, through: inFleet) },
    ]
  }
  return (callsInFleet ?? []) + [
    HotCall(name: "cachedResponse, memory") { _ in
      if inMemory.cachedResponse(for: request) == nil { fatalError("missed") }
    },
    HotCall(name: "cachedResponse, disk, with response") { _ in
      let found = onDisk.cachedResponse(for: request)
      if found?.data.count != 1 << 10 || (found?.response as? HTTPURLResponse)?.statusCode != 200 {
        fatalError("missed")
      }
    },
    HotCall(name: "cachedResponse, disk") { _ in
      if onDisk.cachedResponse(for: request)?.data.count != 1 << 10 { fatalError("missed") }
    },
    HotCall(name: "data(for:), memory") { _ in load(fresh, through: inMemory) },
    HotCall(name: "data(for:), memory, 11 KB") { _ in load(larger, through: inMemory, byteCount: usualByteCount) },
    HotCall(name: "data(for:), disk, 11 KB") { _ in load(larger, through: onDisk, byteCount: usualByteCount) },
    HotCall(name: "data(for:), memory, QUERY of 1 KB") { _ in load(query, through: inMemory) },
    HotCall(name: "data(for:), memory, No-Vary-Search") { _ in load(equivalent, through: inMemory) },
    HotCall(name: "data(for:), memory, the same by its URL") { _ in load(equivalent, through: withoutNoVarySearch) },
    HotCall(name: "cachedResponse, memory, 20 rules") { _ in
      if withRules.cachedResponse(for: request) == nil { fatalError("missed") }
    },
    HotCall(name: "data(for:), memory, 20 rules") { _ in load(fresh, through: withRules) },
    HotCall(name: "data(for:), disk") { _ in load(fresh, through: onDisk) },
    // For comparison with "disk, with response": creates the same objects from parts in memory.
    HotCall(name: "bare construction") { _ in
      guard let response = HTTPURLResponse(url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: fields)
      else { fatalError("Foundation makes no response") }
      let copy = cached.data.withUnsafeBytes { Data($0) }
      let made = CachedURLResponse(response: response, data: copy, userInfo: nil, storagePolicy: .allowed)
      if made.data.count != 1 << 10 || (made.response as? HTTPURLResponse)?.statusCode != 200 { fatalError("missed") }
    },
  ]
}

/// The options of a cache in a fleet. Its lease outlasts the program, so hits do not reach Redis.
func fleetOptions(_ socket: String) throws -> LMDBURLCache.Options {
  var configuration = RedisTier.Configuration()
  configuration.lease = .seconds(3600)
  var options = LMDBURLCache.Options()
  options.fleet = try RedisTier(
    url: "unix://" + socket, secret: Data(repeating: 7, count: 32), configuration: configuration)
  return options
}

/// Stores a response in a cache of a fleet, and waits until the machine has a lease, so that the response is used.
func storeInFleet(_ cached: CachedURLResponse, for request: URLRequest, in cache: LMDBURLCache) {
  let deadline = Date() + 60
  repeat {
    cache.storeCachedResponse(cached, for: request)
    if cache.cachedResponse(for: request) != nil { return }
    usleep(20_000)
  } while Date() < deadline
  fatalError("the cache got no lease")
}

/// Options with 20 rules, of which the last two match the requests of the calls.
func optionsWithRules() throws -> LMDBURLCache.Options {
  var rules = (1...18).map { number in
    CachingRule(name: "\(number)", hosts: ["*.host\(number).example.com"], paths: ["/images/*.webp"], lifetime: 60)
  }
  rules.append(CachingRule(name: "host", hosts: ["assets.example.com"], ignoredQueryParameters: ["token"]))
  rules.append(CachingRule(name: "path", paths: ["/images/*.webp"], ignoredResponseFields: ["Server"]))
  var options = LMDBURLCache.Options()
  options.rules = try CachingRules(rules)
  return options
}

/// Loads a URL once, so that its response is stored with its No-Vary-Search. Returns an equivalent URL's request.
func storeForEquivalents(in cache: LMDBURLCache) throws -> URLRequest {
  let port = startServer(
    "HTTP/1.1 200 OK\r\nContent-Type: image/webp\r\nContent-Length: 1024\r\nServer: nginx/1.22.1\r\nConnection: close"
      + "\r\nCache-Control: public, max-age=2000000000\r\nETag: \"5f3e-1\"\r\nAccept-Ranges: bytes\r\n"
      + "Last-Modified: Mon, 02 Nov 2026 08:30:00 GMT\r\nX-Request-Id: 0b8f7c1e-1\r\n"
      + "No-Vary-Search: params=(\"utm_source\" \"utm_medium\" \"utm_campaign\")\r\n\r\n"
      + String(repeating: "x", count: 1024))
  func url(_ campaign: String) throws -> URL {
    let text = "http://127.0.0.1:\(port)/products/photo.webp?id=42&utm_source=news&utm_campaign=\(campaign)"
    guard let url = URL(string: text) else { throw URLError(.badURL) }
    return url
  }
  let (first, same) = (try url("spring"), URLRequest(url: try url("autumn")))
  try loadOnce(URLRequest(url: first), through: cache)
  guard cache.cachedResponse(for: same) != nil else { fatalError("not equivalent") }
  return same
}
