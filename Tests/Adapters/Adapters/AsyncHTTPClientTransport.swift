import AsyncHTTPClient
import CachingClient
import Foundation
import HTTPCaching
import NIOCore
import NIOHTTP1

/// Carries the requests of a caching client over an `HTTPClient`.
struct AsyncHTTPClientTransport: Transport {
  /// The settings that the caching client relies on: redirects are responses, and content stays encoded.
  static var configuration: HTTPClient.Configuration {
    var configuration = HTTPClient.Configuration(redirectConfiguration: .disallow)
    configuration.timeout.read = .seconds(60)
    return configuration
  }

  let client: HTTPClient
  /// The time until the head of a response, for requests that set no limit.
  var timeLimit = Duration.seconds(60)
  /// The time by which the head of each response must have arrived, also after redirects.
  var deadline = NIODeadline.distantFuture

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    var outgoing = HTTPClientRequest(url: request.head.url.absoluteString)
    outgoing.method = HTTPMethod(rawValue: request.head.method)
    outgoing.headers = HTTPHeaders(request.head.fields.map { ($0.name, $0.value) })
    switch request.body {
    case .bytes(let bytes): outgoing.body = .bytes(bytes)
    case .inContext: outgoing.body = request.context as? HTTPClientRequest.Body
    case nil: break
    }
    let limit = min(TimeAmount(request.timeLimit ?? timeLimit), deadline - .now())
    let response = try await client.execute(outgoing, timeout: limit)

    let fields = HeaderFields(response.headers.map { ($0.name, $0.value) })
    let head = ResponseHead(status: Int(response.status.code), fields: fields)
    let chunks = response.body.map { Data($0.readableBytesView) }
    var incoming = IncomingResponse(head: head, body: ResponseBodyStream(chunks))
    // HTTP/1 without a length: the end of the content looks like a lost connection.
    let hasContent = request.head.method != "HEAD" && ![204, 304].contains(head.status)
    let isChunked = fields["Transfer-Encoding"]?.lowercased().hasSuffix("chunked") == true
    let isFramed = response.version.major >= 2 || isChunked || fields.contains("Content-Length")
    incoming.endsWithConnection = hasContent && !isFramed
    return incoming
  }
}
