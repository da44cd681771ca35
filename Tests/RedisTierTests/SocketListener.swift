import Foundation
import Glibc
import RedisTier
import Synchronization

/// A server on a Unix socket that replies to each read with any bytes.
final class SocketListener: Sendable {
  let path = "/tmp/listener-\(RandomID().text.prefix(12))"
  private let descriptor: CInt

  /// - Parameter reply: Returns the reply to the bytes that one call of `read` returned; nil to close the connection.
  init(reply: @escaping @Sendable ([UInt8]) -> [UInt8]?) throws {
    let descriptor = socket(AF_UNIX, CInt(SOCK_STREAM.rawValue), 0)
    self.descriptor = descriptor
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: Array(path.utf8)) }
    let status = withUnsafePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        bind(descriptor, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
      }
    }
    guard status == 0, listen(descriptor, 16) == 0 else { throw TestError("no socket") }
    let thread = Thread {
      while case let connection = accept(descriptor, nil, nil), connection >= 0 {
        var buffer = [UInt8](repeating: 0, count: 4096)
        while case let count = read(connection, &buffer, buffer.count), count > 0,
          let bytes = reply(Array(buffer[..<count]))
        {
          _ = send(connection, bytes, bytes.count, CInt(MSG_NOSIGNAL))
        }
        close(connection)
      }
      // Only here: the thread would accept connections of the next socket with this number.
      close(descriptor)
    }
    thread.start()
  }

  deinit {
    shutdown(descriptor, CInt(SHUT_RDWR))
    unlink(path)
  }
}
