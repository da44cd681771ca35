import Foundation
import Glibc
import RedisTier
import ResponseStore
import Synchronization

/// A proxy between a machine and Redis that can be cut like a network: what is sent is lost, and nothing is closed.
final class SocketProxy: Sendable {
  private let listener: SocketForwarder
  var url: String { "unix://" + listener.path }

  init(to path: String) throws {
    listener = try SocketForwarder(to: path)
  }

  func cut() { listener.isCut.set(true) }

  /// Keeps what is sent until ``release()``, as if one side was suspended.
  func hold() { listener.isHeld.update { $0 = true } }
  func release() { listener.isHeld.update { $0 = false } }

  /// Makes each reply of Redis arrive later.
  func delayReplies(by delay: Duration) { listener.replyDelay.withLock { $0 = delay } }

  /// Forwards again. Connections of before stay dead.
  func restore() { listener.isCut.set(false) }
}

/// Forwards the connections to a Unix socket, one thread for each direction.
final class SocketForwarder: Sendable {
  let path = "/tmp/proxy-\(RandomID().text.prefix(12))"
  let isCut = SharedSwitch()
  let isHeld = Monitor(false)
  let replyDelay = Monitor(Duration.zero)
  private let descriptor: CInt

  init(to target: String) throws {
    let descriptor = socket(AF_UNIX, CInt(SOCK_STREAM.rawValue), 0)
    self.descriptor = descriptor
    guard Self.with(path, { bind(descriptor, $0, $1) }) == 0, listen(descriptor, 16) == 0 else {
      throw TestError("no socket")
    }
    let (isCut, isHeld, replyDelay, noDelay) = (isCut, isHeld, replyDelay, Monitor(Duration.zero))
    Thread {
      while case let client = accept(descriptor, nil, nil), client >= 0 {
        let server = socket(AF_UNIX, CInt(SOCK_STREAM.rawValue), 0)
        guard Self.with(target, { connect(server, $0, $1) }) == 0 else {
          close(client)
          close(server)
          continue
        }
        for (from, to, delay) in [(client, server, noDelay), (server, client, replyDelay)] {
          Thread { Self.forward(from, to, isCut, isHeld, delay) }.start()
        }
      }
      // Only here: the thread would accept connections of the next socket with this number.
      close(descriptor)
    }.start()
  }

  deinit {
    shutdown(descriptor, CInt(SHUT_RDWR))
    unlink(path)
  }

  private static func with(_ path: String, _ body: (UnsafePointer<sockaddr>, socklen_t) -> CInt) -> CInt {
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: Array(path.utf8)) }
    return withUnsafePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(MemoryLayout<sockaddr_un>.size)) }
    }
  }

  private static func forward(
    _ from: CInt, _ to: CInt, _ isCut: SharedSwitch, _ isHeld: Monitor<Bool>, _ delay: Monitor<Duration>
  ) {
    var buffer = [UInt8](repeating: 0, count: 65_536)
    var isDead = false
    while case let count = read(from, &buffer, buffer.count), count > 0 {
      // A slow network.
      usleep(UInt32(delay.withLock { $0 } / .microseconds(1)))
      _ = isHeld.wait { $0 ? nil : true }
      isDead = isDead || isCut.isOn
      guard !isDead else { continue }
      var sent = 0
      while sent < count {
        let written = buffer.withUnsafeBytes {
          send(to, $0.baseAddress! + sent, count - sent, CInt(MSG_NOSIGNAL))
        }
        guard written > 0 else { break }
        sent += written
      }
    }
    shutdown(to, CInt(SHUT_WR))
  }
}

final class SharedSwitch: Sendable {
  private let state = Atomic(false)
  var isOn: Bool { state.load(ordering: .sequentiallyConsistent) }
  func set(_ isOn: Bool) { state.store(isOn, ordering: .sequentiallyConsistent) }
}
