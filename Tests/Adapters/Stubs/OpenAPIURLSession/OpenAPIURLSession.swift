// The declarations of swift-openapi-urlsession 1.3.0 that the adapters use. On Linux it loads whole bodies in data
// tasks.
import Foundation
import FoundationNetworking
import HTTPTypes
import OpenAPIRuntime
import Synchronization

/// Sends the requests of a generated client over a session.
public struct URLSessionTransport: ClientTransport {
  /// The settings of a transport.
  public struct Configuration: Sendable {
    /// The session that sends the requests.
    public var session: URLSession

    /// Settings with a session.
    public init(session: URLSession = .shared) { self.session = session }
  }

  /// The settings.
  public var configuration: Configuration

  /// A transport.
  public init(configuration: Configuration = .init()) { self.configuration = configuration }

  /// Sends a request and returns when the response is complete.
  public func send(
    _ request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String
  ) async throws -> (HTTPResponse, HTTPBody?) {
    guard var parts = URLComponents(string: baseURL.absoluteString),
      let target = URLComponents(string: request.path ?? "")
    else { throw URLError(.badURL) }
    parts.percentEncodedPath += target.percentEncodedPath
    parts.percentEncodedQuery = target.percentEncodedQuery
    guard let url = parts.url else { throw URLError(.badURL) }
    var outgoing = URLRequest(url: url)
    outgoing.httpMethod = request.method.rawValue
    for field in request.headerFields { outgoing.addValue(field.value, forHTTPHeaderField: field.name.rawName) }
    if let body {
      var content = Data()
      for try await chunk in body { content.append(contentsOf: chunk) }
      outgoing.httpBody = content
    }
    let (response, content) = try await load(outgoing)
    var head = HTTPResponse(status: .init(code: response.statusCode))
    for (name, value) in response.allHeaderFields as? [String: String] ?? [:] {
      if let name = HTTPField.Name(name) { head.headerFields.append(HTTPField(name: name, value: value)) }
    }
    return (head, content.map { HTTPBody($0) })
  }

  private func load(_ request: URLRequest) async throws -> (HTTPURLResponse, Data?) {
    let running = Mutex<URLSessionTask?>(nil)
    return try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let task = configuration.session.dataTask(with: request) { content, response, error in
          if let response = response as? HTTPURLResponse {
            continuation.resume(returning: (response, content))
          } else {
            continuation.resume(throwing: error ?? URLError(.badServerResponse))
          }
        }
        running.withLock { $0 = task }
        task.resume()
        if Task.isCancelled { task.cancel() }
      }
    } onCancel: {
      running.withLock { $0 }?.cancel()
    }
  }
}
