import CachingClient
import CurlTransport
import FoundationEssentials
import Glibc
import HTTPCaching
import LoopbackOrigin

/// How a request ended, and what came of its response.
enum Outcome: Equatable, CustomStringConvertible {
  /// The whole response, with a proven end.
  case complete(Int, String)
  /// A response of which only the connection tells the end.
  case unproven(Int, String)
  /// An error in place of the response, or within its content.
  case failure(CurlTransportError.Code)
  case other(String)

  var description: String {
    switch self {
    case .complete(let status, let text): "complete: \(status) \(text.prefix(80))"
    case .unproven(let status, let text): "without a proven end: \(status) \(text.prefix(80))"
    case .failure(let code): "failure: \(code)"
    case .other(let text): text
    }
  }
}

extension CurlTransport {
  func outcome(
    _ url: URL, method: String = "GET", _ fields: HTTPFields = HTTPFields(), content: Data? = nil,
    timeLimit: Duration? = nil
  ) async -> Outcome {
    do {
      let response = try await get(url, method: method, fields, content: content, timeLimit: timeLimit)
      let text = try await response.text()
      return response.endsWithConnection
        ? .unproven(response.head.status, text) : .complete(response.head.status, text)
    } catch let error as CurlTransportError {
      return .failure(error.code)
    } catch {
      return .other("\(error)")
    }
  }

  func get(
    _ url: URL, method: String = "GET", _ fields: HTTPFields = HTTPFields(), content: Data? = nil,
    timeLimit: Duration? = nil
  ) async throws -> IncomingResponse {
    try await send(
      OutgoingRequest(
        head: RequestHead(method: method, url: url, fields: fields), body: content.map { .bytes($0) },
        timeLimit: timeLimit))
  }
}

extension IncomingResponse {
  func text() async throws -> String { String(decoding: try await data(), as: UTF8.self) }

  func data() async throws -> Data { try await body.collect(upTo: .max) }
}

/// A transport that uses no proxy, whatever the environment of the tests says.
func directTransport(_ configure: (inout CurlTransport.Configuration) -> Void = { _ in }) -> CurlTransport {
  var configuration = CurlTransport.Configuration()
  configuration.proxy = .none
  configure(&configuration)
  return CurlTransport(configuration)
}

/// Runs a test on a scripted origin, which is stopped at the end.
func withOrigin(
  _ handler: @escaping LoopbackOrigin.Handler, _ body: (LoopbackOrigin) async throws -> Void
) async throws {
  let origin = try LoopbackOrigin(handler: handler)
  defer { origin.stop() }
  try await body(origin)
}

/// Waits until a condition of another thread's holds, without a time of its own.
func wait(until condition: () -> Bool) async {
  while !condition() { await Task.yield() }
}
