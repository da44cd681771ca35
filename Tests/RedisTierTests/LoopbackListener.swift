import Foundation
import Glibc
import RedisTier
import ResponseStore

/// A server on a TCP port of 127.0.0.1 that replies to each read with any bytes, on any number of connections.
final class LoopbackListener: Sendable {
  let port: UInt16
  private let descriptor: CInt

  /// - Parameter reply: Returns the reply to the bytes that one call of `read` returned; nil to close the connection.
  init(reply: @escaping @Sendable ([UInt8]) -> [UInt8]?) throws {
    let descriptor = socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0)
    self.descriptor = descriptor
    port = try bindToLoopback(descriptor)
    guard listen(descriptor, 16) == 0 else { throw TestError("no socket") }
    Thread {
      while case let connection = accept(descriptor, nil, nil), connection >= 0 {
        Thread {
          var buffer = [UInt8](repeating: 0, count: 4096)
          while case let count = read(connection, &buffer, buffer.count), count > 0,
            let bytes = reply(Array(buffer[..<count]))
          {
            _ = send(connection, bytes, bytes.count, CInt(MSG_NOSIGNAL))
          }
          close(connection)
        }.start()
      }
      // Only here: the thread would accept connections of the next socket with this number.
      close(descriptor)
    }.start()
  }

  deinit { shutdown(descriptor, CInt(SHUT_RDWR)) }
}

/// A Sentinel that names any server as the primary.
final class FakeSentinel: Sendable {
  private let listener: LoopbackListener
  private let state: Monitor<State>
  var address: String { "127.0.0.1:\(listener.port)" }

  private struct State: Sendable {
    var reply: String
    var logins: [String] = []
    var requestCount = 0
  }

  /// - Parameter port: That of the server; nil if the Sentinel knows none.
  init(naming port: UInt16?) throws {
    let state = Monitor(State(reply: Self.reply(port)))
    self.state = state
    listener = try LoopbackListener { bytes in
      let text = String(decoding: bytes, as: UTF8.self)
      return state.withLock { state in
        guard text.contains("AUTH") else {
          state.requestCount += 1
          return Array(state.reply.utf8)
        }
        state.logins.append(text.split(separator: "\r\n").dropFirst(4).joined(separator: " "))
        return Array("+OK\r\n".utf8)
      }
    }
  }

  func name(_ port: UInt16?) { state.withLock { $0.reply = Self.reply(port) } }
  func reply(_ bytes: String) { state.withLock { $0.reply = bytes } }
  var logins: [String] { state.withLock { $0.logins } }
  /// Without the logins.
  var requestCount: Int { state.withLock { $0.requestCount } }

  private static func reply(_ port: UInt16?) -> String {
    port.map { "*2\r\n$9\r\n127.0.0.1\r\n$\("\($0)".count)\r\n\($0)\r\n" } ?? "*-1\r\n"
  }

  /// The URL of a fleet with these Sentinels.
  static func url(_ sentinels: FakeSentinel...) -> String {
    "redis+sentinel://\(sentinels.map(\.address).joined(separator: ","))/fleet"
  }
}
