import Dispatch
import FoundationEssentials
import Glibc
import Testing

/// A listening socket on which the kernel accepts connections, but which sends nothing by itself.
final class SilentListener {
  private let listener: CInt
  private var fillers: [CInt] = []
  private let port: UInt16

  /// Opens a listening socket.
  ///
  /// - Parameter isFull: Whether the backlog is full, so that connections are neither accepted nor refused.
  init(isFull: Bool = false) throws {
    let listener = socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0)
    self.listener = listener
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr = in_addr(s_addr: INADDR_LOOPBACK.bigEndian)
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let isBound = withUnsafeMutablePointer(to: &address) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
        bind(listener, address, length) == 0 && listen(listener, isFull ? 0 : 16) == 0
          && getsockname(listener, address, &length) == 0
      }
    }
    port = UInt16(bigEndian: address.sin_port)
    try #require(isBound, "no listener: errno \(errno)")
    // A backlog of 0 accepts one connection; the kernel delays the others.
    for _ in 0..<(isFull ? 8 : 0) {
      let filler = socket(AF_INET, CInt(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0)
      fillers.append(filler)
      withUnsafePointer(to: &address) { pointer in
        pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { _ = connect(filler, $0, length) }
      }
    }
  }

  deinit {
    for filler in fillers { close(filler) }
    close(listener)
  }

  /// Accepts one connection, sends the text and closes the connection.
  func answer(_ text: String) async {
    await withCheckedContinuation { continuation in
      DispatchQueue.global().async { [listener] in
        let connection = accept(listener, nil, nil)
        let bytes = Array(text.utf8)
        _ = send(connection, bytes, bytes.count, CInt(MSG_NOSIGNAL))
        close(connection)
        continuation.resume()
      }
    }
  }

  func url(_ scheme: String = "http") -> URL { URL(string: "\(scheme)://127.0.0.1:\(port)/")! }
}
