import Foundation
import Glibc
import Synchronization
import Testing

/// A web server as users run it, with a configuration of its own.
struct RealOrigin: Sendable, CustomTestStringConvertible {
  let testDescription: String
  let programs: [String]
  /// Returns the arguments and the configuration file for a directory and a port.
  let configuration: @Sendable (_ directory: String, _ port: Int) -> (arguments: [String], file: String)

  init(
    _ description: String, _ programs: String...,
    configuration: @escaping @Sendable (_ directory: String, _ port: Int) -> (arguments: [String], file: String)
  ) {
    testDescription = description
    self.programs = programs
    self.configuration = configuration
  }

  /// The path of the program; nil if it is not installed.
  var program: String? { programs.first { access($0, X_OK) == 0 } }
}

extension RealOrigin {
  /// Debian's nginx, which marks the tags of compressed responses as weak, but not those of a 304.
  private static func nginx(_ description: String, _ directives: String) -> RealOrigin {
    RealOrigin("nginx \(description)", "/usr/sbin/nginx", "/usr/local/sbin/nginx") { directory, port in
      let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map { "\($0)_temp_path \(directory)/\($0);" }
      return (
        ["-e", "\(directory)/log", "-c", "\(directory)/configuration"],
        """
        daemon off;
        master_process off;
        pid \(directory)/pid;
        error_log \(directory)/log;
        events {}
        http {
          access_log off;
          \(paths.joined(separator: "\n  "))
          default_type text/plain;
          add_header Cache-Control max-age=60;
          add_header X-Request $request_id;
          server {
            listen 127.0.0.1:\(port);
            root \(directory)/files;
            \(directives)
          }
        }
        """
      )
    }
  }

  private static func apache(_ description: String, _ directives: String) -> RealOrigin {
    RealOrigin("Apache \(description)", "/usr/sbin/apache2") { directory, port in
      let modules = ["mpm_event", "authz_core", "headers", "deflate"].map {
        "LoadModule \($0)_module /usr/lib/apache2/modules/mod_\($0).so"
      }
      return (
        ["-X", "-f", "\(directory)/configuration"],
        """
        \(modules.joined(separator: "\n"))
        ServerRoot \(directory)
        DefaultRuntimeDir \(directory)
        PidFile \(directory)/pid
        ErrorLog \(directory)/log
        ServerName 127.0.0.1
        Listen 127.0.0.1:\(port)
        User www-data
        Group www-data
        DocumentRoot \(directory)/files
        Header always set Cache-Control max-age=60
        <Directory \(directory)/files>
          Require all granted
          ForceType text/plain
        </Directory>
        \(directives)
        """
      )
    }
  }

  private static func caddy(_ description: String, _ directives: String) -> RealOrigin {
    RealOrigin("Caddy \(description)", "/usr/bin/caddy", "/usr/local/bin/caddy") { directory, port in
      (
        ["run", "--adapter", "caddyfile", "--config", "\(directory)/configuration"],
        """
        {
          admin off
          auto_https off
        }
        http://127.0.0.1:\(port) {
          bind 127.0.0.1
          root * \(directory)/files
          header Cache-Control max-age=60
          \(directives)
          file_server
        }

        """
      )
    }
  }

  private static func lighttpd(_ description: String, _ directives: String) -> RealOrigin {
    RealOrigin("lighttpd \(description)", "/usr/sbin/lighttpd", "/usr/local/sbin/lighttpd") { directory, port in
      (
        ["-D", "-f", "\(directory)/configuration"],
        """
        server.modules = ("mod_setenv")
        server.document-root = "\(directory)/files"
        server.errorlog = "\(directory)/log"
        server.stat-cache-engine = "disable"
        server.bind = "127.0.0.1"
        server.port = \(port)
        mimetype.assign = (".txt" => "text/plain")
        setenv.add-response-header = ("Cache-Control" => "max-age=60")
        \(directives)
        """
      )
    }
  }

  /// Python's server, whose 304 has no validator, and whose responses declare no lifetime.
  static let python = RealOrigin("Python's http.server", "/usr/bin/python3", "/usr/local/bin/python3") {
    directory, port in
    (["-m", "http.server", "--bind", "127.0.0.1", "--directory", "\(directory)/files", "\(port)"], "")
  }

  static let nginx = [
    nginx("without compression", ""), nginx("with gzip", "gzip on; gzip_min_length 1; gzip_types text/plain;"),
    nginx("with gzip and Vary", "gzip on; gzip_min_length 1; gzip_types text/plain; gzip_vary on;"),
    nginx("without tags", "etag off;"),
  ]
  /// In the third one, only the 304 has a tag. In the last one, a 304 has no validator.
  static let apache = [
    apache("without compression", ""),
    apache("with compression and the same tag", "SetOutputFilter DEFLATE\nDeflateAlterETag NoChange"),
    apache("with compression, without a tag", "SetOutputFilter DEFLATE\nDeflateAlterETag Remove"),
    apache("without tags", "FileETag None"),
  ]
  static let caddy = [caddy("without compression", ""), caddy("with gzip", "encode gzip")]
  static let lighttpd = [
    lighttpd("with tags", ""),
    lighttpd(
      "without tags", "etag.use-inode = \"disable\"\netag.use-mtime = \"disable\"\netag.use-size = \"disable\""),
  ]
}

extension Trait where Self == ConditionTrait {
  /// The tests need a web server, which users of the package do not install.
  static func needs(_ origin: RealOrigin) -> Self {
    .enabled(if: origin.program != nil, "\(origin.programs[0]) is not installed")
  }
}

/// A running web server on a free port of the loopback interface, with a directory of files. Ended with this object.
final class RealOriginProcess {
  /// Readable by all, because Apache changes from root to another user.
  private let directory = FileManager.default.temporaryDirectory.appendingPathComponent("origin-\(UUID().uuidString)")
  private let process: Process
  private let port: Int

  init(_ origin: RealOrigin) throws {
    let program = try #require(origin.program)
    for name in ["files", "home"] {
      try FileManager.default.createDirectory(
        at: directory.appendingPathComponent(name), withIntermediateDirectories: true,
        attributes: [.posixPermissions: 0o755])
    }
    // Another program may take the free port before the server does.
    for _ in 0..<5 {
      let port = try Self.freePort()
      let (arguments, file) = origin.configuration(directory.path, port)
      try Data(file.utf8).write(to: directory.appendingPathComponent("configuration"))
      let process = try Self.start(program, arguments, in: directory)
      if Self.waits(for: process, port: port) {
        (self.process, self.port) = (process, port)
        return
      }
      process.end()
    }
    // The log of the server tells why.
    let log = try? String(contentsOf: directory.appendingPathComponent("log"), encoding: .utf8)
    try? FileManager.default.removeItem(at: directory)
    throw ServerDoesNotStart(log: log ?? "")
  }

  deinit {
    process.end()
    // A leftover directory does no harm.
    try? FileManager.default.removeItem(at: directory)
  }

  struct ServerDoesNotStart: Error {
    let log: String
  }

  func url(_ name: String) -> URL { URL(string: "http://127.0.0.1:\(port)/\(name)")! }

  /// Writes a file that was last modified at a date.
  func write(_ text: String, to name: String, modified: Date) throws {
    let path = directory.appendingPathComponent("files/\(name)").path
    try Data(text.utf8).write(to: URL(fileURLWithPath: path))
    try FileManager.default.setAttributes([.modificationDate: modified, .posixPermissions: 0o644], ofItemAtPath: path)
  }

  private static func start(_ program: String, _ arguments: [String], in directory: URL) throws -> Process {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: program)
    process.arguments = arguments
    let home = directory.appendingPathComponent("home").path
    process.environment = [
      "HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home, "PATH": "/usr/sbin:/usr/bin:/bin",
    ]
    process.standardInput = FileHandle.nullDevice
    process.standardOutput = FileHandle.nullDevice
    process.standardError = FileHandle.nullDevice
    try process.run()
    return process
  }

  /// Waits until the server accepts connections, its only sign of readiness; false if it ended instead.
  private static func waits(for process: Process, port: Int) -> Bool {
    waitUntil(within: .seconds(20)) { !process.isRunning || withSocket(port: port, connect) == 0 } && process.isRunning
  }

  private static func freePort() throws -> Int {
    var port = 0
    let result = withSocket(port: 0) { socket, address, length in
      guard bind(socket, address, length) == 0 else { return -1 }
      var bound = sockaddr_in()
      var size = socklen_t(MemoryLayout<sockaddr_in>.size)
      let result = withUnsafeMutableBytes(of: &bound) {
        getsockname(socket, $0.baseAddress!.assumingMemoryBound(to: sockaddr.self), &size)
      }
      port = Int(UInt16(bigEndian: bound.sin_port))
      return result
    }
    try #require(result == 0)
    return port
  }

  /// Calls `body` with a new socket and the address of a port of the loopback interface.
  private static func withSocket(
    port: Int, _ body: (CInt, UnsafePointer<sockaddr>, socklen_t) -> CInt
  ) -> CInt {
    let socket = Glibc.socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0)
    defer { close(socket) }
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_port = in_port_t(port).bigEndian
    address.sin_addr.s_addr = in_addr_t(INADDR_LOOPBACK).bigEndian
    return withUnsafeBytes(of: &address) {
      body(socket, $0.baseAddress!.assumingMemoryBound(to: sockaddr.self), socklen_t(MemoryLayout<sockaddr_in>.size))
    }
  }
}

extension Process {
  /// Kills the process and waits for its end.
  fileprivate func end() {
    if isRunning { kill(processIdentifier, SIGKILL) }
    waitUntilExit()
  }
}
