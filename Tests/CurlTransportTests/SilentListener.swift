import Dispatch
import FoundationEssentials
import Glibc
import Testing

/// A listening socket on which the kernel accepts connections, but which sends nothing by itself.
final class SilentListener {
  private let listener: CInt
  private var fillers: [CInt] = []
  private let host: String
  private let port: UInt16

  /// Opens a listening socket.
  ///
  /// - Parameters:
  ///   - host: An IPv4 address of the loopback device, or `::1`.
  ///   - port: The port; 0 lets the system choose one.
  ///   - isFull: Whether the backlog is full, so that connections are neither accepted nor refused.
  init(host: String = "127.0.0.1", port: UInt16 = 0, isFull: Bool = false) throws {
    var address = try SocketAddress(host, port: port)
    let listener = address.makeSocket()
    self.listener = listener
    self.host = host
    // A backlog of 0 accepts one connection; the kernel delays the others.
    let isBound = address.withPointer { address, length in
      bind(listener, address, length.pointee) == 0 && listen(listener, isFull ? 0 : 16) == 0
        && getsockname(listener, address, length) == 0
    }
    self.port = address.port
    try #require(isBound, "no listener: errno \(errno)")
    for _ in 0..<(isFull ? 8 : 0) {
      let filler = address.makeSocket(isBlocking: false)
      fillers.append(filler)
      address.withPointer { _ = connect(filler, $0, $1.pointee) }
    }
  }

  deinit {
    for filler in fillers { close(filler) }
    close(listener)
  }

  /// Accepts one connection, sends the text and closes the connection.
  func answer(_ text: String) async { await answer(Array(text.utf8)) }

  /// Accepts one connection, sends the bytes and closes the connection.
  ///
  /// - Parameter waits: Whether the connection stays open until the client closes it.
  func answer(_ bytes: [UInt8], waits: Bool = false) async {
    await withCheckedContinuation { continuation in
      DispatchQueue.global().async { [listener] in
        let connection = Glibc.accept(listener, nil, nil)
        _ = Glibc.send(connection, bytes, bytes.count, CInt(MSG_NOSIGNAL))
        var received = [UInt8](repeating: 0, count: 1 << 10)
        while waits, recv(connection, &received, received.count, 0) > 0 {}
        close(connection)
        continuation.resume()
      }
    }
  }

  /// Accepts one connection, which is read as the caller wants.
  func accept() async -> Connection {
    await withCheckedContinuation { continuation in
      DispatchQueue.global().async { [listener] in
        continuation.resume(returning: Connection(Glibc.accept(listener, nil, nil)))
      }
    }
  }

  /// The server's end of a connection, which is closed with this object.
  final class Connection: Sendable {
    private let descriptor: CInt

    fileprivate init(_ descriptor: CInt) { self.descriptor = descriptor }

    deinit { close(descriptor) }

    /// Waits for bytes, and drops them.
    func receive(_ byteCount: Int) async {
      await withCheckedContinuation { continuation in
        DispatchQueue.global().async { [descriptor] in
          var bytes = [UInt8](repeating: 0, count: byteCount)
          _ = recv(descriptor, &bytes, byteCount, CInt(MSG_WAITALL))
          continuation.resume()
        }
      }
    }

    func send(_ text: String) { _ = Glibc.send(descriptor, text, text.utf8.count, CInt(MSG_NOSIGNAL)) }
  }

  /// Accepts one connection and waits for its first bytes, which stay unread until the connection is closed.
  func waitForBytes() async {
    await withCheckedContinuation { continuation in
      DispatchQueue.global().async { [listener] in
        let connection = Glibc.accept(listener, nil, nil)
        var state = pollfd(fd: connection, events: CShort(POLLIN), revents: 0)
        poll(&state, 1, -1)
        continuation.resume()
        // Until the client closes its end.
        var byte: UInt8 = 0
        while read(connection, &byte, 1) > 0 {}
        close(connection)
      }
    }
  }

  func url(_ scheme: String = "http") -> URL {
    URL(string: "\(scheme)://\(host.contains(":") ? "[\(host)]" : host):\(port)/")!
  }
}
