// Repeats each hot call and prints its heap allocations per call. Under callgrind it also writes a file with the
// instruction count of each call. Neither count depends on the machine's load. `Scripts/bench guard` compares both with
// the committed thresholds.

import CAllocationCount
import CachingStorage
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import RedisTier
import Synchronization

struct HotCall {
  let name: String
  /// Performs the call; the argument is the number of earlier calls.
  let run: (Int) -> Void
}

func makeKey(_ index: Int, byteCount: Int) -> RequestKey {
  guard let key = RequestKey(urlString: "http://assets.example.com/images/\(byteCount)/\(index)/photo.webp") else {
    fatalError("the URL has no key")
  }
  return key
}

func makeResponse(byteCount: Int) -> CacheableResponse {
  let fields = HeaderFields((0..<10).map { ("X-Field-\($0)", "the value of field \($0)") })
  let freshness = FreshnessInfo(responseTime: Date(), initialAge: 0, lifetime: 86400, date: Date())
  return CacheableResponse(
    status: 200, fields: fields, body: Data(repeating: 7, count: byteCount), freshness: freshness,
    vary: VaryKey(fields: []))
}

func storeCalls(_ folder: String) throws -> [HotCall] {
  var options = ResponseStore.Options(capacityByteCount: 64 << 20)
  options.runsInBackground = false
  let store = try ResponseStore.open(directory: folder, options: options)
  let sizes = [1 << 10, 16 << 10, 256 << 10]
  for size in sizes {
    for index in 0..<16 { store.store(makeResponse(byteCount: size), for: makeKey(index, byteCount: size)) }
  }
  try store.flush()
  var calls: [HotCall] = []
  for size in sizes {
    let keys = (0..<16).map { makeKey($0, byteCount: size) }
    calls.append(
      HotCall(name: "lookup \(size >> 10) KB") { number in
        if store.lookup(keys[number & 15])?.withBodyBytes({ $0.byteCount }) != size { fatalError("missed") }
      })
  }
  let keys = (0..<16).map { makeKey($0, byteCount: 1 << 10) }
  calls.append(
    HotCall(name: "lookup 1 KB, body as Data") { number in
      if store.lookup(keys[number & 15])?.body.count != 1 << 10 { fatalError("missed") }
    })
  let borrowed = makeKey(1, byteCount: 1 << 10)
  calls.append(
    HotCall(name: "borrowed 1 KB") { _ in
      if store.withResponse(borrowed, { $0.bodyByteCount }) != 1 << 10 { fatalError("missed") }
    })
  guard let absent = RequestKey(urlString: "http://assets.example.com/none") else { fatalError("the URL has no key") }
  calls.append(HotCall(name: "lookup, absent") { _ in if store.lookup(absent) != nil { fatalError("found") } })
  calls.append(
    HotCall(name: "request key") { _ in
      if RequestKey(urlString: "http://assets.example.com/images/0000000001/photo.webp") == nil { fatalError("no key") }
    })
  // New entries, committed 256 at a time.
  var stored = 16
  calls.append(
    HotCall(name: "store 1 KB, with its commit") { _ in
      store.store(makeResponse(byteCount: 1 << 10), for: makeKey(stored, byteCount: 1 << 10))
      stored += 1
      if stored & 255 == 0 { while store.writePending() {} }
    })
  // After a 304: the body is neither copied nor hashed. Committed 16 at a time.
  let validated = (0..<16).compactMap { store.lookup(makeKey($0, byteCount: 256 << 10)) }
  guard validated.count == 16 else { fatalError("missed") }
  let (freshFields, freshness) = (validated[0].fields, validated[0].freshness)
  calls.append(
    HotCall(name: "update 256 KB, with its commit") { number in
      guard store.update(validated[number & 15], fields: freshFields, freshness: freshness) else {
        fatalError("not updated")
      }
      if number & 15 == 15 { while store.writePending() {} }
    })
  return calls
}

/// The size of a usual response.
let usualByteCount = 11 << 10

/// Loads a response that is fresh in the cache: the task then completes on this thread, without suspending.
func load(_ request: URLRequest, through cache: LMDBURLCache, byteCount: Int = 1 << 10) {
  let task = Task.immediate {
    let data = try await cache.data(for: request).0
    loadedByteCount.store(data.count, ordering: .relaxed)
  }
  if loadedByteCount.exchange(0, ordering: .relaxed) != byteCount { fatalError("missed") }
  withExtendedLifetime(task) {}
}

let loadedByteCount = Atomic(0)

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

/// A server on the loopback interface that sends the same response to each request, on a thread of its own.
func startServer(_ response: String) -> UInt16 {
  let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
  var address = sockaddr_in()
  address.sin_family = sa_family_t(AF_INET)
  address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
  var length = socklen_t(MemoryLayout<sockaddr_in>.size)
  let port = withUnsafeMutablePointer(to: &address) { pointer -> UInt16? in
    pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
      guard bind(listener, pointer, length) == 0, listen(listener, 8) == 0,
        getsockname(listener, pointer, &length) == 0
      else { return false }
      return true
    } ? UInt16(bigEndian: pointer.pointee.sin_port) : nil
  }
  guard let port else { fatalError("the server cannot listen") }
  let (bytes, closes) = (Array(response.utf8), response.contains("Connection: close"))
  Thread {
    var request = [UInt8](repeating: 0, count: 1 << 16)
    while true {
      let connection = accept(listener, nil, nil)
      // Until the client closes its only connection.
      while recv(connection, &request, request.count, 0) > 0 {
        _ = send(connection, bytes, bytes.count, 0)
        if closes { break }
      }
      close(connection)
    }
  }.start()
  return port
}

/// Loads a request over the network.
func loadOnce(_ request: URLRequest, through cache: LMDBURLCache) throws {
  let isLoaded = DispatchSemaphore(value: 0)
  Task {
    _ = try await cache.data(for: request)
    isLoaded.signal()
  }
  isLoaded.wait()
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

/// Stores a response of 1 KB for each of some users of a URL. Returns the request of one of them.
func storeForUsers(_ count: Int, in cache: LMDBURLCache) throws -> URLRequest {
  let fields = ["Content-Type": "application/json", "Cache-Control": "private, max-age=2000000000", "ETag": "\"7a\""]
  guard let url = URL(string: "http://api.example.com/v2/of-\(count)/me"),
    let response = HTTPURLResponse(url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: fields)
  else { throw URLError(.badURL) }
  func request(_ user: Int) -> URLRequest {
    var request = URLRequest(url: url)
    request.setValue("Bearer eyJhbGciOiJIUzI1NiJ9.\(user).c2lnbmF0dXJl", forHTTPHeaderField: "Authorization")
    return request
  }
  let body = Data(repeating: 7, count: 1 << 10)
  for user in 0..<count {
    cache.storeCachedResponse(CachedURLResponse(response: response, data: body), for: request(user))
  }
  guard cache.flush(), cache.cachedResponse(for: request(count / 2)) != nil else { fatalError("not stored") }
  return request(count / 2)
}

/// Hits for one user of a URL. The responses are stored before the first call, and after the other calls were counted,
/// because many of them change what an allocation costs.
func userCalls(_ folder: String) -> [HotCall] {
  [("data(for:), memory, the only user", 1), ("data(for:), memory, one of 5,000 users", 5000)].map { name, count in
    var known: (LMDBURLCache, URLRequest)?
    return HotCall(name: name) { _ in
      if let (cache, request) = known { return load(request, through: cache) }
      do {
        let cache = try LMDBURLCache(
          directory: URL(fileURLWithPath: folder + "-\(count)"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
        known = (cache, try storeForUsers(count, in: cache))
      } catch {
        fatalError("\(error)")
      }
    }
  }
}

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

/// Responds at once with the fields that nginx sends.
struct ReadyTransport: Transport {
  let response: IncomingResponse

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse { response }
}

/// Misses of a caching client, from the request to the stored response, without a network.
func missCalls(_ folder: String) throws -> [HotCall] {
  var plain = CachingOptions()
  plain.usesNoVarySearch = false
  return [
    try missCall("miss 11 KB, with its commit", folder, CachingOptions()),
    // Without the lookup of the record of equivalent URLs.
    try missCall("miss 11 KB, with its commit, without No-Vary-Search", folder + "-plain", plain),
  ]
}

func missCall(_ name: String, _ folder: String, _ caching: CachingOptions) throws -> HotCall {
  var options = ResponseStore.Options(capacityByteCount: 64 << 20)
  options.runsInBackground = false
  let store = try ResponseStore.open(directory: folder, options: options)
  let client = CachingClient(store: store, options: caching)
  let fields: HeaderFields = [
    "Server": "nginx/1.22.1", "Date": HTTPDate.format(Date()), "Content-Type": "application/octet-stream",
    "Content-Length": "\(usualByteCount)", "Last-Modified": "Mon, 02 Nov 2026 08:30:00 GMT", "Connection": "keep-alive",
    "ETag": "\"5f3e-2c00\"", "Cache-Control": "max-age=2000000000", "Accept-Ranges": "bytes",
  ]
  let body = Data(repeating: 7, count: usualByteCount)
  let transport = ReadyTransport(
    response: IncomingResponse(head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(body)))
  // New URLs, committed 64 at a time.
  var loaded = 0
  return HotCall(name: name) { _ in
    guard let url = URL(string: "http://assets.example.com/images/\(loaded)/photo.webp") else { fatalError("no URL") }
    let request = CachingClientRequest(head: RequestHead(url: url))
    let task = Task.immediate {
      let response = try await client.respond(to: request, over: transport)
      loadedByteCount.store(response.body.bytes?.count ?? 0, ordering: .relaxed)
    }
    if loadedByteCount.exchange(0, ordering: .relaxed) != body.count { fatalError("not loaded") }
    withExtendedLifetime(task) {}
    loaded += 1
    if loaded & 63 == 0 { while store.writePending() {} }
    if client.statistics.stored != loaded { fatalError("not stored") }
  }
}

/// A response of 11 KB over libcurl, from a server in this process. Counts the caller, the I/O thread and the server.
///
/// The allocations are those of the caller until it waits.
func transferCall() throws -> HotCall {
  let port = startServer(
    "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 20 Nov 2026 10:00:00 GMT\r\nContent-Type: image/webp\r\n"
      + "Content-Length: \(usualByteCount)\r\nLast-Modified: Mon, 02 Nov 2026 08:30:00 GMT\r\n"
      + "Connection: keep-alive\r\nETag: \"5f3e-2c00\"\r\nCache-Control: max-age=3600\r\n"
      + "Vary: Accept-Encoding\r\nAccept-Ranges: bytes\r\n\r\n"
      + String(repeating: "x", count: usualByteCount))
  guard let url = URL(string: "http://127.0.0.1:\(port)/images/0000000001/photo.webp") else {
    throw URLError(.badURL)
  }
  let (transport, request) = (CurlTransport(), OutgoingRequest(head: RequestHead(url: url)))
  let isReceived = DispatchSemaphore(value: 0)
  return HotCall(name: "transfer of 11 KB over libcurl") { _ in
    Task.immediate {
      let response = try await transport.send(request)
      loadedByteCount.store(response.body.bytes?.count ?? 0, ordering: .relaxed)
      isReceived.signal()
    }
    isReceived.wait()
    if loadedByteCount.exchange(0, ordering: .relaxed) != usualByteCount { fatalError("not received") }
  }
}

let folder = NSTemporaryDirectory() + "/guard-\(getpid())"
try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
let chosen = CommandLine.arguments.dropFirst()
// For a profiler: repeats a call without callgrind's own counters.
let isProfiled = ProcessInfo.processInfo.environment["GUARD_TIMES"] != nil
let times = ProcessInfo.processInfo.environment["GUARD_TIMES"].flatMap { Int($0) } ?? 1000
let redis = ProcessInfo.processInfo.environment["GUARD_REDIS"]
let calls =
  try storeCalls(folder + "/store") + cacheCalls(folder, redis: redis) + missCalls(folder + "/misses")
  + userCalls(folder + "/users") + [transferCall()]
for call in calls where chosen.isEmpty || chosen.contains(call.name) {
  // Warm up: one-time allocations are not counted.
  for number in 0..<20 { call.run(number) }
  let before = allocation_count()
  if !isProfiled { instructions_begin() }
  for number in 0..<times { call.run(number) }
  if !isProfiled { instructions_end(call.name) }
  print("\(call.name)\t\(Double(allocation_count() - before) / Double(times))")
}
if allocation_count() == 0 { fatalError("Allocations are not counted") }
try FileManager.default.removeItem(atPath: folder)
