public import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization

/// Sends requests over libcurl, with HTTP/1.1 over TCP and TLS.
///
/// One thread serves all transports of the process. It runs while there is a transport that has sent a request, or a
/// response that is being read. Connections are kept and used again within one transport.
///
/// Redirects are not followed; no cookies, credentials, `User-Agent` or other fields are added, except `Host`,
/// `Content-Length`, `Accept-Encoding` (see ``Configuration/decodesContent``) and the `User-Agent` that a request's
/// head gives as its default. Fields go out and come in with their order, lines and spelling. `Content-Length`,
/// `Transfer-Encoding` and `Expect` of a request are replaced by what its content asks for.
///
/// A response ends where its `Content-Length` or its last chunk says; anything else throws, or sets
/// `IncomingResponse.endsWithConnection`. A request is sent again, once, if a kept connection turns out to be dead and
/// the method is idempotent.
///
/// All members may be called from any thread. In a forked child every request fails.
///
///     let client = CachingClient(store: store)
///     let response = try await client.respond(to: request, over: CurlTransport())
public final class CurlTransport: Transport {
  /// The settings that the transport was made with.
  public let configuration: Configuration
  private let connections = Mutex<ConnectionPoolHandle?>(nil)

  /// A transport. It costs nothing until its first request.
  public init(_ configuration: Configuration = Configuration()) {
    self.configuration = configuration
  }

  /// Sends a request and returns when the final head has arrived. A small response is returned with its whole content.
  ///
  /// - Parameter request: A request whose content, if any, is `.bytes`. `OutgoingRequest.timeLimit` replaces
  ///   ``Configuration/timeout``.
  /// - Throws: `CurlTransportError`; `CancellationError` when the calling task is cancelled, which ends the transfer at
  ///   once.
  ///   Reading the content throws the same.
  public func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let connections = try openConnections()
    let transfer = Transfer(
      try PreparedRequest(request, decodesContent: configuration.decodesContent), in: connections.pool,
      timeout: request.timeLimit ?? configuration.timeout)
    let arrival = try await withTaskCancellationHandler {
      try await transfer.exchange.arrival {
        guard !connections.post(.start(transfer)) else { return }
        transfer.exchange.fail(CurlTransportError(.unavailable, "the process is about to end"))
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
    response.endsWithConnection = arrival.head.framing == .untilClose
    if arrival.head.framing == .noContent { return response }
    if coding == nil, let content = arrival.wholeContent {
      response.body = ResponseBody(content)
      return response
    }
    let decoder = coding.map { ContentDecoder($0, maximumExpansionFactor: configuration.maximumExpansionFactor) }
    let reader = ResponseReader(
      transfer, over: connections, decoder: decoder, received: arrival.wholeContent ?? Data())
    if arrival.wholeContent != nil, let content = reader.decodeAtOnce() {
      response.body = ResponseBody(content)
      return response
    }
    response.body = ResponseBody(next: { try await reader.next() })
    return response
  }
}
