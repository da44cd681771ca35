import Foundation
import LMDBURLCache
import LoopbackOrigin
import Synchronization

/// A server on loopback that responds by a gateway.
struct GatewayServer {
  private let server: LoopbackOrigin

  init(_ gateway: Gateway) throws {
    server = try LoopbackOrigin { request in
      Self.wait {
        do {
          let (head, body) = try await gateway.respond(
            to: request.method, request.target, request.fields.map { ($0.name, $0.value) }, request.body)
          var reply = Reply(
            head.status, head.fields.map { ($0.name, $0.value) }, body: try await body.collect(upTo: 1 << 20))
          // Such a response has no body, so its length is not that of the reply.
          if request.method == "HEAD" || head.status == 304 { reply.framing = .untilClose }
          return reply
        } catch {
          return Reply(502, [], "\(error)")
        }
      }
    }
  }

  func url(_ target: String) -> String { server.url(target).absoluteString }

  func stop() { server.stop() }

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

/// A run of the program curl.
struct CurlCommand {
  let status: Int
  let body: Data
  private let fields: [String: String]

  static let path = "/usr/bin/curl"
  static var isInstalled: Bool { FileManager.default.isExecutableFile(atPath: path) }

  var text: String { String(decoding: body, as: UTF8.self) }

  subscript(name: String) -> String? { fields[name.lowercased()] }

  /// Loads a URL.
  static func run(_ arguments: [String], _ url: String) throws -> CurlCommand {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: path)
    process.arguments = ["--silent", "--show-error", "--include", "--noproxy", "*"] + arguments + [url]
    let output = Pipe()
    process.standardOutput = output
    try process.run()
    let bytes = output.fileHandleForReading.readDataToEndOfFile()
    process.waitUntilExit()
    guard process.terminationStatus == 0, let end = bytes.range(of: Data("\r\n\r\n".utf8)) else {
      throw URLError(.badServerResponse)
    }
    let lines = String(decoding: bytes[..<end.lowerBound], as: UTF8.self).components(separatedBy: "\r\n")
    var fields: [String: String] = [:]
    for line in lines.dropFirst() {
      let name = line.prefix { $0 != ":" }
      fields[name.lowercased()] = line.dropFirst(name.count + 1).trimmingCharacters(in: .whitespaces)
    }
    let status = lines[0].split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0
    return CurlCommand(status: status, body: bytes[end.upperBound...], fields: fields)
  }

  private init(status: Int, body: Data, fields: [String: String]) {
    self.status = status
    self.body = body
    self.fields = fields
  }
}
