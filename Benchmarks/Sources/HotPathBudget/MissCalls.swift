import CachingStorage
import Foundation
import HTTPCaching
import Synchronization

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
  // Each flush makes one commit.
  options.commitDelay = .seconds(3600)
  let store = try ResponseStore.open(directory: folder, options: options)
  var cacheOptions = ResponseCache.Options()
  cacheOptions.caching = caching
  // Uses the store that is open.
  let cache = try ResponseCache(
    directory: folder, memoryCapacity: 0, diskCapacity: options.capacityByteCount, options: cacheOptions)
  let client = CachingClient(cache)
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
    withExtendedLifetime((task, store)) {}
    loaded += 1
    if loaded & 63 == 0, !cache.flush() { fatalError("not written") }
    if client.statistics.stored != loaded { fatalError("not stored") }
  }
}

/// Responds at once with the fields that nginx sends.
struct ReadyTransport: Transport {
  let response: IncomingResponse

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse { response }
}
