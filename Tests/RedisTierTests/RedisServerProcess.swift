import Foundation
import Glibc
import RedisTier
import Synchronization
import Testing

/// A redis-server of a test, on a Unix socket in a directory of its own.
final class RedisServerProcess: Sendable {
  /// The path of redis-server; nil if it is not installed, because only users of the tier need it.
  ///
  /// `REDIS_SERVER` selects another version, or Valkey.
  static let program: String? =
    ProcessInfo.processInfo.environment["REDIS_SERVER"]
    ?? ["/usr/bin/redis-server", "/usr/local/bin/redis-server"].first { access($0, X_OK) == 0 }
  static let isInstalled = program != nil

  let directory: String
  private let options: [String]
  private let isSentinel: Bool
  private let process = Mutex<pid_t?>(nil)

  var socketPath: String { directory + "/s" }
  var url: String { "unix://" + socketPath }

  /// Starts a server and waits until it accepts commands.
  ///
  /// - Parameter sentinel: The lines of the configuration of a Sentinel; nil for a server with data.
  init(_ options: [String] = [], sentinel: String? = nil) throws {
    directory = "/tmp/redis-\(RandomID().text.prefix(12))"
    self.options = options
    isSentinel = sentinel != nil
    guard mkdir(directory, 0o700) == 0 else { throw TestError("no directory for redis-server") }
    if let sentinel { try sentinel.write(toFile: configurationPath, atomically: true, encoding: .utf8) }
    try start()
  }

  /// Sentinel changes this file.
  private var configurationPath: String { directory + "/sentinel.conf" }

  deinit {
    kill()
    try? FileManager.default.removeItem(atPath: directory)
  }

  /// Starts the server again after ``kill()``, with the data that it has saved.
  func start() throws {
    let kind = isSentinel ? [configurationPath, "--sentinel"] : ["--port", "0", "--save", ""]
    let arguments =
      [Self.program ?? "redis-server"] + kind + [
        "--unixsocket", socketPath, "--dir", directory, "--daemonize", "no", "--logfile", directory + "/log",
      ] + options
    var id = pid_t()
    var pointers = arguments.map { strdup($0) }
    defer { pointers.forEach { free($0) } }
    pointers.append(nil)
    // The server must receive signals although the test's thread may block them.
    var attributes = posix_spawnattr_t()
    posix_spawnattr_init(&attributes)
    defer { posix_spawnattr_destroy(&attributes) }
    var none = sigset_t()
    sigemptyset(&none)
    posix_spawnattr_setsigmask(&attributes, &none)
    posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK))
    guard posix_spawn(&id, arguments[0], nil, &attributes, pointers, environ) == 0 else {
      throw TestError("redis-server does not start")
    }
    process.withLock { $0 = id }
    // The server gives no other signal that it is ready.
    let isReady = waitUntil(within: .seconds(20)) {
      guard let connection = try? connect() else { return false }
      return (try? connection.command(["PING"])) != nil || options.contains("--requirepass")
    }
    if !isReady {
      // The log is deleted with the directory. There is none if the server did not start.
      let log = try? String(contentsOfFile: directory + "/log", encoding: .utf8)
      throw TestError("redis-server does not reply: \(log?.suffix(300) ?? "it has written no log")")
    }
  }

  func connect() throws -> RedisConnection {
    try RedisConnection(.unixSocket(path: socketPath), login: nil, timeout: .seconds(5))
  }

  @discardableResult
  func command(_ arguments: String...) throws -> RedisReply { try connect().command(arguments) }

  func kill() {
    guard let id = process.withLock({ $0.take() }) else { return }
    Glibc.kill(id, SIGKILL)
    var status: CInt = 0
    waitpid(id, &status, 0)
  }

  /// Stops the server from replying, until ``resume()``. It keeps accepting connections.
  func suspend() { process.withLock { if let id = $0 { _ = Glibc.kill(id, SIGSTOP) } } }
  func resume() { process.withLock { if let id = $0 { _ = Glibc.kill(id, SIGCONT) } } }
}

/// Connects to the server of a URL, or to the primary that its Sentinels name.
func connect(_ url: String, tls: RedisTLS = RedisTLS(), timeout: Duration = .seconds(5)) throws -> RedisConnection {
  try FleetAddress(url: url, name: "default", tls: tls, timeout: timeout).connect()
}

/// A port that no program uses now. It is none of those that the system gives to other sockets meanwhile.
func freePort() throws -> UInt16 {
  let range = try String(contentsOfFile: "/proc/sys/net/ipv4/ip_local_port_range", encoding: .utf8)
  let first = range.split(whereSeparator: \.isWhitespace).first.flatMap { UInt16($0) } ?? 0
  guard first > 10_000 else { throw TestError("the system gives all ports to any socket") }
  for _ in 0..<100 {
    let descriptor = socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0)
    defer { close(descriptor) }
    // Another program uses a port that cannot be bound. The next one may be free.
    if let port = try? bindToLoopback(descriptor, port: .random(in: 5_000..<first)) { return port }
  }
  throw TestError("no free port")
}

/// Binds a TCP socket to a port of 127.0.0.1, or by default to one that the system selects, and returns the port.
func bindToLoopback(_ descriptor: CInt, port: UInt16 = 0) throws -> UInt16 {
  var address = sockaddr_in()
  address.sin_family = sa_family_t(AF_INET)
  address.sin_port = port.bigEndian
  address.sin_addr.s_addr = UInt32(INADDR_LOOPBACK).bigEndian
  var length = socklen_t(MemoryLayout<sockaddr_in>.size)
  let status = withUnsafeMutablePointer(to: &address) {
    $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
      bind(descriptor, $0, length) == 0 ? getsockname(descriptor, $0, &length) : -1
    }
  }
  guard status == 0 else { throw TestError("no port") }
  return UInt16(bigEndian: address.sin_port)
}

struct TestError: Error {
  let text: String
  init(_ text: String) { self.text = text }
}

extension Trait where Self == ConditionTrait {
  /// The tests need a redis-server, which users of the other products do not install.
  static var needsRedis: Self { .enabled(if: RedisServerProcess.isInstalled, "redis-server is not installed") }
}

/// The secret of the tests' fleets.
let testSecret = Data((0..<32).map { UInt8($0) })

/// Waits until another thread makes the condition true, or the test is cancelled because of its time limit.
func wait(until condition: () throws -> Bool) async rethrows {
  while try !condition(), !Task.isCancelled {
    // To spin would take the processor from the other test processes. The loop ends after a cancelled sleep.
    try? await Task.sleep(for: .milliseconds(1))
  }
}
