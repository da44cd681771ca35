import CachingStorage
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import Origin

/// Loads requests through the cache.
protocol Loader: Sendable {
  func load(_ message: ForwardedMessage) async throws -> Reply
}

/// Loads with the caching client, which loses no field line.
struct ClientLoader<Network: Transport>: Loader {
  let client: CachingClient<ResponseCache>
  let transport: Network

  init(_ arguments: Arguments, transport: Network) throws {
    var options = ResponseCache.Options()
    options.caching = arguments.caching
    client = CachingClient(
      try ResponseCache(
        directory: arguments.directory, memoryCapacity: 8 << 20, diskCapacity: 64 << 20, options: options))
    self.transport = transport
  }

  func load(_ message: ForwardedMessage) async throws -> Reply {
    let request = CachingClientRequest(
      head: message.head, body: message.body.isEmpty ? nil : .bytes(message.body))
    let response = try await client.respond(to: request, over: transport)
    let body = try await response.body.collect(upTo: 64 << 20)
    return Reply(response.head.status, endToEnd(response.head.fields.map { ($0.name, $0.value) }), body: body)
  }
}

/// Loads with `data(for:)`.
struct DataLoader: Loader {
  let cache: LMDBURLCache

  init(_ arguments: Arguments) throws {
    var options = LMDBURLCache.Options()
    options.caching = arguments.caching
    cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: arguments.directory), memoryCapacity: 8 << 20, diskCapacity: 64 << 20,
      options: options)
  }

  func load(_ message: ForwardedMessage) async throws -> Reply {
    var request = URLRequest(url: message.head.url)
    request.httpMethod = message.head.method
    for field in message.head.fields { request.addValue(field.value, forHTTPHeaderField: field.name) }
    if !message.body.isEmpty { request.httpBody = message.body }
    let (data, response) = try await cache.data(for: request)
    guard let response = response as? HTTPURLResponse else { return .nothing }
    let fields = response.allHeaderFields.compactMap { name, value in
      (name as? String).map { ($0, "\(value)") }
    }
    return Reply(response.statusCode, endToEnd(fields), body: data)
  }
}
