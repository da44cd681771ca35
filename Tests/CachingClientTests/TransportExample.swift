import CachingClient
import FoundationEssentials
import HTTPCaching
import ResponseStore

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
    let answer = try await client.execute(
      method: head.method, url: head.url, fields: head.fields.map { ($0.name, $0.value) }, body: content)
    return IncomingResponse(
      head: ResponseHead(status: answer.status, fields: HTTPFields(answer.fields)),
      body: ResponseBody(answer.chunks))
  }
}

/// Loads a URL through a store on disk.
func load(_ url: URL, over client: some HTTPClient, cachingIn directory: String) async throws -> Data {
  let store = try ResponseStore.open(directory: directory, options: .init(capacityByteCount: 64 << 20))
  let engine = CachingClient(store: store)
  let request = ClientRequest(head: RequestHead(url: url))

  // A fresh hit: no await, no task.
  if let hit = engine.storedAnswer(to: request), let bytes = hit.body.bytes { return bytes }

  let answer = try await engine.respond(to: request, over: ClientTransport(client: client))
  return try await answer.body.collect(upTo: 16 << 20)
}
