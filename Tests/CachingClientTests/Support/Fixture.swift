import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// A caching client on a storage in memory, with a test clock.
struct Fixture {
  let clock = ManualClock()
  let storage: MemoryStorage
  let client: CachingClient<MemoryStorage>

  init(
    options: CachingOptions = CachingOptions(), maximumBodyByteCount: Int = 1 << 20,
    storage: MemoryStorage = MemoryStorage()
  ) {
    self.storage = storage
    client = CachingClient(
      storage: storage, options: options, maximumBodyByteCount: maximumBodyByteCount, clock: { [clock] in clock.now })
  }

  /// Returns a 200 response with a `Date`, the given fields, and a body in memory.
  func ok(_ body: String = "body", _ fields: (String, String)...) -> IncomingResponse {
    response(200, body, fields)
  }

  func response(_ status: Int, _ body: String = "", _ fields: [(String, String)] = []) -> IncomingResponse {
    IncomingResponse(
      head: ResponseHead(status: status, fields: HeaderFields([("Date", clock.field)] + fields)),
      body: ResponseBodyStream(Data(body.utf8)))
  }
}

let fresh = ("Cache-Control", "max-age=60")

func get(
  _ url: String = "http://example.com/a", _ fields: HeaderFields = HeaderFields(), method: String = "GET",
  policy: RequestPolicy = .useProtocolCachePolicy, partition: String = "",
  overrides: RequestOverrides = RequestOverrides(),
  willStore: (@Sendable (ProposedResponse) -> ProposedResponse?)? = nil
) -> CachingClientRequest {
  var request = CachingClientRequest(
    head: RequestHead(method: method, url: URL(string: url)!, fields: fields), policy: policy, partition: partition,
    overrides: overrides)
  if let willStore { request.willStore = { proposal, answer in answer(willStore(proposal)) } }
  return request
}

extension CachingClientResponse {
  /// Returns the complete body as text.
  func text() async throws -> String {
    String(decoding: try await body.collect(upTo: 1 << 24), as: UTF8.self)
  }
}

extension ResponseBodyStream {
  /// Returns a body in chunks; each waits for the gate at the same index, if there is one.
  static func chunks(_ chunks: [String], behind gates: [Gate] = [], failing: (any Error & Sendable)? = nil)
    -> ResponseBodyStream
  {
    let source = ChunkSource(chunks: chunks, gates: gates, failure: failing)
    return ResponseBodyStream(next: { try await source.next() })
  }
}

private actor ChunkSource {
  var chunks: [String]
  var gates: [Gate]
  let failure: (any Error & Sendable)?

  init(chunks: [String], gates: [Gate], failure: (any Error & Sendable)?) {
    self.chunks = chunks
    self.gates = gates
    self.failure = failure
  }

  func next() async throws -> Data? {
    if !gates.isEmpty { try await gates.removeFirst().pass() }
    guard !chunks.isEmpty else {
      if let failure { throw failure }
      return nil
    }
    return Data(chunks.removeFirst().utf8)
  }
}
