import CachingClient
import CurlTransport
import FoundationEssentials
import Glibc
import HTTPCaching
import LoopbackOrigin

/// The result of a request.
enum Outcome: Equatable, CustomStringConvertible {
  /// A complete response, whose end the framing proves.
  case complete(Int, String)
  /// A response that ends with its connection, so that truncation is not detectable.
  case unproven(Int, String)
  /// An error before or within the response.
  case failure(CurlTransportError.Code)
  case other(String)

  var isFailure: Bool {
    if case .failure = self { true } else { false }
  }

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
    _ url: URL, method: String = "GET", _ fields: HeaderFields = HeaderFields(), content: Data? = nil,
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
    _ url: URL, method: String = "GET", _ fields: HeaderFields = HeaderFields(), content: Data? = nil,
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

/// Returns a transport that uses no proxy, regardless of the environment.
func directTransport(_ configure: (inout CurlTransport.Configuration) -> Void = { _ in }) -> CurlTransport {
  var configuration = CurlTransport.Configuration()
  configuration.proxy = .none
  configure(&configuration)
  return CurlTransport(configuration)
}

/// Runs `body` with a scripted origin and stops the origin afterwards.
func withOrigin(
  _ handler: @escaping LoopbackOrigin.Handler, _ body: (LoopbackOrigin) async throws -> Void
) async throws {
  let origin = try LoopbackOrigin(handler: handler)
  defer { origin.stop() }
  try await body(origin)
}

/// Waits without a time limit until another thread makes the condition true.
func wait(until condition: () throws -> Bool) async rethrows {
  while try !condition() {
    // To spin would take the processor from the other test processes. The next look follows a cancelled sleep, too.
    try? await Task.sleep(for: .milliseconds(1))
  }
}
