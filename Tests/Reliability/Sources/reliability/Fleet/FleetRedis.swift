import FoundationEssentials
import Glibc
import Synchronization

/// The Redis server of the series, which can lose its data in several ways.
final class FleetRedis: Sendable {
  private let directory: String
  private let environment: [String: String]
  private let options: [String]
  private let isSentinel: Bool
  private let child = Mutex<Child?>(nil)

  var socketPath: String { directory + "/s" }
  private var dump: String { directory + "/dump.rdb" }
  private var oldDump: String { directory + "/old.rdb" }

  static let program: String? = ["/usr/bin/redis-server", "/usr/local/bin/redis-server"].first { access($0, X_OK) == 0 }

  /// - Parameter sentinel: The lines of the configuration of a Sentinel; nil for a server with data.
  init(directory: String, environment: [String: String], options: [String] = [], sentinel: String? = nil) {
    self.directory = directory
    self.environment = environment
    self.options = options
    isSentinel = sentinel != nil
    makeDirectory(directory)
    if let sentinel {
      guard FileManager.default.createFile(atPath: configurationPath, contents: Data(sentinel.utf8)) else {
        fail("no file \(configurationPath)")
      }
    }
    start()
  }

  /// Sentinel changes this file.
  private var configurationPath: String { directory + "/sentinel.conf" }

  /// Starts the server with the data of the dump, if there is one, and waits until it replies.
  func start() {
    guard let program = Self.program else { fail("redis-server is not installed; run Scripts/setup") }
    let started = Child.start(
      (isSentinel ? [configurationPath, "--sentinel"] : ["--save", ""]) + ["--port", "0", "--unixsocket", socketPath]
        + ["--dir", directory, "--daemonize", "no"] + options,
      executable: program, outputPath: directory + "/log", environment: environment)
    child.withLock { $0 = started }
    for _ in 0..<4000 {
      if command("PING")?.hasPrefix("+PONG") == true { return }
      usleep(5000)
    }
    fail("redis-server does not reply: \(started.output.suffix(500))")
  }

  func kill() {
    guard let child = child.withLock({ $0.take() }) else { return }
    child.kill(SIGKILL)
    _ = child.wait(seconds: 10)
  }

  func signal(_ signal: CInt) {
    if let child = child.withLock({ $0 }) { child.kill(signal) }
  }

  /// Keeps the present data, for a later ``restart(_:)``.
  func save(asOld isOld: Bool = false) {
    _ = command("SAVE")
    if isOld { rename(dump, oldDump) }
  }

  enum Content { case all, none, old }

  /// Kills the server and starts it again with some data.
  func restart(with data: Content, pause: UInt32) {
    if data == .all { save() }
    kill()
    usleep(pause)
    switch data {
    case .all: break
    case .none: unlink(dump)
    case .old: rename(oldDump, dump)
    }
    start()
    unlink(dump)
  }

  /// Sends a command of words and returns the beginning of its reply; nil if there is none within a second.
  @discardableResult
  func command(_ text: String) -> String? { Self.command(text, at: socketPath) }

  /// As ``command(_:)``, for any server on a Unix socket.
  static func command(_ text: String, at socketPath: String) -> String? {
    let descriptor = socket(AF_UNIX, CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    defer { close(descriptor) }
    guard connectUnix(descriptor, to: socketPath) else { return nil }
    var limit = timeval(tv_sec: 1, tv_usec: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
    let bytes = Array("\(text)\r\n".utf8)
    guard send(descriptor, bytes, bytes.count, CInt(MSG_NOSIGNAL)) == bytes.count else { return nil }
    var buffer = [UInt8](repeating: 0, count: 4096)
    let count = read(descriptor, &buffer, buffer.count)
    return count > 0 ? String(decoding: buffer[..<count], as: UTF8.self) : nil
  }
}

/// Calls `body` with the address of a Unix socket.
func withUnixAddress<Result>(_ path: String, _ body: (UnsafePointer<sockaddr>, socklen_t) -> Result) -> Result {
  var address = sockaddr_un()
  address.sun_family = sa_family_t(AF_UNIX)
  withUnsafeMutableBytes(of: &address.sun_path) { target in
    let bytes = Array(path.utf8)
    guard bytes.count < target.count else { fail("the path of a socket is too long: \(path)") }
    target.copyBytes(from: bytes)
  }
  return withUnsafePointer(to: &address) {
    $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(MemoryLayout<sockaddr_un>.size)) }
  }
}

func connectUnix(_ descriptor: CInt, to path: String) -> Bool {
  withUnixAddress(path) { connect(descriptor, $0, $1) } == 0
}
