import CHiredis
import Glibc
import ResponseStore
import Synchronization

/// A connection to Redis.
///
/// Only one thread at a time can use it. After an error the connection is dead, because a reply may still be on its
/// way; then release it and make another one.
///
/// `@unchecked Sendable`: its owner passes it from thread to thread and never shares it. Other threads only call
/// ``Interrupter/interrupt()``.
final class RedisConnection: @unchecked Sendable {
  private let context: UnsafeMutablePointer<redisContext>
  private var timeout: Duration
  private(set) var isDead = false
  /// Ends a command from another thread.
  let interrupter: Interrupter

  /// Shuts the socket of a connection down, so that a waiting command fails at once.
  final class Interrupter: Sendable {
    /// -1 after the connection has closed its socket.
    private let descriptor: Mutex<CInt>

    fileprivate init(descriptor: CInt) {
      self.descriptor = Mutex(descriptor)
    }

    func interrupt() {
      descriptor.withLock { if $0 >= 0 { shutdown($0, CInt(SHUT_RDWR)) } }
    }

    fileprivate func forget() {
      descriptor.withLock { $0 = -1 }
    }
  }

  /// Connects and logs in.
  ///
  /// - Parameter timeout: The maximum time for connecting, and for each command without its own.
  init(
    _ server: RedisServer, password: (@Sendable () throws -> String)?, timeout: Duration
  ) throws(RedisTierError) {
    self.timeout = timeout
    let start = BootClock.now
    let made: UnsafeMutablePointer<redisContext>? =
      switch server.address {
      case .tcp(let host, let port): redisConnectWithTimeout(host, CInt(port), timeout.timeval)
      case .unixSocket(let path): redisConnectUnixWithTimeout(path, timeout.timeval)
      }
    guard let made else { throw RedisTierError(.cannotConnect, "there is no memory for a connection to Redis") }
    context = made
    interrupter = Interrupter(descriptor: made.pointee.fd)
    guard made.pointee.err == 0 else {
      isDead = true
      throw RedisTierError(.cannotConnect, "no connection to Redis at \(server.name): \(Self.text(of: made))")
    }
    // A child that runs another program must not keep the connection.
    _ = fcntl(made.pointee.fd, F_SETFD, FD_CLOEXEC)
    guard redisSetTimeout(made, timeout.timeval) == REDIS_OK else {
      throw RedisTierError(.cannotConnect, "the connection to Redis takes no time limit")
    }
    let spent = Duration.nanoseconds(BootClock.now - start)
    try logIn(server, password: password, timeout: timeout - min(spent, timeout))
  }

  deinit {
    interrupter.forget()
    redisFree(context)
  }

  private func logIn(
    _ server: RedisServer, password: (@Sendable () throws -> String)?, timeout: Duration
  ) throws(RedisTierError) {
    var secret = server.password
    if let password {
      do {
        secret = try password()
      } catch {
        throw RedisTierError(.accessDenied, "the password for Redis could not be read")
      }
    }
    guard let secret else { return }
    try command(["AUTH"] + (server.user.map { [$0] } ?? []) + [secret], timeout: timeout)
  }

  // MARK: Commands

  /// Sends a command of text arguments and returns its reply.
  @discardableResult
  func command(_ arguments: [String], timeout: Duration? = nil) throws(RedisTierError) -> RedisReply {
    try command(arguments.map { Array($0.utf8) }, timeout: timeout)
  }

  /// Sends a command and returns its reply.
  ///
  /// - Parameter timeout: The maximum time without progress; nil for that of the connection.
  /// - Throws: `RedisTierError`, also for a reply that is an error. That does not end the connection.
  @discardableResult
  func command(_ arguments: [[UInt8]], timeout limit: Duration? = nil) throws(RedisTierError) -> RedisReply {
    guard !isDead else { throw RedisTierError(.connectionLost, "the connection to Redis has failed before") }
    let limit = limit ?? timeout
    guard redisSetTimeout(context, limit.timeval) == REDIS_OK else { throw die() }
    let reply = Self.withoutBrokenPipeSignal { send(arguments) }
    guard let reply else { throw die() }
    defer { freeReplyObject(reply) }
    let value: RedisReply
    do throws(RedisTierError) {
      value = try RedisReply(reply.assumingMemoryBound(to: redisReply.self))
    } catch {
      isDead = true
      throw error
    }
    if case .error(let text) = value { throw Self.error(text) }
    return value
  }

  private func send(_ arguments: [[UInt8]]) -> UnsafeMutableRawPointer? {
    let bytes = arguments.flatMap(\.self)
    return bytes.withUnsafeBytes { buffer -> UnsafeMutableRawPointer? in
      // An empty buffer has no address, and hiredis reads none of its bytes.
      let start = buffer.baseAddress?.assumingMemoryBound(to: CChar.self)
      var pointers: [UnsafePointer<CChar>?] = []
      var lengths: [Int] = []
      var offset = 0
      for argument in arguments {
        pointers.append(start.map { $0 + offset })
        lengths.append(argument.count)
        offset += argument.count
      }
      return redisCommandArgv(context, CInt(arguments.count), &pointers, &lengths)
    }
  }

  private func die() -> RedisTierError {
    isDead = true
    let number = errno
    switch context.pointee.err {
    case REDIS_ERR_IO where number == EAGAIN || number == EWOULDBLOCK:
      return RedisTierError(.timedOut, "Redis did not reply in time")
    case REDIS_ERR_PROTOCOL:
      return RedisTierError(.badReply, "the server does not speak the protocol of Redis (RESP2)")
    case REDIS_ERR_OOM:
      return RedisTierError(.connectionLost, "there is no memory for a reply of Redis")
    default:
      return RedisTierError(.connectionLost, "the connection to Redis ended: \(Self.text(of: context))")
    }
  }

  private static func text(of context: UnsafeMutablePointer<redisContext>) -> String {
    withUnsafePointer(to: &context.pointee.errstr) { pointer in
      pointer.withMemoryRebound(to: CChar.self, capacity: MemoryLayout.size(ofValue: pointer.pointee)) {
        String(cString: $0)
      }
    }
  }

  private static func error(_ text: String) -> RedisTierError {
    switch text.prefix(while: { $0 != " " }) {
    case "NOAUTH", "WRONGPASS", "NOPERM": RedisTierError(.accessDenied, "Redis refused the login or a command")
    case "READONLY", "LOADING", "MASTERDOWN":
      RedisTierError(.wrongRole, "the Redis server is a replica, or still loads its data")
    case "LEASE": RedisTierError(.otherFleetSettings, "the fleet uses another lease or another secret")
    // Before Redis 6, and without a user, AUTH reports plain errors.
    case "ERR" where text.contains("AUTH") || text.contains("password"):
      RedisTierError(.accessDenied, "Redis refused the password")
    default: RedisTierError(.serverError, "Redis reported \(text.prefix(while: { $0 != " " }))")
    }
  }

  // MARK: Signals

  /// Runs `body` so that writing to a closed connection does not end the process.
  ///
  /// hiredis writes with `write`, so the kernel sends SIGPIPE to the thread, unless the signal is blocked there.
  private static func withoutBrokenPipeSignal<Result>(_ body: () -> Result) -> Result {
    var pipe = sigset_t()
    var before = sigset_t()
    var pending = sigset_t()
    sigemptyset(&pipe)
    sigaddset(&pipe, SIGPIPE)
    sigpending(&pending)
    let wasPending = sigismember(&pending, SIGPIPE) == 1
    pthread_sigmask(SIG_BLOCK, &pipe, &before)
    let result = body()
    let number = errno
    if !wasPending {
      var none = timespec()
      while sigtimedwait(&pipe, nil, &none) == -1, errno == EINTR {}
    }
    pthread_sigmask(SIG_SETMASK, &before, nil)
    errno = number
    return result
  }
}

extension Duration {
  /// The duration for hiredis, at least a millisecond, because zero means no limit.
  fileprivate var timeval: Glibc.timeval {
    let microseconds = max(1000, Int64(clamping: self / .microseconds(1)))
    return Glibc.timeval(tv_sec: Int(microseconds / 1_000_000), tv_usec: Int(microseconds % 1_000_000))
  }
}

extension Int64 {
  fileprivate init(clamping value: Double) {
    self = value >= 9e18 ? .max : value <= 0 ? 0 : Int64(value)
  }
}
