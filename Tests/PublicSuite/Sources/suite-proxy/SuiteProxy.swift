import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import Origin
import Synchronization

/// A caching reverse proxy on 127.0.0.1 in front of the suite's server.
///
/// It changes nothing in requests and responses except what belongs to a connection. Interim responses are not passed
/// on, because no interface of the library returns them.
@main
struct SuiteProxy {
  static func main() throws {
    guard let arguments = Arguments(Array(CommandLine.arguments.dropFirst())) else {
      FileHandle.standardError.write(
        Data("usage: suite-proxy private|shared curl|urlsession|data ORIGIN DIRECTORY\n".utf8))
      exit(2)
    }
    let loader: any Loader
    switch arguments.way {
    case .curl: loader = try ClientLoader(arguments, transport: CurlTransport())
    case .urlsession: loader = try ClientLoader(arguments, transport: FoundationTransport(configuration: .ephemeral))
    case .data: loader = try DataLoader(arguments)
    }
    let server = try LoopbackOrigin(recordsRequests: false) { request in
      let message = ForwardedMessage(request, origin: arguments.origin)
      return wait {
        do {
          return try await loader.load(message).framed(for: message.head.method)
        } catch {
          return Reply(502, [("Content-Type", "text/plain")], "\(error)\n")
        }
      }
    }
    FileHandle.standardOutput.write(Data("\(server.port)\n".utf8))
    // Ends with its standard input, so it cannot outlive the script.
    while readLine() != nil {}
    server.stop()
  }

  /// Blocks the connection's thread until the operation returns.
  private static func wait(for operation: @escaping @Sendable () async -> Reply) -> Reply {
    let result = Result()
    Task {
      let reply = await operation()
      result.reply.withLock { $0 = reply }
      result.isReady.signal()
    }
    result.isReady.wait()
    return result.reply.withLock { $0 } ?? .nothing
  }

  /// The reply that a task hands to a connection's thread.
  private final class Result: Sendable {
    let reply = Mutex<Reply?>(nil)
    let isReady = DispatchSemaphore(value: 0)
  }
}
