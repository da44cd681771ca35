import Foundation
import FoundationNetworking
import Glibc
import LoopbackOrigin
import ResponseStore
import Testing

@testable import LMDBURLCache
@testable import RedisTier

@Suite("Redis over TLS", .needsRedis, .timeLimit(.minutes(1)))
struct TLSTests {
  private static func server(_ certificate: String = "server", asksClients: Bool = true) throws -> (
    redis: RedisServerProcess, url: String
  ) {
    let port = try freePort()
    let options = TestCertificates.options(port: port, certificate: certificate, asksClients: asksClients)
    return (try RedisServerProcess(options), "rediss://localhost:\(port)")
  }

  @Test("Machines share responses and purges over TLS, with client certificates")
  func fleet() async throws {
    let port = try freePort()
    let fleet = try FleetFixture(redisOptions: TestCertificates.options(port: port))
    let tier = try RedisTier(
      url: "rediss://127.0.0.1:\(port)", secret: testSecret,
      configuration: {
        var configuration = fleet.configuration
        configuration.tls = TestCertificates.tls
        return configuration
      }())
    let one = try Machine(fleet.directory.appendingPathComponent("1"), tier)
    let other = try Machine(fleet.directory.appendingPathComponent("2"), tier)
    await wait { one.hasLease && other.hasLease }
    try fleet.mature()
    let url = fleet.origin.url("/a")
    let before = try await one.get(url)
    try await fleet.waitForObjects(1)
    #expect(try await other.get(url) == before)
    #expect(other.counts.sharedHits == 1)
    #expect(try await one.cache.purge(.url(url))?.confirmedCount == 2)
    #expect(try await other.get(url) != before)
  }

  @Test("Commands and replies of any size pass, also several at once")
  func sizes() throws {
    let (redis, url) = try Self.server()
    let connection = try connect(url, tls: TestCertificates.tls)
    let bytes = (0..<3_000_000).map { UInt8(truncatingIfNeeded: $0 * $0 >> 3) }
    try connection.command([Array("SET".utf8), [0], bytes])
    #expect(try connection.command([Array("GET".utf8), [0]]).asBytes() == bytes)
    let replies = try connection.commands([[Array("GET".utf8), [0]], [Array("ECHO".utf8), [1]]])
    #expect(try replies[0].asBytes() == bytes && replies[1].asBytes() == [1])
    withExtendedLifetime(redis) {}
  }

  @Test(
    "A server whose certificate is not valid is refused, and the reason is named",
    arguments: [
      ("server", "other-ca", "localhost", "self-signed certificate in certificate chain"),
      ("server", "", "localhost", "self-signed certificate in certificate chain"),
      ("other-name", "ca", "localhost", "hostname mismatch"), ("other-name", "ca", "127.0.0.1", "IP address mismatch"),
      ("expired", "ca", "localhost", "certificate has expired"),
    ])
  func invalidCertificate(_ certificate: String, _ authority: String, _ host: String, _ reason: String) throws {
    let (redis, url) = try Self.server(certificate)
    var tls = TestCertificates.tls
    tls.certificateAuthorityFile = authority.isEmpty ? nil : TestCertificates.file(authority + ".pem")
    let error = #expect(throws: RedisTierError.self) {
      try connect(url.replacing("localhost", with: host), tls: tls)
    }
    #expect(error?.code == .tlsFailed)
    #expect(
      error?.reason.contains("certificate of the server is not valid: \(reason)") == true, "\(error?.reason ?? "")")
    // Without the proof that a certificate is needed, this would not show that the server works.
    if certificate == "other-name" {
      tls.serverName = "elsewhere.test"
      try connect(url, tls: tls).command(["PING"])
    }
    withExtendedLifetime(redis) {}
  }

  @Test("A client without a certificate, or with one of another authority, is refused if the server asks for one")
  func clientCertificate() throws {
    let (redis, url) = try Self.server()
    var tls = TestCertificates.tls
    for certificate in [nil, "other-ca"] {
      tls.clientCertificate = certificate.map {
        .init(certificateFile: TestCertificates.file($0 + ".pem"), keyFile: TestCertificates.file($0 + ".key"))
      }
      let error = #expect(throws: RedisTierError.self) { try connect(url, tls: tls).serverRun() }
      #expect(error?.code == .tlsFailed, "\(error?.description ?? "")")
    }
    let (open, openURL) = try Self.server(asksClients: false)
    tls.clientCertificate = nil
    #expect(try connect(openURL, tls: tls).serverRun().count == 40)
    withExtendedLifetime((redis, open)) {}
  }

  @Test("The server learns the name that it is expected to have, but no IP address", arguments: ["redis.test", nil])
  func serverName(_ name: String?) throws {
    let received = Monitor([UInt8]())
    let listener = try LoopbackListener { bytes in
      received.update { $0 += bytes }
      return nil
    }
    var tls = RedisTLS()
    tls.serverName = name
    #expect(throws: RedisTierError.self) { try connect("rediss://127.0.0.1:\(listener.port)", tls: tls) }
    let hello = String(decoding: received.withLock { $0 }, as: UTF8.self)
    #expect(hello.contains(name ?? "127.0.0.1") == (name != nil))
  }

  @Test("TLS on one side alone is reported as such")
  func oneSide() throws {
    let (redis, url) = try Self.server()
    let withoutTLS = #expect(throws: RedisTierError.self) {
      try connect(url.replacing("rediss", with: "redis")).serverRun()
    }
    #expect([.tlsFailed, .connectionLost].contains(withoutTLS?.code), "\(withoutTLS?.description ?? "")")
    let port = try freePort()
    let plain = try RedisServerProcess(["--port", "\(port)"])
    let error = #expect(throws: RedisTierError.self) {
      try connect("rediss://localhost:\(port)", timeout: .milliseconds(100))
    }
    #expect(error?.code == .tlsFailed, "\(error?.description ?? "")")
    withExtendedLifetime((redis, plain)) {}
  }

  @Test("A server that is suspended neither holds the handshake nor a command for longer than its time limit")
  func suspended() throws {
    let (redis, url) = try Self.server()
    let connection = try connect(url, tls: TestCertificates.tls)
    redis.suspend()
    defer { redis.resume() }
    let late = #expect(throws: RedisTierError.self) { try connection.command(["PING"], timeout: .milliseconds(20)) }
    #expect(late?.code == .timedOut)
    let error = #expect(throws: RedisTierError.self) {
      try connect(url, tls: TestCertificates.tls, timeout: .milliseconds(50))
    }
    #expect(error?.code == .tlsFailed && error?.reason.contains("did not reply in time") == true)
  }

  @Test("Writing to a connection that the server has closed does not end the process")
  func brokenPipe() throws {
    let (redis, url) = try Self.server()
    let connection = try connect(url, tls: TestCertificates.tls)
    redis.kill()
    for _ in 0..<3 { #expect(throws: RedisTierError.self) { try connection.command(["PING"]) } }
    var signals = sigset_t()
    sigpending(&signals)
    #expect(sigismember(&signals, SIGPIPE) == 0)
  }

  @Test("Certificates that are renewed in their files are used by the next connection")
  func renewedFiles() throws {
    let (redis, url) = try Self.server()
    let path = TestCertificates.file("renewed.pem")
    func copy(_ name: String) throws {
      try Data(contentsOf: URL(fileURLWithPath: TestCertificates.file(name))).write(to: URL(fileURLWithPath: path))
    }
    try copy("other-ca.pem")
    var tls = TestCertificates.tls
    tls.certificateAuthorityFile = path
    let fleet = try FleetAddress(url: url, name: "default", tls: tls, timeout: .seconds(5))
    #expect(throws: RedisTierError.self) { try fleet.connect() }
    try copy("ca.pem")
    try fleet.connect().command(["PING"])
    withExtendedLifetime(redis) {}
  }

  @Test("Certificates that cannot be used are refused when the tier is created, and the error names the file")
  func unusableFiles() {
    func error(_ change: (inout RedisTLS) -> Void) -> RedisTierError? {
      var configuration = RedisTier.Configuration()
      configuration.tls = TestCertificates.tls
      change(&configuration.tls)
      do {
        _ = try RedisTier(url: "rediss://h", secret: testSecret, configuration: configuration)
        return nil
      } catch {
        return error
      }
    }
    #expect(error { _ in } == nil)
    let missing = "/nowhere.pem"
    let wrong = ["ca", "server", "encrypted"].map { TestCertificates.file($0 + ".key") }
    let changes: [(file: String, change: (inout RedisTLS) -> Void)] = [
      (missing, { $0.certificateAuthorityFile = missing }), (wrong[0], { $0.certificateAuthorityFile = wrong[0] }),
      (missing, { $0.clientCertificate?.certificateFile = missing }),
      (missing, { $0.clientCertificate?.keyFile = missing }),
      (wrong[1], { $0.clientCertificate?.keyFile = wrong[1] }),
      (wrong[2], { $0.clientCertificate?.keyFile = wrong[2] }),
    ]
    for (file, change) in changes {
      let error = error(change)
      #expect(error?.code == .invalidConfiguration)
      let reason = error?.reason ?? ""
      #expect(reason.contains("'\(file)'") && !reason.contains("unknown"), "\(reason)")
      #expect(reason.contains("No such file") == (file == missing), "\(reason)")
    }
    #expect(
      error {
        $0.clientCertificate?.keyFile = TestCertificates.file("encrypted.key")
        $0.clientCertificate?.keyPassword = "word"
      } == nil)
  }

  @Test("The tool takes a URL with TLS, the authority file and the client certificate")
  func tool() async throws {
    let port = try freePort()
    let fleet = try FleetFixture(redisOptions: TestCertificates.options(port: port))
    let machine = try await fleet.machine("1")
    let url = "rediss://127.0.0.1:\(port)"
    let certificates = [
      "--redis-ca-file", TestCertificates.file("ca.pem"), "--redis-certificate", TestCertificates.file("client.pem"),
      "--redis-key", TestCertificates.file("client.key"),
    ]
    let status = try FleetTool.run(["fleet", "status", url] + certificates)
    #expect(status.status == 0 && status.output.contains("default at \(url)"), "\(status.errors)")
    let purge = try FleetTool.run(["purge", "--fleet", url, "--all"] + certificates)
    #expect(purge.status == 0 && purge.output.contains("1 machine confirmed"), "\(purge.errors)")
    let untrusted = try FleetTool.run(["fleet", "status", url])
    #expect(untrusted.status == 1 && untrusted.errors.contains("certificate of the server is not valid"))
    let missing = try FleetTool.run(["fleet", "status", url, "--redis-ca-file", "/nowhere.pem"])
    #expect(missing.status != 0 && missing.errors.contains("'/nowhere.pem'"), "\(missing.errors)")
    let half = try FleetTool.run(["fleet", "status", url, "--redis-key", TestCertificates.file("client.key")])
    #expect(half.status == 2 && half.errors.contains("need each other"))
    let plain = try FleetTool.run(["fleet", "status", fleet.redis.url] + certificates)
    #expect(plain.status == 2 && plain.errors.contains("does not select TLS"))
    withExtendedLifetime(machine) {}
  }
}
