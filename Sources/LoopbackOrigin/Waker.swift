import Glibc

/// Wakes a thread that waits in `poll` for its socket, when a gate opens or the origin stops.
final class Waker: Sendable {
  private let sending: CInt
  private let receiving: CInt

  /// Creates a waker.
  ///
  /// - Throws: `OriginError` if the process has no descriptor left.
  init() throws(OriginError) {
    var pair: [CInt] = [-1, -1]
    let type = CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
    guard socketpair(AF_UNIX, type, 0, &pair) == 0 else { throw OriginError(function: "socketpair", number: errno) }
    sending = pair[0]
    receiving = pair[1]
  }

  deinit {
    close(sending)
    close(receiving)
  }

  /// Ends the present or the next `wait(besides:)`. If the socket buffer is full, a wake-up is already pending.
  func wake() {
    var byte: UInt8 = 1
    _ = send(sending, &byte, 1, CInt(MSG_NOSIGNAL))
  }

  /// Waits until another thread calls ``wake()`` or the peer of `socket` closes the connection.
  ///
  /// - Returns: Whether the peer has closed.
  func wait(besides socket: CInt) -> Bool {
    // POLLRDHUP (0x2000) is not in Swift's Glibc module: it is declared for _GNU_SOURCE only.
    let peerClosed: CShort = 0x2000
    var descriptors = [
      pollfd(fd: socket, events: peerClosed, revents: 0),
      pollfd(fd: receiving, events: CShort(POLLIN), revents: 0),
    ]
    while poll(&descriptors, 2, -1) < 0 {
      precondition(errno == EINTR, "poll failed on two descriptors that this object keeps open: errno \(errno)")
    }
    if descriptors[1].revents != 0 {
      var drained = [UInt8](repeating: 0, count: 64)
      while recv(receiving, &drained, drained.count, 0) > 0 {}
    }
    return descriptors[0].revents != 0
  }
}
