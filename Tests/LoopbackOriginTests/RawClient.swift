import Glibc
import LoopbackOrigin
import Testing

/// A blocking client that sends and reads bytes as they are.
final class RawClient {
  private let descriptor: CInt

  init(_ origin: LoopbackOrigin) {
    descriptor = socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0)
    precondition(descriptor >= 0, "no socket: errno \(errno)")
    // Fail the test instead of waiting forever for bytes that do not arrive.
    var timeout = timeval(tv_sec: 20, tv_usec: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &timeout, socklen_t(MemoryLayout<timeval>.size))
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_port = origin.port.bigEndian
    address.sin_addr = in_addr(s_addr: INADDR_LOOPBACK.bigEndian)
    let failed = withUnsafePointer(to: &address) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
      }
    }
    precondition(failed == 0, "no connection: errno \(errno)")
  }

  deinit {
    leave()
  }

  private var hasLeft = false

  func leave() {
    if !hasLeft { close(descriptor) }
    hasLeft = true
  }

  func send(_ text: String) {
    let bytes = Array(text.utf8)
    var sent = 0
    while sent < bytes.count {
      let count = Glibc.send(descriptor, Array(bytes[sent...]), bytes.count - sent, CInt(MSG_NOSIGNAL))
      precondition(count > 0, "send: errno \(errno)")
      sent += count
    }
  }

  /// Reads `count` bytes, or fewer if the connection ends.
  func read(_ count: Int) -> String {
    var bytes: [UInt8] = []
    while bytes.count < count {
      var buffer = [UInt8](repeating: 0, count: count - bytes.count)
      let received = recv(descriptor, &buffer, buffer.count, 0)
      if received <= 0 { break }
      bytes += buffer[..<received]
    }
    return String(decoding: bytes, as: UTF8.self)
  }

  /// Reads as many bytes as `text` has and expects them to equal `text`.
  func expect(_ text: String, sourceLocation: SourceLocation = #_sourceLocation) {
    #expect(read(text.utf8.count) == text, sourceLocation: sourceLocation)
  }

  /// Reads until the connection ends and returns the bytes, and 0 or the `errno` of the failure.
  func readToEnd() -> (text: String, failure: CInt) {
    var bytes: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 64 << 10)
    while true {
      let received = recv(descriptor, &buffer, buffer.count, 0)
      if received < 0 { return (String(decoding: bytes, as: UTF8.self), errno) }
      if received == 0 { return (String(decoding: bytes, as: UTF8.self), 0) }
      bytes += buffer[..<received]
    }
  }

  /// Sends one request with `Connection: close` and returns all bytes of the reply.
  static func exchange(_ origin: LoopbackOrigin, _ method: String = "GET", _ target: String = "/") -> String {
    let client = RawClient(origin)
    client.send("\(method) \(target) HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    return client.readToEnd().text
  }
}
