import CacheModel

/// A layer above each transport of a caching client, which may have a response before the origin is asked.
package protocol TransportLayer: Sendable {
  /// Sends a request over a transport, or returns a response of another source, with its rule.
  func send(_ request: OutgoingRequest, over transport: any Transport) async throws -> IncomingResponse
}

/// A transport with a layer above it.
struct LayeredTransport<Base: Transport>: Transport {
  let layer: any TransportLayer
  let transport: Base

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    try await layer.send(request, over: transport)
  }
}

/// The part of a client request that responses of other machines depend on.
package struct SharingContext: Sendable {
  /// The cache key of the URL for GET, with the partition; for a query the key of the space of the URL's queries.
  package var key: RequestKey
  /// The content of a query, and the fields that change its meaning; nil for GET.
  package var content: QueryContent?
  /// Whether the conditions of the request are the cache's own validators.
  package var hasOwnValidators: Bool
}
