import FoundationEssentials
import Glibc
import Synchronization

/// The reason why a connection ends early.
enum ConnectionEnd: Error {
  /// The client closed or reset the connection.
  case clientLeft
  /// The origin was stopped.
  case stopped
  /// The script of the reply ends the connection.
  case scripted
  /// The received data is not an HTTP/1.1 request, for this reason.
  case malformed(String)
}

/// A connected socket. One thread reads and writes; any thread may abort it.
final class StreamSocket: Sendable {
  private enum Condition {
    case open
    case aborted
    case closed
  }

  let descriptor: CInt
  private let waker: Waker
  private let condition = Mutex(Condition.open)

  init(descriptor: CInt) throws(OriginError) {
    self.descriptor = descriptor
    waker = try Waker()
    // Tests make many small writes. Without this, a second one waits for the acknowledgement of the first.
    var enabled: CInt = 1
    setsockopt(descriptor, CInt(IPPROTO_TCP), TCP_NODELAY, &enabled, socklen_t(MemoryLayout<CInt>.size))
  }

  /// Ends all present and later waits of the connection's thread. Any thread can call this, also after `finish`.
  func abort() {
    condition.withLock { condition in
      guard case .open = condition else { return }
      condition = .aborted
      shutdown(descriptor, CInt(SHUT_RDWR))
    }
    waker.wake()
  }

  /// Closes the descriptor. With `reset`, drops unsent bytes, and the client sees a reset instead of an end.
  func finish(reset: Bool = false) {
    condition.withLock { condition in
      if case .closed = condition { return }
      condition = .closed
      if reset {
        var now = linger(l_onoff: 1, l_linger: 0)
        setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &now, socklen_t(MemoryLayout<linger>.size))
      }
      close(descriptor)
    }
  }

  private var isAborted: Bool {
    condition.withLock { if case .aborted = $0 { true } else { false } }
  }

  /// Reads at least one byte into the beginning of `buffer`; returns 0 at the end of the client's data.
  func read(into buffer: inout [UInt8]) throws(ConnectionEnd) -> Int {
    while true {
      let count = recv(descriptor, &buffer, buffer.count, 0)
      if isAborted { throw .stopped }
      if count >= 0 { return count }
      if errno != EINTR { throw .clientLeft }
    }
  }

  /// Writes all of `data`, and waits for the client to accept it.
  func write(_ data: Data) throws(ConnectionEnd) {
    let result: Result<Void, ConnectionEnd> = data.withUnsafeBytes { bytes in
      Result { () throws(ConnectionEnd) in try write(bytes) }
    }
    try result.get()
  }

  private func write(_ bytes: UnsafeRawBufferPointer) throws(ConnectionEnd) {
    var rest = bytes
    while !rest.isEmpty {
      let count = send(descriptor, rest.baseAddress, rest.count, CInt(MSG_NOSIGNAL))
      if isAborted { throw .stopped }
      if count >= 0 {
        rest = UnsafeRawBufferPointer(rebasing: rest[count...])
      } else if errno != EINTR {
        throw .clientLeft
      }
    }
  }

  /// Waits at a gate until it opens, the client closes the connection, or the origin stops.
  func wait(at gate: Gate) throws(ConnectionEnd) {
    gate.arrive(waker)
    defer { gate.leave(waker) }
    while !gate.isOpen {
      let peerClosed = waker.wait(besides: descriptor)
      if isAborted { throw .stopped }
      if peerClosed && !gate.isOpen { throw .clientLeft }
    }
  }
}
