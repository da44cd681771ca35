import Foundation
import Testing

/// A temporary folder with certificates, and with responses that a server sends unchanged.
final class CertificateLab {
  private let folder: URL

  init() throws {
    folder = FileManager.default.temporaryDirectory.appendingPathComponent("certificates-\(UUID().uuidString)")
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    let script = """
      set -e
      key() { openssl ecparam -genkey -name prime256v1 -noout -out $1.key; }
      key ca; openssl req -x509 -new -key ca.key -out ca.pem -days 30 -subj '/CN=authority'
      key other
      openssl req -x509 -new -key other.key -out other.pem -days 30 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1
      sign() { openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -in $1.csr -extfile $2 -out $1.pem; }
      echo subjectAltName=IP:127.0.0.1 > right; echo subjectAltName=DNS:other.test > left
      for name in server wrong client expired; do
        key $name; openssl req -new -key $name.key -out $name.csr -subj /CN=localhost
      done
      sign server right; sign wrong left; sign client right
      mkdir db; : > db/index; echo 01 > db/serial
      printf '[ca]\\ndefault_ca=a\\n[a]\\ndatabase=db/index\\nnew_certs_dir=db\\nserial=db/serial\\ndefault_md=sha256\\npolicy=p\\n[p]\\ncommonName=supplied\\n' > ca.cnf
      openssl ca -batch -config ca.cnf -cert ca.pem -keyfile ca.key -in expired.csr -out expired.pem -startdate 20200101000000Z -enddate 20200201000000Z -extfile right
      printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello' > hello
      printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nhello' > cut
      printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n' > cut-head
      printf 'HTTP/1.1 200 OK\\r\\n\\r\\nhello' > no-length
      """
    let shell = Process()
    shell.executableURL = URL(fileURLWithPath: "/bin/sh")
    shell.arguments = ["-c", script]
    shell.currentDirectoryURL = folder
    shell.standardInput = FileHandle.nullDevice
    let output = Pipe()
    shell.standardOutput = output
    shell.standardError = output
    try shell.run()
    let text = output.fileHandleForReading.readDataToEndOfFile()
    shell.waitUntilExit()
    try #require(shell.terminationStatus == 0, "openssl: \(String(decoding: text, as: UTF8.self))")
  }

  deinit {
    // Ignore failures: the system cleans its temporary directory.
    try? FileManager.default.removeItem(at: folder)
  }

  func path(_ name: String) -> String { folder.appendingPathComponent(name).path }
}
