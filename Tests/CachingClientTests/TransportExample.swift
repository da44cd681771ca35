import CachingStorage
import FoundationEssentials
import HTTPCaching

/// Some HTTP client: a head, then chunks.
protocol HTTPClient: Sendable {
  func execute(
    method: String, url: URL, fields: [(String, String)], body: Data?
  ) async throws -> (status: Int, fields: [(String, String)], chunks: AsyncThrowingStream<Data, any Error>)
}

struct ClientTransport<Client: HTTPClient>: Transport {
  let client: Client

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let head = request.head
    var content: Data?
    if case .bytes(let bytes) = request.body { content = bytes }
    let received = try await client.execute(
      method: head.method, url: head.url, fields: head.fields.map { ($0.name, $0.value) }, body: content)
    return IncomingResponse(
      head: ResponseHead(status: received.status, fields: HeaderFields(received.fields)),
      body: ResponseBodyStream(received.chunks))
  }
}

/// Loads a URL through a cache in memory and on disk.
func load(_ url: URL, over client: some HTTPClient, cachingIn directory: String) async throws -> Data {
  let cache = try ResponseCache(directory: directory, memoryCapacity: 16 << 20, diskCapacity: 64 << 20)
  let cachingClient = CachingClient(cache)
  var request = CachingClientRequest(head: RequestHead(url: url))
  request.maximumRedirectCount = 20

  // A fresh hit of up to 1 MiB needs no await and no task.
  if let hit = cachingClient.storedResponse(to: request), let bytes = hit.body.bytes { return bytes }

  let response = try await cachingClient.respond(to: request, over: ClientTransport(client: client))
  return try await response.body.collect(upTo: 16 << 20)
}
