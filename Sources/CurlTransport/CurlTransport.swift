public import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization

/// A transport over libcurl: HTTP/1.1 over TCP and TLS.
///
/// One thread serves all transports of the process. It runs as long as a transport that has sent a request exists, or a
/// response is being read. Each transport reuses its own connections.
///
/// Redirects are not followed. No cookies, credentials, `User-Agent` or other fields are added, except `Host`,
/// `Content-Length`, `Accept-Encoding` (see ``Configuration/decodesContent``), and the default `User-Agent` and
/// `Accept-Language` of a request's head. Fields keep their order, lines and spelling in both directions.
/// `Content-Length`, `Transfer-Encoding` and `Expect` of a request are replaced as its content requires.
///
/// A connection is reused only if no byte is left on it from an earlier response, which would be taken for a part of
/// the next one. OpenSSL proves that of its connections. If libcurl uses another library for TLS, or a proxy with TLS
/// tunnels a connection with TLS, each request has a new connection.
///
/// A response ends as its `Content-Length` or its last chunk says. Any other end throws, or sets
/// `IncomingResponse.endsWithConnection`. A request is sent again, once, if an existing connection turns out to be dead
/// and the method is idempotent: GET, HEAD, QUERY, PUT, DELETE, OPTIONS and TRACE. Its content is sent again, too.
///
/// All members can be called from any thread. In a forked child every request fails.
///
///     let client = CachingClient(cache)
///     let response = try await client.respond(to: request, over: CurlTransport())
public final class CurlTransport: Transport {
  /// The settings of the transport.
  public let configuration: Configuration
  private let connections = Mutex<ConnectionPoolHandle?>(nil)

  /// Creates a transport. It uses no resources until its first request.
  public init(_ configuration: Configuration = Configuration()) {
    self.configuration = configuration
  }

  /// Sends a request and returns when the final head has arrived.
  ///
  /// A small response is returned with its complete content.
  ///
  /// - Parameter request: A request whose content, if any, is `.bytes`. `OutgoingRequest.timeLimit` replaces
  ///   ``Configuration/timeout``.
  /// - Throws: `CurlTransportError`; `CancellationError` if the calling task is cancelled, which ends the transfer at
  ///   once. Reading the content throws the same errors.
  public func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let connections = try openConnections()
    let transfer = Transfer(
      try PreparedRequest(request, decodesContent: configuration.decodesContent), in: connections.pool,
      timeout: request.timeLimit ?? configuration.timeout)
    let arrival = try await withTaskCancellationHandler {
      try await transfer.exchange.arrival {
        guard !connections.post(.start(transfer)) else { return }
        transfer.exchange.fail(CurlTransportError(.unavailable, "the process is exiting"))
      }
    } onCancel: {
      if transfer.exchange.fail(CancellationError()) { connections.post(.cancel(transfer)) }
    }
    return response(arrival, to: transfer, over: connections)
  }

  private func openConnections() throws(CurlTransportError) -> ConnectionPoolHandle {
    try IOThread.checkProcess()
    return try connections.withLock { (connections) throws(CurlTransportError) in
      if let connections { return connections }
      let opened = try ConnectionPoolHandle(configuration)
      connections = opened
      return opened
    }
  }

  private func response(
    _ arrival: Exchange.Arrival, to transfer: Transfer, over connections: ConnectionPoolHandle
  ) -> IncomingResponse {
    let head = ResponseHead(status: arrival.head.status, fields: arrival.head.fields)
    // A part of encoded content cannot be decoded.
    let coding =
      configuration.decodesContent && head.status != 206
      ? ContentDecoder.Coding(contentEncoding: head.fields.values(of: "Content-Encoding")) : nil
    var response = IncomingResponse(head: head, body: .empty, isContentDecoded: coding != nil)
    response.endsWithConnection = !arrival.head.framing.provesEnd
    if arrival.head.framing == .noContent { return response }
    if coding == nil, let content = arrival.wholeContent {
      response.body = ResponseBodyStream(content)
      return response
    }
    let decoder = coding.map { ContentDecoder($0, maximumExpansionFactor: configuration.maximumExpansionFactor) }
    let reader = ResponseReader(
      transfer, over: connections, decoder: decoder, received: arrival.wholeContent ?? Data())
    if arrival.wholeContent != nil, let content = reader.decodeAtOnce() {
      response.body = ResponseBodyStream(content)
      return response
    }
    response.body = ResponseBodyStream(next: { try await reader.next() })
    return response
  }
}
