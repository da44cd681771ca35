import Glibc
import Synchronization

/// The address of a server on this host.
enum FleetEndpoint: Sendable {
  case unix(String)
  /// A port of 127.0.0.1.
  case tcp(UInt16)

  func makeSocket() -> CInt {
    let domain: CInt =
      switch self {
      case .unix: AF_UNIX
      case .tcp: AF_INET
      }
    return socket(domain, CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
  }

  func withAddress<Result>(_ body: (UnsafePointer<sockaddr>, socklen_t) -> Result) -> Result {
    switch self {
    case .unix(let path): return withUnixAddress(path, body)
    case .tcp(let port):
      var address = sockaddr_in()
      address.sin_family = sa_family_t(AF_INET)
      address.sin_port = port.bigEndian
      address.sin_addr.s_addr = UInt32(INADDR_LOOPBACK).bigEndian
      return withUnsafePointer(to: &address) {
        $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(MemoryLayout<sockaddr_in>.size)) }
      }
    }
  }

  /// A port that no program uses now.
  static func freePort() -> UInt16 {
    let endpoint = FleetEndpoint.tcp(0)
    let descriptor = endpoint.makeSocket()
    defer { close(descriptor) }
    guard endpoint.withAddress({ bind(descriptor, $0, $1) }) == 0 else { fail("no port") }
    return port(of: descriptor)
  }

  static func port(of descriptor: CInt) -> UInt16 {
    var address = sockaddr_in()
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let status = withUnsafeMutablePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(descriptor, $0, &length) }
    }
    guard status == 0 else { fail("no port") }
    return UInt16(bigEndian: address.sin_port)
  }
}

/// A network between a machine and servers, which can be cut or slow.
final class FleetProxy: Sendable {
  private let network = Network()
  /// For each TCP server its port and that of the proxy, for `MACHINE_PORTS`.
  let ports: String

  private final class Network: Sendable {
    /// Whether bytes to Redis, and bytes from Redis, are lost.
    let losesRequests = Atomic(false)
    let losesReplies = Atomic(false)
    /// The maximum delay of each transfer to Redis and from Redis, in microseconds.
    let requestDelay = Atomic(0)
    let replyDelay = Atomic(0)
  }

  /// - Parameters:
  ///   - links: Where the proxy listens, and the server there; nil for a free port.
  ///   - double: Alters what passes; nil for nothing.
  init(_ links: [(listens: FleetEndpoint?, server: FleetEndpoint)], _ double: RedisDouble? = nil) {
    var ports: [String] = []
    for (listens, server) in links {
      let endpoint = listens ?? .tcp(0)
      let listener = endpoint.makeSocket()
      guard endpoint.withAddress({ bind(listener, $0, $1) }) == 0, listen(listener, 64) == 0 else {
        fail("no socket at \(endpoint)")
      }
      if case .tcp(let port) = server { ports.append("\(port):\(FleetEndpoint.port(of: listener))") }
      Self.forward(from: listener, to: server, network, double)
    }
    self.ports = ports.joined(separator: ",")
  }

  private static func forward(
    from listener: CInt, to target: FleetEndpoint, _ network: Network, _ double: RedisDouble?
  ) {
    startThread {
      while case let client = accept(listener, nil, nil), client >= 0 {
        // accept4 is not in Swift's Glibc module.
        _ = fcntl(client, F_SETFD, FD_CLOEXEC)
        let server = target.makeSocket()
        guard target.withAddress({ connect(server, $0, $1) }) == 0 else {
          close(client)
          close(server)
          continue
        }
        // The last of the two threads closes both.
        let ended = Counter()
        let double = double?.makeConnection()
        startThread {
          Self.forward(
            client, server, ended, network.losesRequests, network.requestDelay, isReply: false, double?.request)
        }
        startThread {
          Self.forward(server, client, ended, network.losesReplies, network.replyDelay, isReply: true, double?.reply)
        }
      }
    }
  }

  private final class Counter: Sendable {
    private let count = Atomic(0)
    func next() -> Int { count.wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }
  }

  private static func forward(
    _ from: CInt, _ to: CInt, _ ended: Counter, _ loses: borrowing Atomic<Bool>, _ delay: borrowing Atomic<Int>,
    isReply: Bool, _ alter: ((ArraySlice<UInt8>) -> [UInt8])?
  ) {
    var random = SystemRandomNumberGenerator()
    var buffer = [UInt8](repeating: 0, count: 65_536)
    var isDead = false
    while case let count = read(from, &buffer, buffer.count), count > 0 {
      let bytes = alter?(buffer[..<count]) ?? Array(buffer[..<count])
      let limit = delay.load(ordering: .relaxed)
      if limit > 0 { usleep(UInt32.random(in: 0...UInt32(limit), using: &random)) }
      // A connection that has lost bytes stays dead, as the rest would not make sense.
      if loses.load(ordering: .relaxed) { isDead = true }
      var sent = 0
      while !isDead, sent < bytes.count {
        let written = bytes.withUnsafeBytes {
          send(to, $0.baseAddress.map { $0 + sent }, bytes.count - sent, CInt(MSG_NOSIGNAL))
        }
        if written <= 0 { break }
        sent += written
      }
    }
    shutdown(to, CInt(SHUT_WR))
    if isReply { shutdown(to, CInt(SHUT_RDWR)) }
    if ended.next() == 2 {
      close(from)
      close(to)
    }
  }

  // MARK: Faults

  /// Loses bytes in one direction or both until ``restore()``.
  func cut(requests: Bool, replies: Bool) {
    network.losesRequests.store(requests, ordering: .relaxed)
    network.losesReplies.store(replies, ordering: .relaxed)
  }

  /// Delays each transfer by up to a number of microseconds until ``restore()``.
  func slow(requests: Int, replies: Int) {
    network.requestDelay.store(requests, ordering: .relaxed)
    network.replyDelay.store(replies, ordering: .relaxed)
  }

  func restore() {
    cut(requests: false, replies: false)
    slow(requests: 0, replies: 0)
  }
}
