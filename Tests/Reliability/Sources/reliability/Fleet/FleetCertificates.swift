import Glibc

/// The certificates of a scenario with TLS, made by `openssl`: an authority, and one for all servers and clients.
struct FleetCertificates {
  let directory: String

  init(directory: String) {
    self.directory = directory
    makeDirectory(directory)
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(["req", "-x509"] + key + ["-days", "2", "-subj", "/CN=ca", "-keyout", path("ca.key"), "-out", authority])
    run(
      ["req"] + key + [
        "-subj", "/CN=fleet", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", keyFile, "-out", path("csr"),
      ])
    run(
      [
        "x509", "-req", "-in", path("csr"), "-CA", authority, "-CAkey", path("ca.key"), "-CAcreateserial",
        "-copy_extensions", "copy", "-out", certificate, "-days", "2",
      ])
  }

  /// Names the files of a directory that another process has made.
  init(in directory: String) {
    self.directory = directory
  }

  private func path(_ name: String) -> String { "\(directory)/\(name)" }
  var authority: String { path("ca.pem") }
  var certificate: String { path("fleet.pem") }
  var keyFile: String { path("fleet.key") }

  /// The options of a server, and of its connections to others.
  func options(port: UInt16) -> [String] {
    [
      "--tls-port", "\(port)", "--tls-replication", "yes", "--tls-cert-file", certificate, "--tls-key-file", keyFile,
      "--tls-ca-cert-file", authority,
    ]
  }

  private func run(_ arguments: [String]) {
    let child = Child.start(arguments, executable: "/usr/bin/openssl", outputPath: path("log"))
    guard child.wait(seconds: 30) == .exited(0) else { fail("openssl made no certificate: \(child.output)") }
  }
}
