import Dispatch
import Foundation
import Glibc
import LoopbackOrigin
import Synchronization
import Testing

/// A relay that adds TLS to an origin: it decrypts what clients send, and encrypts what the origin sends.
///
/// It uses OpenSSL from this process, which libcurl needs anyway. Each part that it receives from the origin arrives as
/// one sequence of records, of which all but the last have the maximum size of 16 KiB.
final class TLSRelay: Sendable {
  /// The version of TLS.
  enum Version: Int, Sendable {
    case tls12 = 0x303
    case tls13 = 0x304
  }

  /// The role of the relay for its clients.
  enum Role: Sendable {
    /// A server with TLS; with `lateTickets`, one that sends a session ticket after each part from the origin.
    case server(Version, lateTickets: Bool = false)
    /// A proxy that opens a tunnel, at whose end is a server with TLS.
    case tunnel(Version)
  }

  let port: UInt16
  private let listener: CInt
  private let role: Role
  private let context: TLSContext
  private let connections = Mutex<(isStopped: Bool, descriptors: Set<CInt>)>((false, []))
  private let running = DispatchGroup()

  /// Starts a relay to a port, with the certificate `server` of a lab.
  init(to target: UInt16, _ lab: CertificateLab, _ role: Role) throws {
    var address = try SocketAddress("127.0.0.1", port: 0)
    let listener = address.makeSocket()
    let isBound = address.withPointer { address, length in
      bind(listener, address, length.pointee) == 0 && listen(listener, 64) == 0
        && getsockname(listener, address, length) == 0
    }
    try #require(isBound, "no listener: errno \(errno)")
    self.listener = listener
    self.role = role
    port = address.port
    let version: Version
    switch role {
    case .server(let chosen, _): version = chosen
    case .tunnel(let chosen): version = chosen
    }
    context = try TLSContext(version, lab)
    let origin = try SocketAddress("127.0.0.1", port: target)
    run { relay in
      while case let client = accept(listener, nil, nil), client >= 0 {
        _ = fcntl(client, F_SETFD, FD_CLOEXEC)
        relay.run { $0.serve(client, origin) }
      }
    }
  }

  /// Ends all connections and threads. OpenSSL must not be in use when the process exits.
  func stop() {
    connections.withLock { connections in
      connections.isStopped = true
      for descriptor in connections.descriptors { shutdown(descriptor, CInt(SHUT_RDWR)) }
    }
    shutdown(listener, CInt(SHUT_RDWR))
    running.wait()
    close(listener)
  }

  private func run(_ work: @escaping @Sendable (TLSRelay) -> Void) {
    running.enter()
    Thread.detachNewThread { [self] in
      var signals = sigset_t()
      sigemptyset(&signals)
      sigaddset(&signals, SIGPIPE)
      pthread_sigmask(SIG_BLOCK, &signals, nil)
      work(self)
      running.leave()
    }
  }

  private func serve(_ client: CInt, _ origin: SocketAddress) {
    var origin = origin
    let server = origin.makeSocket()
    defer {
      _ = connections.withLock { $0.descriptors.remove(client) }
      close(server)
      close(client)
    }
    let mayServe = connections.withLock { connections in
      connections.descriptors.insert(client)
      return !connections.isStopped
    }
    guard mayServe, origin.withPointer({ connect(server, $0, $1.pointee) }) == 0 else { return }
    for descriptor in [client, server] { Self.set(TCP_NODELAY, true, of: descriptor) }
    var sendsTickets = false
    switch role {
    case .server(_, let lateTickets): sendsTickets = lateTickets
    case .tunnel: guard Self.openTunnel(client) else { return }
    }
    guard let stream = TLSStream(context, client) else { return }
    var bytes = [UInt8](repeating: 0, count: 64 << 10)
    while true {
      while case let count = stream.read(&bytes), count != 0 {
        guard count > 0, Self.send(bytes[..<count], to: server) else { return }
      }
      var states = [client, server].map { pollfd(fd: $0, events: CShort(POLLIN), revents: 0) }
      poll(&states, 2, -1)
      guard states[1].revents != 0 else { continue }
      let count = recv(server, &bytes, bytes.count, 0)
      guard count > 0, stream.write(bytes[..<count]) else { return }
      if sendsTickets { stream.writeTicket() }
    }
  }

  /// Sets an option of TCP.
  fileprivate static func set(_ option: CInt, _ isOn: Bool, of descriptor: CInt) {
    var value: CInt = isOn ? 1 : 0
    setsockopt(descriptor, CInt(IPPROTO_TCP), option, &value, socklen_t(MemoryLayout<CInt>.size))
  }

  private static func openTunnel(_ client: CInt) -> Bool {
    var head = ""
    var byte: UInt8 = 0
    while !head.hasSuffix("\r\n\r\n") {
      guard recv(client, &byte, 1, 0) == 1 else { return false }
      head.append(Character(Unicode.Scalar(byte)))
    }
    return head.hasPrefix("CONNECT ") && send(Array("HTTP/1.1 200 OK\r\n\r\n".utf8)[...], to: client)
  }

  private static func send(_ bytes: ArraySlice<UInt8>, to descriptor: CInt) -> Bool {
    var rest = bytes
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Glibc.send(descriptor, $0.baseAddress, $0.count, CInt(MSG_NOSIGNAL)) }
      guard count > 0 else { return false }
      rest = rest.dropFirst(count)
    }
    return true
  }
}

/// The settings of OpenSSL for a server.
final class TLSContext: Sendable {
  fileprivate let context: UInt

  fileprivate init(_ version: TLSRelay.Version, _ lab: CertificateLab) throws {
    let context = try #require(OpenSSL.newContext(OpenSSL.serverMethod()), "there is no memory for TLS")
    self.context = UInt(bitPattern: context)
    for bound in [OpenSSL.minimumVersion, OpenSSL.maximumVersion] {
      try #require(OpenSSL.control(context, bound, version.rawValue, nil) == 1, "OpenSSL lacks this version of TLS")
    }
    try #require(OpenSSL.useCertificate(context, lab.path("server.pem"), OpenSSL.pem) == 1, "no certificate")
    try #require(OpenSSL.useKey(context, lab.path("server.key"), OpenSSL.pem) == 1, "no key")
  }

  deinit { OpenSSL.freeContext(OpaquePointer(bitPattern: context)) }
}

/// A connection with TLS, on the server's side. One thread uses it.
private final class TLSStream {
  private let stream: OpaquePointer
  private let descriptor: CInt

  /// Accepts TLS on a socket; nil if the handshake fails.
  init?(_ context: TLSContext, _ descriptor: CInt) {
    guard let stream = OpenSSL.newStream(OpaquePointer(bitPattern: context.context)) else { return nil }
    self.stream = stream
    self.descriptor = descriptor
    _ = OpenSSL.setDescriptor(stream, descriptor)
    guard OpenSSL.accept(stream) == 1 else { return nil }
    _ = fcntl(descriptor, F_SETFL, O_NONBLOCK)
  }

  deinit { OpenSSL.freeStream(stream) }

  /// Reads what has arrived; 0 if that is nothing, -1 at the end.
  func read(_ bytes: inout [UInt8]) -> Int {
    let count = OpenSSL.read(stream, &bytes, CInt(bytes.count))
    if count > 0 { return Int(count) }
    return OpenSSL.error(stream, count) == OpenSSL.wantsToRead ? 0 : -1
  }

  /// Writes all bytes, so that they arrive together; false if the connection is lost.
  func write(_ bytes: ArraySlice<UInt8>) -> Bool {
    TLSRelay.set(TCP_CORK, true, of: descriptor)
    defer { TLSRelay.set(TCP_CORK, false, of: descriptor) }
    return bytes.withUnsafeBytes { bytes in
      while true {
        let count = OpenSSL.write(stream, bytes.baseAddress, CInt(bytes.count))
        if count > 0 { return true }
        guard OpenSSL.error(stream, count) == OpenSSL.wantsToWrite else { return false }
        var state = pollfd(fd: descriptor, events: CShort(POLLOUT), revents: 0)
        poll(&state, 1, -1)
      }
    }
  }

  /// Sends a new session ticket, which TLS 1.3 allows at any time.
  func writeTicket() {
    _ = OpenSSL.newTicket(stream)
    _ = OpenSSL.handshake(stream)
  }
}

/// The functions of the OpenSSL that libcurl has loaded.
private enum OpenSSL {
  static let pem: CInt = 1
  static let minimumVersion: CInt = 123
  static let maximumVersion: CInt = 124
  static let wantsToRead: CInt = 2
  static let wantsToWrite: CInt = 3

  static let serverMethod = function("TLS_server_method", (@Sendable @convention(c) () -> OpaquePointer?).self)
  static let newContext = function(
    "SSL_CTX_new", (@Sendable @convention(c) (OpaquePointer?) -> OpaquePointer?).self)
  static let freeContext = function("SSL_CTX_free", (@Sendable @convention(c) (OpaquePointer?) -> Void).self)
  static let control = function(
    "SSL_CTX_ctrl", (@Sendable @convention(c) (OpaquePointer?, CInt, Int, UnsafeMutableRawPointer?) -> Int).self)
  static let useCertificate = function("SSL_CTX_use_certificate_file", FileFunction.self)
  static let useKey = function("SSL_CTX_use_PrivateKey_file", FileFunction.self)
  static let newStream = function("SSL_new", (@Sendable @convention(c) (OpaquePointer?) -> OpaquePointer?).self)
  static let freeStream = function("SSL_free", (@Sendable @convention(c) (OpaquePointer?) -> Void).self)
  static let setDescriptor = function("SSL_set_fd", (@Sendable @convention(c) (OpaquePointer?, CInt) -> CInt).self)
  static let accept = function("SSL_accept", StreamFunction.self)
  static let handshake = function("SSL_do_handshake", StreamFunction.self)
  static let newTicket = function("SSL_new_session_ticket", StreamFunction.self)
  static let read = function(
    "SSL_read", (@Sendable @convention(c) (OpaquePointer?, UnsafeMutableRawPointer?, CInt) -> CInt).self)
  static let write = function(
    "SSL_write", (@Sendable @convention(c) (OpaquePointer?, UnsafeRawPointer?, CInt) -> CInt).self)
  static let error = function("SSL_get_error", (@Sendable @convention(c) (OpaquePointer?, CInt) -> CInt).self)

  typealias FileFunction = @Sendable @convention(c) (OpaquePointer?, UnsafePointer<CChar>?, CInt) -> CInt
  typealias StreamFunction = @Sendable @convention(c) (OpaquePointer?) -> CInt

  private static func function<Function>(_ name: String, _ type: Function.Type) -> Function {
    guard let symbol = dlsym(nil, name) else { fatalError("libcurl does not use OpenSSL, but the tests need it") }
    return unsafeBitCast(symbol, to: type)
  }
}
