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
  func answer(_ bytes: [UInt8]) async {
    await withCheckedContinuation { continuation in
      DispatchQueue.global().async { [listener] in
        let connection = accept(listener, nil, nil)
        _ = send(connection, bytes, bytes.count, CInt(MSG_NOSIGNAL))
        close(connection)
        continuation.resume()
      }
    }
  }

  /// Accepts one connection and waits for its first bytes, which stay unread until the connection is closed.
  func waitForBytes() async {
    await withCheckedContinuation { continuation in
      DispatchQueue.global().async { [listener] in
        let connection = accept(listener, nil, nil)
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

/// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  private var storage = sockaddr_storage()
  private var length: socklen_t

  init(_ host: String, port: UInt16) throws {
    var isValid = false
    if host.contains(":") {
      var address = sockaddr_in6()
      address.sin6_family = sa_family_t(AF_INET6)
      address.sin6_port = port.bigEndian
      isValid = inet_pton(AF_INET6, host, &address.sin6_addr) == 1
      length = socklen_t(MemoryLayout<sockaddr_in6>.size)
      withUnsafeMutableBytes(of: &storage) { $0.storeBytes(of: address, as: sockaddr_in6.self) }
    } else {
      var address = sockaddr_in()
      address.sin_family = sa_family_t(AF_INET)
      address.sin_port = port.bigEndian
      isValid = inet_pton(AF_INET, host, &address.sin_addr) == 1
      length = socklen_t(MemoryLayout<sockaddr_in>.size)
      withUnsafeMutableBytes(of: &storage) { $0.storeBytes(of: address, as: sockaddr_in.self) }
    }
    try #require(isValid, "\(host) is no address")
  }

  /// The port, which is at the same offset in IPv4 and IPv6 addresses.
  var port: UInt16 {
    withUnsafeBytes(of: storage) { UInt16(bigEndian: $0.loadUnaligned(fromByteOffset: 2, as: UInt16.self)) }
  }

  func makeSocket(isBlocking: Bool = true) -> CInt {
    let kind = SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | (isBlocking ? 0 : SOCK_NONBLOCK.rawValue)
    return socket(CInt(storage.ss_family), CInt(kind), 0)
  }

  @discardableResult
  mutating func withPointer<Result>(
    _ body: (UnsafeMutablePointer<sockaddr>, UnsafeMutablePointer<socklen_t>) -> Result
  ) -> Result {
    withUnsafeMutablePointer(to: &storage) { storage in
      storage.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, &length) }
    }
  }

  /// Whether this machine has the address.
  static func isAvailable(_ host: String) -> Bool {
    guard var address = try? SocketAddress(host, port: 0) else { return false }
    let probe = address.makeSocket()
    guard probe >= 0 else { return false }
    defer { close(probe) }
    return address.withPointer { bind(probe, $0, $1.pointee) == 0 }
  }
}
