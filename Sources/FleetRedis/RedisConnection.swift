import CHiredis
import CacheModel
import Glibc
import Synchronization

/// A connection to Redis.
///
/// Only one thread at a time can use it. After an error the connection is dead, because a reply may still be on its
/// way; then release it and make another one.
///
/// `@unchecked Sendable`: its owner passes it from thread to thread and never shares it. Other threads only call
/// ``Interrupter/interrupt()``.
package final class RedisConnection: @unchecked Sendable {
  private let context: UnsafeMutablePointer<redisContext>
  let address: RedisServer.Address
  /// TLS; nil for a connection without.
  private var session: TLSSession?
  /// The Sentinels that named the server; nil without Sentinel.
  var sentinels: Sentinels?
  private let timeout: Duration
  private let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 65_536, alignment: 16)
  package private(set) var isDead = false
  /// Whether any reply has arrived.
  private var hasReplied = false
  /// Whether the next command can be sent: none has failed, and no reply is on its way.
  package var isReady: Bool { !isDead && exchange.commandCount == 0 }
  private var exchange = Exchange()
  /// Ends a command from another thread.
  package let interrupter: Interrupter

  /// The commands that were sent last.
  private struct Exchange {
    var commandCount = 0
    /// Whether bytes have arrived.
    var hasBegun = false
    /// The replies that have arrived.
    var replies: [RedisReply] = []
    var deadline: UInt64 = 0
  }

  /// Shuts the socket of a connection down, so that a waiting command fails at once.
  package final class Interrupter: Sendable {
    /// -1 after the connection has closed its socket.
    private let descriptor: Mutex<CInt>

    fileprivate init(descriptor: CInt) {
      self.descriptor = Mutex(descriptor)
    }

    package func interrupt() {
      descriptor.withLock { if $0 >= 0 { shutdown($0, CInt(SHUT_RDWR)) } }
    }

    fileprivate func forget() {
      descriptor.withLock { $0 = -1 }
    }
  }

  /// Connects and logs in.
  ///
  /// - Parameters:
  ///   - tls: The certificates; nil for a connection without TLS.
  ///   - timeout: The maximum time for connecting, and for each command without its own.
  package init(
    _ address: RedisServer.Address, tls: RedisTLS? = nil, login: RedisLogin?, timeout: Duration
  ) throws(RedisTierError) {
    self.address = address
    self.timeout = timeout
    let deadline = BootClock.now + timeout.nanoseconds
    let (made, host): (UnsafeMutablePointer<redisContext>?, String) =
      switch address {
      case .tcp(let host, let port): (redisConnectWithTimeout(host, CInt(port), timeout.timeval), host)
      case .unixSocket(let path): (redisConnectUnixWithTimeout(path, timeout.timeval), "")
      }
    guard let made else { throw RedisTierError(.cannotConnect, "there is no memory for a connection to Redis") }
    context = made
    interrupter = Interrupter(descriptor: made.pointee.fd)
    guard made.pointee.err == 0 else {
      isDead = true
      throw RedisTierError(
        .cannotConnect, "no connection to Redis at \(address.url(usesTLS: tls != nil)): \(Self.text(of: made))")
    }
    // A child that runs another program must not keep the connection.
    _ = fcntl(made.pointee.fd, F_SETFD, FD_CLOEXEC)
    exchange.deadline = deadline
    if let tls {
      session = try TLSSession(tls, host: host)
      try endingOnError { () throws(RedisTierError) in try shakeHands() }
    }
    if let login { try command(login.command(), timeout: .nanoseconds(deadline - min(BootClock.now, deadline))) }
  }

  deinit {
    interrupter.forget()
    redisFree(context)
    buffer.deallocate()
  }

  private func shakeHands() throws(RedisTierError) {
    guard let session else { return }
    do throws(RedisTierError) {
      while try !session.shakeHands() {
        try sendRaw(session.takeOutput())
        while try !receiveRaw(for: session) { try waitForSocket(POLLIN) }
      }
      try sendRaw(session.takeOutput())
    } catch {
      // The alert only tells the server why. If it cannot be sent, the error of the handshake is thrown all the same.
      try? sendRaw(session.takeOutput())
      let reason =
        switch error.code {
        case .connectionLost: "the server ended the connection, as one without TLS may do"
        case .timedOut: "the server did not reply in time, as one without TLS does"
        default: error.reason
        }
      throw RedisTierError(.tlsFailed, "no TLS connection to Redis at \(address.url(usesTLS: true)): \(reason)")
    }
  }

  // MARK: Commands

  /// Sends a command of text arguments and returns its reply.
  @discardableResult
  package func command(_ arguments: [String], timeout: Duration? = nil) throws(RedisTierError) -> RedisReply {
    try command(arguments.map { Array($0.utf8) }, timeout: timeout)
  }

  /// Sends a command and returns its reply.
  ///
  /// - Parameter timeout: The maximum time; nil for that of the connection.
  /// - Throws: `RedisTierError`, also for a reply that is an error. That does not end the connection.
  @discardableResult
  package func command(_ arguments: [[UInt8]], timeout limit: Duration? = nil) throws(RedisTierError) -> RedisReply {
    let reply = try commands([arguments], timeout: limit)[0]
    if case .error(let text) = reply { throw RedisTierError(reply: text) }
    return reply
  }

  /// Sends commands together and returns their replies, of which some can be errors.
  package func commands(_ commands: [[[UInt8]]], timeout limit: Duration? = nil) throws(RedisTierError) -> [RedisReply]
  {
    try send(commands, timeout: limit)
    return try replies()
  }

  /// Sends commands together. Then call ``replies()``, or ``arrivedReplies()`` until all replies have arrived.
  ///
  /// - Parameter limit: The maximum time for all that; nil for that of the connection.
  package func send(_ commands: [[[UInt8]]], timeout limit: Duration? = nil) throws(RedisTierError) {
    guard isReady else {
      throw RedisTierError(.connectionLost, "the connection to Redis has failed before, or waits for replies")
    }
    exchange = Exchange(commandCount: commands.count, deadline: BootClock.now + (limit ?? timeout).nanoseconds)
    try endingOnError { () throws(RedisTierError) in try send(Self.encode(commands)) }
  }

  /// Waits for the replies to the sent commands, of which some can be errors.
  package func replies() throws(RedisTierError) -> [RedisReply] {
    try endingOnError { () throws(RedisTierError) in
      while try !receive() { try waitForSocket(POLLIN) }
      return takeReplies()
    }
  }

  /// Returns the replies to the sent commands if all of them have arrived; otherwise nil, at once.
  package func arrivedReplies() throws(RedisTierError) -> [RedisReply]? {
    try endingOnError { () throws(RedisTierError) in
      let isComplete = try receive()
      guard isComplete || BootClock.now < exchange.deadline else { throw Self.late }
      return isComplete ? takeReplies() : nil
    }
  }

  private func takeReplies() -> [RedisReply] {
    hasReplied = true
    defer { exchange = Exchange() }
    return exchange.replies
  }

  private func endingOnError<Result>(
    _ body: () throws(RedisTierError) -> Result
  ) throws(RedisTierError) -> Result {
    do throws(RedisTierError) {
      return try body()
    } catch {
      isDead = true
      // With TLS 1.3 the client's certificate is checked after the handshake, and the alert can get lost.
      guard session != nil, !hasReplied, error.code == .connectionLost else { throw error }
      throw RedisTierError(
        .tlsFailed, "the server ended the connection after the TLS handshake, as if it wants another client certificate"
      )
    }
  }

  /// Encodes commands as arrays of strings.
  private static func encode(_ commands: [[[UInt8]]]) -> [UInt8] {
    var bytes: [UInt8] = []
    bytes.reserveCapacity(commands.joined().reduce(0) { $0 + $1.count + 16 })
    for arguments in commands {
      append(arguments.count, after: UInt8(ascii: "*"), to: &bytes)
      for argument in arguments {
        append(argument.count, after: UInt8(ascii: "$"), to: &bytes)
        bytes += argument
        bytes += lineEnd
      }
    }
    return bytes
  }

  private static let lineEnd = Array("\r\n".utf8)

  /// Appends a line with a count. String interpolation takes many times as long.
  private static func append(_ count: Int, after type: UInt8, to bytes: inout [UInt8]) {
    bytes.append(type)
    let first = bytes.count
    var left = count
    repeat {
      bytes.append(UInt8(ascii: "0") + UInt8(left % 10))
      left /= 10
    } while left > 0
    bytes[first...].reverse()
    bytes += lineEnd
  }

  private func send(_ bytes: [UInt8]) throws(RedisTierError) {
    guard let session else { return try sendRaw(bytes) }
    try session.write(bytes)
    try sendRaw(session.takeOutput())
  }

  private func sendRaw(_ bytes: [UInt8]) throws(RedisTierError) {
    var sent = 0
    while sent < bytes.count {
      // Without a signal if the server has closed the connection.
      let count = bytes.withUnsafeBytes {
        Glibc.send(context.pointee.fd, $0.baseAddress! + sent, $0.count - sent, CInt(MSG_NOSIGNAL) | CInt(MSG_DONTWAIT))
      }
      if count > 0 {
        sent += count
      } else {
        do throws(RedisTierError) {
          try checkSocket()
        } catch {
          throw refusal() ?? error
        }
        try waitForSocket(POLLOUT)
      }
    }
  }

  /// The error that the server sent before it closed the connection, for example because it has too many clients.
  private func refusal() -> RedisTierError? {
    // If nothing can be received, the caller throws the error of the socket, which it has already.
    _ = try? receive()
    guard case .error(let text)? = exchange.replies.first else { return nil }
    return RedisTierError(reply: text)
  }

  /// Receives what has arrived. Returns whether all replies are complete.
  private func receive() throws(RedisTierError) -> Bool {
    while exchange.replies.count < exchange.commandCount {
      var reply: UnsafeMutableRawPointer?
      guard redisReaderGetReply(context.pointee.reader, &reply) == REDIS_OK else {
        throw Self.otherProtocol
      }
      if let reply {
        defer { freeReplyObject(reply) }
        exchange.replies.append(try RedisReply(reply.assumingMemoryBound(to: redisReply.self)))
        continue
      }
      guard Int(context.pointee.reader.pointee.ridx) <= RedisReply.maximumDepth else { throw RedisReply.tooDeep }
      guard let count = try read() else { return false }
      // hiredis 1 reads other types too, those of RESP3, and would wait for the end of one.
      guard exchange.hasBegun || Self.replyTypes.contains(buffer[0]) else {
        throw buffer[0] == Self.tlsAlert ? Self.needsTLS : Self.otherProtocol
      }
      exchange.hasBegun = true
      let bytes = buffer.baseAddress?.assumingMemoryBound(to: CChar.self)
      guard redisReaderFeed(context.pointee.reader, bytes, count) == REDIS_OK else {
        throw RedisTierError(.connectionLost, "there is no memory for a reply of Redis")
      }
    }
    return true
  }

  /// Reads bytes of replies into the buffer, and returns their number; nil if none have arrived.
  private func read() throws(RedisTierError) -> Int? {
    guard let session else { return try readRaw() }
    while true {
      let count = try session.read(into: buffer)
      try sendRaw(session.takeOutput())
      if count == 0 { throw Self.isClosed }
      if let count { return count }
      guard try receiveRaw(for: session) else { return nil }
    }
  }

  /// Passes received bytes to TLS. Returns false if none have arrived.
  private func receiveRaw(for session: TLSSession) throws(RedisTierError) -> Bool {
    guard let count = try readRaw() else { return false }
    try session.receive(UnsafeRawBufferPointer(rebasing: buffer[..<count]))
    return true
  }

  /// Reads bytes of the socket into the buffer, and returns their number; nil if none have arrived.
  private func readRaw() throws(RedisTierError) -> Int? {
    let count = recv(context.pointee.fd, buffer.baseAddress, buffer.count, CInt(MSG_DONTWAIT))
    if count > 0 { return count }
    if count == 0 { throw Self.isClosed }
    try checkSocket()
    return nil
  }

  private static var isClosed: RedisTierError {
    RedisTierError(.connectionLost, "the server has closed the connection")
  }

  /// The first bytes of replies in RESP2.
  private static let replyTypes = "+-:$*".utf8

  /// The first byte of an alert of TLS.
  private static let tlsAlert: UInt8 = 21

  private static var needsTLS: RedisTierError {
    RedisTierError(.tlsFailed, "the server expects TLS, which a URL with rediss:// selects")
  }

  private static var otherProtocol: RedisTierError {
    RedisTierError(.badReply, "the server does not speak the protocol of Redis (RESP2)")
  }

  /// Throws unless the failed `send` or `recv` only has to wait.
  private func checkSocket() throws(RedisTierError) {
    guard [EAGAIN, EWOULDBLOCK, EINTR].contains(errno) else {
      throw RedisTierError(.connectionLost, "the connection to Redis ended: \(String(cString: strerror(errno)))")
    }
  }

  /// Waits until the socket is ready, or the time of the commands is over.
  private func waitForSocket(_ event: CInt) throws(RedisTierError) {
    let now = BootClock.now
    guard now < exchange.deadline else { throw Self.late }
    let milliseconds = min((exchange.deadline - now) / 1_000_000 + 1, 1_000_000)
    var socket = pollfd(fd: context.pointee.fd, events: Int16(event), revents: 0)
    // The next call of `send` or `recv` reports an error of the socket.
    _ = poll(&socket, 1, CInt(milliseconds))
  }

  private static var late: RedisTierError { RedisTierError(.timedOut, "Redis did not reply in time") }

  private static func text(of context: UnsafeMutablePointer<redisContext>) -> String {
    withUnsafePointer(to: &context.pointee.errstr) { pointer in
      pointer.withMemoryRebound(to: CChar.self, capacity: MemoryLayout.size(ofValue: pointer.pointee)) {
        String(cString: $0)
      }
    }
  }
}

extension Duration {
  /// The duration for hiredis, at least a millisecond, because zero means no limit.
  fileprivate var timeval: Glibc.timeval {
    let microseconds = max(1000, nanoseconds / 1000)
    return Glibc.timeval(tv_sec: Int(microseconds / 1_000_000), tv_usec: Int(microseconds % 1_000_000))
  }

  /// The duration in nanoseconds, from 0 to 30 years.
  package var nanoseconds: UInt64 { UInt64(max(0, min(self / .nanoseconds(1), 1e18))) }
}
