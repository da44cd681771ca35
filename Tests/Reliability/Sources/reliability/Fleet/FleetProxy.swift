import Glibc
import Synchronization

/// A network between a machine and Redis, which can be cut or slow.
final class FleetProxy: Sendable {
  let path: String
  private let network = Network()

  private final class Network: Sendable {
    /// Whether bytes to Redis, and bytes from Redis, are lost.
    let losesRequests = Atomic(false)
    let losesReplies = Atomic(false)
    /// The maximum delay of each transfer to Redis and from Redis, in microseconds.
    let requestDelay = Atomic(0)
    let replyDelay = Atomic(0)
  }

  /// - Parameter double: Alters what passes; nil for nothing.
  init(path: String, to target: String, _ double: RedisDouble?) {
    self.path = path
    let listener = socket(AF_UNIX, CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    guard withUnixAddress(path, { bind(listener, $0, $1) }) == 0, listen(listener, 64) == 0 else {
      fail("no socket at \(path)")
    }
    startThread { [network] in
      while case let client = accept(listener, nil, nil), client >= 0 {
        // accept4 is not in Swift's Glibc module.
        _ = fcntl(client, F_SETFD, FD_CLOEXEC)
        let server = socket(AF_UNIX, CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        guard connectUnix(server, to: target) else {
          close(client)
          close(server)
          continue
        }
        // The last of the two threads closes both.
        let ended = Counter()
        let double = double?.makeConnection()
        startThread {
          Self.forward(
            client, server, ended, network.losesRequests, network.requestDelay, isReply: false, double?.request)
        }
        startThread {
          Self.forward(server, client, ended, network.losesReplies, network.replyDelay, isReply: true, double?.reply)
        }
      }
    }
  }

  private final class Counter: Sendable {
    private let count = Atomic(0)
    func next() -> Int { count.wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }
  }

  private static func forward(
    _ from: CInt, _ to: CInt, _ ended: Counter, _ loses: borrowing Atomic<Bool>, _ delay: borrowing Atomic<Int>,
    isReply: Bool, _ alter: ((ArraySlice<UInt8>) -> [UInt8])?
  ) {
    var random = SystemRandomNumberGenerator()
    var buffer = [UInt8](repeating: 0, count: 65_536)
    var isDead = false
    while case let count = read(from, &buffer, buffer.count), count > 0 {
      let bytes = alter?(buffer[..<count]) ?? Array(buffer[..<count])
      let limit = delay.load(ordering: .relaxed)
      if limit > 0 { usleep(UInt32.random(in: 0...UInt32(limit), using: &random)) }
      // A connection that has lost bytes stays dead, as the rest would not make sense.
      if loses.load(ordering: .relaxed) { isDead = true }
      var sent = 0
      while !isDead, sent < bytes.count {
        let written = bytes.withUnsafeBytes {
          send(to, $0.baseAddress.map { $0 + sent }, bytes.count - sent, CInt(MSG_NOSIGNAL))
        }
        if written <= 0 { break }
        sent += written
      }
    }
    shutdown(to, CInt(SHUT_WR))
    if isReply { shutdown(to, CInt(SHUT_RDWR)) }
    if ended.next() == 2 {
      close(from)
      close(to)
    }
  }

  // MARK: Faults

  /// Loses bytes in one direction or both until ``restore()``.
  func cut(requests: Bool, replies: Bool) {
    network.losesRequests.store(requests, ordering: .relaxed)
    network.losesReplies.store(replies, ordering: .relaxed)
  }

  /// Delays each transfer by up to a number of microseconds until ``restore()``.
  func slow(requests: Int, replies: Int) {
    network.requestDelay.store(requests, ordering: .relaxed)
    network.replyDelay.store(replies, ordering: .relaxed)
  }

  func restore() {
    cut(requests: false, replies: false)
    slow(requests: 0, replies: 0)
  }
}
