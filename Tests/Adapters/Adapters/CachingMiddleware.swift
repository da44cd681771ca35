import CachingClient
import Foundation
import HTTPCaching
import HTTPTypes
import OpenAPIRuntime

/// Passes the calls of a generated client through a caching client.
struct CachingMiddleware: ClientMiddleware {
  let cachingClient: CachingClient<StoreStorage>
  let transport: any ClientTransport
  /// Whether the transport decodes content and keeps its `Content-Encoding`, as that over `URLSession` does.
  let decodesContent: Bool

  func intercept(
    _ request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String,
    next: @Sendable (HTTPRequest, HTTPBody?, URL) async throws -> (HTTPResponse, HTTPBody?)
  ) async throws -> (HTTPResponse, HTTPBody?) {
    guard let url = URL(string: baseURL.absoluteString + (request.path ?? "")) else {
      return try await next(request, body, baseURL)
    }
    let fields = HeaderFields(request.headerFields.map { ($0.name.rawName, $0.value) })
    let head = RequestHead(method: request.method.rawValue, url: url, fields: fields)
    let call = Call(middleware: self, request: request, body: body, baseURL: baseURL, operationID: operationID)
    let response = try await cachingClient.respond(
      to: CachingClientRequest(head: head, body: body.map { _ in .inContext }), over: call)
    let content = response.body.bytes.map { HTTPBody($0) }
    return (
      HTTPResponse(status: .init(code: response.status), headerFields: Call.httpTypes(response.head.fields)),
      content ?? HTTPBody(response.body, length: .unknown, iterationBehavior: .single)
    )
  }

  /// Sends what the caching client asks for in the course of one call.
  private struct Call: Transport {
    let middleware: CachingMiddleware, request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String

    func send(_ outgoing: OutgoingRequest) async throws -> IncomingResponse {
      var request = request
      request.method = HTTPRequest.Method(outgoing.head.method) ?? request.method
      request.headerFields = Self.httpTypes(outgoing.head.fields)
      let (response, body) = try await middleware.transport.send(
        request, body: body, baseURL: baseURL, operationID: operationID)
      let fields = HeaderFields(response.headerFields.map { ($0.name.rawName, $0.value) })
      var incoming = IncomingResponse(
        head: ResponseHead(status: response.status.code, fields: fields),
        body: body.map { ResponseBodyStream($0.map { Data($0) }) } ?? .empty,
        isContentDecoded: middleware.decodesContent && fields.contains("Content-Encoding"))
      let hasContent = request.method.rawValue != "HEAD" && ![204, 304].contains(response.status.code)
      let isChunked = fields["Transfer-Encoding"]?.lowercased().hasSuffix("chunked") == true
      incoming.endsWithConnection = hasContent && !isChunked && !fields.contains("Content-Length")
      return incoming
    }

    static func httpTypes(_ fields: HeaderFields) -> HTTPFields {
      let lines = fields.compactMap { line in HTTPField.Name(line.name).map { HTTPField(name: $0, value: line.value) } }
      return HTTPFields(lines)
    }
  }
}
