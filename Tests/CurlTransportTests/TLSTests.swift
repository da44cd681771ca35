import CurlTransport
import Foundation
import Glibc
import LoopbackOrigin
import Synchronization
import Testing

/// Tests of valid and invalid certificates, with `openssl s_server` as the server.
@Suite("TLS of the curl transport", .timeLimit(.minutes(1)))
struct TLSTests {
  private let lab: CertificateLab

  init() throws {
    lab = try CertificateLab()
  }

  private func outcome(
    _ server: TLSServer, _ path: String = "hello", _ configure: (inout CurlTransport.Configuration) -> Void = { _ in }
  ) async -> Outcome {
    let transport = directTransport {
      $0.certificateAuthorityFile = lab.path("ca.pem")
      configure(&$0)
    }
    return await transport.outcome(server.url(path))
  }

  @Test("A certificate of the configured authority is trusted")
  func ownAuthority() async throws {
    let server = try TLSServer(lab, certificate: "server")
    #expect(await outcome(server) == .complete(200, "hello"))
  }

  @Test("A certificate of an unknown authority is not trusted")
  func unknownAuthority() async throws {
    let server = try TLSServer(lab, certificate: "server")
    #expect(
      await outcome(server) { $0.certificateAuthorityFile = lab.path("other.pem") } == .failure(.untrustedCertificate))
    // The system may have no certificates.
    let bySystem = await outcome(server) { $0.certificateAuthorityFile = nil }
    #expect([.failure(.untrustedCertificate), .failure(.secureConnectionFailed)].contains(bySystem))
  }

  @Test(
    "An expired certificate, one for another host, and a self-signed one are not trusted",
    arguments: ["expired", "wrong", "other"])
  func badCertificate(_ certificate: String) async throws {
    let server = try TLSServer(lab, certificate: certificate)
    #expect(await outcome(server) == .failure(.untrustedCertificate))
  }

  @Test("A request fails if a certificate file cannot be read")
  func missingFiles() async throws {
    let server = try TLSServer(lab, certificate: "server")
    let failure = Outcome.failure(.secureConnectionFailed)
    #expect(await outcome(server) { $0.certificateAuthorityFile = lab.path("nothing.pem") } == failure)
    #expect(
      await outcome(server) {
        $0.clientCertificate = .init(certificateFile: lab.path("nothing.pem"), keyFile: lab.path("nothing.key"))
      } == failure)
  }

  @Test("The client authenticates with its certificate")
  func clientCertificate() async throws {
    let server = try TLSServer(
      lab, certificate: "server", "-Verify", "1", "-verify_return_error", "-CAfile", lab.path("ca.pem"))
    let identified = await outcome(server) {
      $0.clientCertificate = .init(certificateFile: lab.path("client.pem"), keyFile: lab.path("client.key"))
    }
    #expect(identified == .complete(200, "hello"))
    let anonymous = await outcome(server)
    #expect([.failure(.secureConnectionFailed), .failure(.connectionLost)].contains(anonymous))
  }

  @Test("A truncated response over TLS is an error, and a response without a length has no proven end")
  func cut() async throws {
    let server = try TLSServer(lab, certificate: "server")
    #expect(await outcome(server, "cut") == .failure(.connectionLost))
    #expect(await outcome(server, "cut-head") == .failure(.connectionLost))
    #expect(await outcome(server, "no-length") == .unproven(200, "hello"))
  }

  @Test("A connection that ends without the closing message of TLS loses a response, or its end is not proven")
  func cutConnection() async throws {
    let server = try TLSServer(lab, certificate: "server", "-tls1_2")
    // Later versions of libcurl require the closing message.
    let lost = Outcome.failure(.connectionLost)
    for (path, expected) in [("cut", [lost]), ("no-length", [.unproven(200, "hello"), lost])] {
      let relay = try TLSCuttingRelay(to: server.port)
      let transport = directTransport { $0.certificateAuthorityFile = lab.path("ca.pem") }
      let url = relay.url(path)
      #expect(expected.contains(await transport.outcome(url)))
      #expect(relay.hasCutClosingMessage)
    }
  }

  @Test("Only HTTP/1.1 is offered to a server, because of the flaws of some versions of libcurl with HTTP/2")
  func protocols() async throws {
    let both = try TLSServer(lab, certificate: "server", "-alpn", "h2,http/1.1")
    #expect(await outcome(both) == .complete(200, "hello"))
    let other = try TLSServer(lab, certificate: "server", "-alpn", "h2")
    #expect(await outcome(other) == .failure(.secureConnectionFailed))
  }

  @Test("A process can exit while TLS connections are opened and used", arguments: 1...5)
  func exitDuringTransfers(_ round: Int) async throws {
    let server = try TLSServer(lab, certificate: "server")
    // The server sends the file as it is.
    let head = Data("HTTP/1.1 200 OK\r\nContent-Length: \(4 << 30)\r\n\r\n".utf8)
    try #require(FileManager.default.createFile(atPath: lab.path("large"), contents: head))
    try #require(truncate(lab.path("large"), head.count + (4 << 30)) == 0)
    // OpenSSL releases its data when the process exits, and a thread within TLS would crash.
    await #expect(processExitsWith: .success) {
      [authority = lab.path("ca.pem") as String, base = server.url("").absoluteString as String] in
      try await Self.exitDuringTransfers(authority, base)
    }
    withExtendedLifetime(server) {}
  }

  private static func exitDuringTransfers(_ authority: String, _ base: String) async throws {
    let transport = directTransport { $0.certificateAuthorityFile = authority }
    let url = try #require(URL(string: base + "hello"))
    let body = try await transport.get(try #require(URL(string: base + "large"))).body
    var iterator = body.makeAsyncIterator()
    #expect(try await iterator.next() != nil)
    // One transfer receives, and the server accepts the connections of the others one after another.
    let reading = Task { for try await _ in body {} }
    let opening = (0..<8).map { _ in Task { await transport.outcome(url) } }
    await Task.yield()
    withExtendedLifetime((reading, opening)) { exit(0) }
  }

  @Test("A request fails if the server does not use TLS or does not respond")
  func clearText() async throws {
    let plain = try SilentListener()
    let url = plain.url("https")
    let outcome = Task { await directTransport().outcome(url) }
    await plain.answer("220 mail.test ESMTP\r\n")
    #expect(await outcome.value == .failure(.secureConnectionFailed))
    let silent = try SilentListener()
    #expect(
      await directTransport { $0.connectTimeout = .milliseconds(100) }.outcome(silent.url("https"))
        == .failure(.timedOut))
  }

  @Test("A server that sends messages of TLS without end is left before they keep the I/O thread busy")
  func endlessMessages() async throws {
    // One record with 3,000 requests for a handshake, which clients ignore during a handshake.
    let record: [UInt8] = [22, 3, 3, 0x2e, 0xe0] + [UInt8](repeating: 0, count: 12_000)
    let listener = try SilentListener()
    let url = listener.url("https")
    let outcome = Task { await directTransport { $0.connectTimeout = .seconds(5) }.outcome(url) }
    await listener.answer(record, waits: true)
    // Without the limit, the client waits for the rest of the handshake until it times out.
    #expect(await outcome.value == .failure(.secureConnectionFailed))
  }
}

/// An `openssl s_server` process, which responds with the files of a folder.
final class TLSServer {
  private let process = Process()
  private let output = Pipe()
  let port: Int

  init(_ lab: CertificateLab, certificate: String, _ options: String...) throws {
    process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
    process.arguments =
      ["openssl", "s_server", "-HTTP", "-accept", "127.0.0.1:0", "-cert", lab.path("\(certificate).pem")]
      + ["-key", lab.path("\(certificate).key")] + options
    process.currentDirectoryURL = URL(fileURLWithPath: lab.path(""))
    process.standardInput = FileHandle.nullDevice
    process.standardOutput = output
    process.standardError = FileHandle.nullDevice
    try process.run()
    var text = ""
    while !text.contains("ACCEPT 127.0.0.1:") || !text.hasSuffix("\n") {
      let bytes = output.fileHandleForReading.availableData
      try #require(!bytes.isEmpty, "openssl s_server ended: \(text)")
      text += String(decoding: bytes, as: UTF8.self)
    }
    let digits = text.components(separatedBy: "ACCEPT 127.0.0.1:")[1].prefix { $0.isNumber }
    port = try #require(Int(digits))
  }

  deinit {
    // The process may have inherited a signal mask that blocks SIGTERM.
    kill(process.processIdentifier, SIGKILL)
    process.waitUntilExit()
  }

  func url(_ path: String) -> URL { URL(string: "https://127.0.0.1:\(port)/\(path)")! }
}

/// A relay that passes on one connection to a TLS 1.2 server, but closes it instead of passing on the server's closing
/// message.
final class TLSCuttingRelay: Sendable {
  private let listener: CInt
  private let port: UInt16
  private let cut = Atomic(false)

  /// Whether the server's closing message arrived and was dropped.
  var hasCutClosingMessage: Bool { cut.load(ordering: .acquiring) }

  init(to server: Int) throws {
    var address = try SocketAddress("127.0.0.1", port: 0)
    let listener = address.makeSocket()
    let isBound = address.withPointer { address, length in
      bind(listener, address, length.pointee) == 0 && listen(listener, 1) == 0
        && getsockname(listener, address, length) == 0
    }
    try #require(isBound, "no listener: errno \(errno)")
    self.listener = listener
    port = address.port
    let target = try SocketAddress("127.0.0.1", port: UInt16(server))
    Thread.detachNewThread { [self] in relay(to: target) }
  }

  deinit { close(listener) }

  func url(_ path: String) -> URL { URL(string: "https://127.0.0.1:\(port)/\(path)")! }

  private func relay(to target: SocketAddress) {
    var target = target
    let client = accept(listener, nil, nil)
    let server = target.makeSocket()
    guard target.withPointer({ connect(server, $0, $1.pointee) }) == 0 else { return }
    let sending = DispatchSemaphore(value: 0)
    Thread.detachNewThread {
      var bytes = [UInt8](repeating: 0, count: 16 << 10)
      while case let count = read(client, &bytes, bytes.count), count > 0 { _ = write(server, bytes, count) }
      sending.signal()
    }
    // The first byte of a record is its type, and the fourth and fifth are its length.
    while let header = receive(5, from: server) {
      if header[0] == 21 {
        cut.store(true, ordering: .releasing)
        break
      }
      guard let content = receive(Int(header[3]) << 8 | Int(header[4]), from: server) else { break }
      _ = write(client, header + content, 5 + content.count)
    }
    shutdown(client, CInt(SHUT_RDWR))
    sending.wait()
    close(client)
    close(server)
  }

  /// Reads so many bytes; nil at the end.
  private func receive(_ count: Int, from descriptor: CInt) -> [UInt8]? {
    var bytes = [UInt8](repeating: 0, count: count)
    let received = recv(descriptor, &bytes, count, CInt(MSG_WAITALL))
    return received == count ? bytes : nil
  }
}
