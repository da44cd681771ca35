import AsyncHTTPClient
import CachingStorage
import CurlTransport
import Foundation
import HTTPCaching
import HTTPTypes
import NIOCore
import NIOHTTP1
import OpenAPIRuntime
import Synchronization

/// A directory that is deleted with its last reference.
final class TemporaryDirectory: Sendable {
  let url = FileManager.default.temporaryDirectory.appendingPathComponent("adapters-\(UUID().uuidString)")

  deinit {
    // A leftover in the temporary folder does no harm.
    try? FileManager.default.removeItem(at: url)
  }

  func openClient() throws -> CachingClient<ResponseCache> {
    var options = ResponseCache.Options()
    // The directory is deleted before the store is released, which the store would report.
    options.log = { _ in }
    return CachingClient(
      try ResponseCache(directory: url.path, memoryCapacity: 1 << 20, diskCapacity: 16 << 20, options: options))
  }
}

/// Chunks that can be read once. A second reading throws.
struct ChunksOnce<Chunk: Sendable>: AsyncSequence, Sendable {
  struct ReadTwice: Error {}

  private let isRead = Flag()
  private let chunks: [Chunk]

  private final class Flag: Sendable {
    let value = Atomic(false)
  }

  init(_ chunks: Chunk...) { self.chunks = chunks }

  func makeAsyncIterator() -> AsyncThrowingStream<Chunk, any Error>.Iterator {
    AsyncThrowingStream<Chunk, any Error> { continuation in
      if isRead.value.exchange(true, ordering: .relaxed) { return continuation.finish(throwing: ReadTwice()) }
      for chunk in chunks { continuation.yield(chunk) }
      continuation.finish()
    }.makeAsyncIterator()
  }
}

/// Carries what the stubs are asked for over real connections.
struct SocketSender: Sendable {
  private let curl = CurlTransport()

  func send(_ method: String, _ url: String, _ lines: [(String, String)], _ content: Data?) async throws
    -> IncomingResponse
  {
    let url = try URL(string: url) ?? { throw URLError(.badURL) }()
    let head = RequestHead(method: method, url: url, fields: HeaderFields(lines))
    return try await curl.send(OutgoingRequest(head: head, body: content.map { .bytes($0) }))
  }
}

extension HTTPClient {
  static func overSockets() -> HTTPClient {
    let sender = SocketSender()
    return HTTPClient { request, _ in
      var content: Data?
      if let body = request.body {
        content = Data()
        for try await chunk in body { content?.append(contentsOf: chunk.readableBytesView) }
      }
      let response = try await sender.send(
        request.method.rawValue, request.url, request.headers.map { ($0.name, $0.value) }, content)
      return HTTPClientResponse(
        status: HTTPResponseStatus(statusCode: response.head.status),
        headers: HTTPHeaders(response.head.fields.map { ($0.name, $0.value) }),
        body: .stream(response.body.map { ByteBuffer(bytes: $0) }))
    }
  }
}

/// The transport of a generated client, over real connections.
struct SocketClientTransport: ClientTransport {
  private let sender = SocketSender()

  func send(
    _ request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String
  ) async throws -> (HTTPResponse, HTTPBody?) {
    var content: Data?
    if let body {
      content = Data()
      for try await chunk in body { content?.append(contentsOf: chunk) }
    }
    let response = try await sender.send(
      request.method.rawValue, baseURL.absoluteString + (request.path ?? ""),
      request.headerFields.map { ($0.name.rawName, $0.value) }, content)
    var fields = HTTPFields()
    for (name, value) in response.head.fields {
      if let name = HTTPField.Name(name) { fields.append(HTTPField(name: name, value: value)) }
    }
    let head = HTTPResponse(status: .init(code: response.head.status), headerFields: fields)
    return (head, HTTPBody(response.body, length: .unknown, iterationBehavior: .single))
  }
}
