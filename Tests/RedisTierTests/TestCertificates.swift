import Foundation
import RedisTier

/// Certificates of a test, made by `openssl`.
enum TestCertificates {
  /// An authority, and certificates of a server and a client that it has signed. The server is `localhost`,
  /// `redis.test` and `127.0.0.1`.
  static let directory: String = {
    do {
      let path = "/tmp/certificates-\(RandomID().text.prefix(12))"
      try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
      directoryToRemove = path
      atexit { _ = try? FileManager.default.removeItem(atPath: TestCertificates.directoryToRemove) }
      try makeAuthority("ca", in: path)
      try makeAuthority("other-ca", in: path)
      try makeCertificate("server", "DNS:localhost,DNS:redis.test,IP:127.0.0.1", in: path)
      try makeCertificate("other-name", "DNS:elsewhere.test,IP:127.0.0.2", in: path)
      // It expires at once. OpenSSL 3.5 makes no certificate that has expired before.
      try makeCertificate("expired", "DNS:localhost,IP:127.0.0.1", days: 0, in: path)
      try makeCertificate("client", "DNS:client.test", in: path)
      try run(["ec", "-aes256", "-passout", "pass:word", "-in", "\(path)/client.key", "-out", "\(path)/encrypted.key"])
      return path
    } catch {
      fatalError("openssl made no certificates: \(error)")
    }
  }()

  nonisolated(unsafe) private static var directoryToRemove = ""

  static func file(_ name: String) -> String { directory + "/" + name }

  /// The settings of a client that trusts the authority, and has a certificate.
  static var tls: RedisTLS {
    var tls = RedisTLS()
    tls.certificateAuthorityFile = file("ca.pem")
    tls.clientCertificate = .init(certificateFile: file("client.pem"), keyFile: file("client.key"))
    return tls
  }

  /// The options of a server, which asks clients for a certificate.
  static func options(port: UInt16, certificate: String = "server", asksClients: Bool = true) -> [String] {
    [
      "--tls-port", "\(port)", "--tls-cert-file", file("\(certificate).pem"), "--tls-key-file",
      file("\(certificate).key"), "--tls-ca-cert-file", file("ca.pem"), "--tls-auth-clients",
      asksClients ? "yes" : "no",
    ]
  }

  private static let newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

  private static func makeAuthority(_ name: String, in path: String) throws {
    try run(
      ["req", "-x509"] + newKey + [
        "-days", "2", "-subj", "/CN=\(name)", "-keyout", "\(path)/\(name).key", "-out", "\(path)/\(name).pem",
      ])
  }

  private static func makeCertificate(_ name: String, _ names: String, days: Int = 2, in path: String) throws {
    try run(
      ["req"] + newKey + [
        "-subj", "/CN=\(name)", "-addext", "subjectAltName=\(names)", "-keyout", "\(path)/\(name).key", "-out",
        "\(path)/\(name).csr",
      ])
    try run(
      [
        "x509", "-req", "-in", "\(path)/\(name).csr", "-CA", "\(path)/ca.pem", "-CAkey", "\(path)/ca.key",
        "-CAcreateserial", "-copy_extensions", "copy", "-out", "\(path)/\(name).pem", "-days", "\(days)",
      ])
  }

  private static func run(_ arguments: [String]) throws {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/openssl")
    process.arguments = arguments
    process.standardError = FileHandle.nullDevice
    process.standardOutput = FileHandle.nullDevice
    try process.run()
    process.waitUntilExit()
    guard process.terminationStatus == 0 else { throw TestError("openssl \(arguments.joined(separator: " "))") }
  }
}
