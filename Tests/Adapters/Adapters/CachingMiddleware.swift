import CachingStorage
import Foundation
import HTTPCaching
import HTTPTypes
import OpenAPIRuntime

/// Passes the calls of a generated client through a caching client, which follows redirects.
struct CachingMiddleware: ClientMiddleware {
  let cachingClient: CachingClient<ResponseCache>
  let transport: any ClientTransport
  /// Whether the transport decodes content and keeps its `Content-Encoding`, as that over `URLSession` does.
  let decodesContent: Bool

  func intercept(
    _ request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String,
    next: @Sendable (HTTPRequest, HTTPBody?, URL) async throws -> (HTTPResponse, HTTPBody?)
  ) async throws -> (HTTPResponse, HTTPBody?) {
    guard let url = URL(string: baseURL.absoluteString + (request.path ?? ""))
    else { return try await next(request, body, baseURL) }
    let lines = request.headerFields.map { ($0.name.rawName, $0.value) }
    let head = RequestHead(method: request.method.rawValue, url: url, fields: .init(lines))
    var cached = CachingClientRequest(head: head, body: body.map { _ in .inContext })
    cached.maximumRedirectCount = 20
    cached.canResendBody = body?.iterationBehavior == .multiple
    let call = Call(middleware: self, body: body, operationID: operationID)
    let response = try await cachingClient.respond(to: cached, over: call)
    let fields = HTTPFields(response.deliveredHead.fields.compactMap(Call.field))
    let received = HTTPResponse(status: .init(code: response.status), headerFields: fields)
    let content = response.body.bytes.map { HTTPBody($0) }
    return (received, content ?? HTTPBody(response.body, length: .unknown, iterationBehavior: .single))
  }

  /// Sends the requests of one call: the call's own, and those to which redirects lead.
  private struct Call: Transport {
    let middleware: CachingMiddleware, body: HTTPBody?, operationID: String

    func send(_ outgoing: OutgoingRequest) async throws -> IncomingResponse {
      var base = URLComponents(string: outgoing.head.url.absoluteString) ?? URLComponents()
      let path = base.percentEncodedPath + (base.percentEncodedQuery.map { "?" + $0 } ?? "")
      (base.path, base.query, base.fragment) = ("", nil, nil)
      guard let method = HTTPRequest.Method(outgoing.head.method), let url = base.url else { throw URLError(.badURL) }
      let fields = HTTPFields(outgoing.head.fields.compactMap(Self.field))
      let request = HTTPRequest(method: method, scheme: nil, authority: nil, path: path, headerFields: fields)
      let (response, content) = try await middleware.transport.send(
        request, body: outgoing.body == nil ? nil : body, baseURL: url, operationID: operationID)
      let lines = response.headerFields.map { ($0.name.rawName, $0.value) }
      let head = ResponseHead(status: response.status.code, fields: .init(lines))
      var reply = IncomingResponse(head: head, body: content.map { ResponseBodyStream($0.map { Data($0) }) } ?? .empty)
      reply.isContentDecoded = middleware.decodesContent && head.fields.contains("Content-Encoding")
      let hasContent = outgoing.head.method != "HEAD" && ![204, 304].contains(head.status)
      let isChunked = head.fields["Transfer-Encoding"]?.lowercased().hasSuffix("chunked") == true
      reply.endsWithConnection = hasContent && !isChunked && !head.fields.contains("Content-Length")
      return reply
    }

    static func field(_ line: (name: String, value: String)) -> HTTPField? {
      HTTPField.Name(line.name).map { HTTPField(name: $0, value: line.value) }
    }
  }
}
