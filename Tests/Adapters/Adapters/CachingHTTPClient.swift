import AsyncHTTPClient
import CachingStorage
import Foundation
import HTTPCaching
import NIOCore
import NIOHTTP1

/// Executes requests like an `HTTPClient`, through a caching client.
struct CachingHTTPClient: Sendable {
  let cachingClient: CachingClient<ResponseCache>
  /// A client with the settings of `AsyncHTTPClientTransport.configuration`.
  let client: HTTPClient
  /// The maximum number of redirects that are followed, as in AsyncHTTPClient.
  var maximumRedirectCount = 5
  /// Whether all content can be sent again, after 307 and 308. Bytes can; a stream usually cannot.
  var canResendBody = false

  func execute(_ request: HTTPClientRequest, timeout: TimeAmount) async throws -> HTTPClientResponse {
    try await execute(request, deadline: .now() + timeout)
  }

  func execute(_ request: HTTPClientRequest, deadline: NIODeadline) async throws -> HTTPClientResponse {
    // Responses can depend on these, which the caching client does not see.
    guard request.tlsConfiguration == nil, request.localAddress == nil else {
      return try await client.execute(request, deadline: deadline)
    }
    guard let url = URL(string: request.url) else { throw HTTPClientError.invalidURL }
    var head = RequestHead(method: request.method.rawValue, url: url)
    for (name, value) in request.headers { head.fields.append(name: name, value: value) }
    var cached = CachingClientRequest(head: head, body: request.body.map { _ in .inContext }, context: request.body)
    cached.maximumRedirectCount = maximumRedirectCount
    cached.canResendBody = canResendBody
    cached.timeLimit = .nanoseconds((deadline - .now()).nanoseconds)
    do {
      let transport = AsyncHTTPClientTransport(client: client, deadline: deadline)
      let response = try await cachingClient.respond(to: cached, over: transport)
      let hops = response.redirects.map { ($0.request, $0.response) }
      let last = (response.redirects.last?.target ?? head, response.deliveredHead)
      let body = response.body.bytes.map { HTTPClientResponse.Body.bytes(ByteBuffer(bytes: $0)) }
      return HTTPClientResponse(
        status: .init(statusCode: response.status), headers: HTTPHeaders(last.1.fields.map { ($0.name, $0.value) }),
        body: body ?? .stream(response.body.map { ByteBuffer(bytes: $0) }), history: (hops + [last]).map(Self.hop))
    } catch CachingClientError.tooManyRedirects {
      throw HTTPClientError.redirectLimitReached
    } catch CachingClientError.timedOut {
      throw HTTPClientError.deadlineExceeded
    }
  }

  private static func hop(_ sent: RequestHead, _ received: ResponseHead) -> HTTPClientRequestResponse {
    var request = HTTPClientRequest(url: sent.url.absoluteString)
    request.method = HTTPMethod(rawValue: sent.method)
    request.headers = HTTPHeaders(sent.fields.map { ($0.name, $0.value) })
    let headers = HTTPHeaders(received.fields.map { ($0.name, $0.value) })
    let head = HTTPResponseHead(version: .http1_1, status: .init(statusCode: received.status), headers: headers)
    return HTTPClientRequestResponse(request: request, responseHead: head)
  }
}
