internal import Glibc

/// Standard error for a library: a line is written or dropped, without any other effect on the process.
///
/// `FileHandle.write` traps if the descriptor is closed or the disk is full. A plain `write` raises `SIGPIPE` if the
/// reader has closed the pipe, and waits forever if the reader does not read.
package enum StandardError {
  /// Writes a line and a line feed. Drops what cannot be written without waiting.
  ///
  /// Costs a few system calls. Any thread can call it.
  package static func writeLine(_ line: String) {
    var text = line + "\n"
    text.withUTF8 { bytes in
      WriteSignals.suppressing(and: SIGPIPE) { write(UnsafeRawBufferPointer(bytes)) }
    }
  }

  private static func write(_ bytes: UnsafeRawBufferPointer) {
    var rest = bytes
    while !rest.isEmpty {
      let count = writeAtOnce(rest)
      if count < 0, errno == EINTR { continue }
      // There is no place to report this failure.
      guard count > 0 else { return }
      rest = UnsafeRawBufferPointer(rebasing: rest[count...])
    }
  }

  /// Writes a part without waiting. Returns its length, or -1 if nothing can be written now.
  private static func writeAtOnce(_ bytes: UnsafeRawBufferPointer) -> Int {
    let sent = send(STDERR_FILENO, bytes.baseAddress, bytes.count, CInt(MSG_DONTWAIT | MSG_NOSIGNAL))
    guard sent < 0, errno == ENOTSOCK else { return sent }
    // `O_NONBLOCK` would affect all processes that share the open file, including the parent.
    var state = pollfd(fd: STDERR_FILENO, events: Int16(POLLOUT), revents: 0)
    let isReady = poll(&state, 1, 0)
    if isReady < 0 { return -1 }
    guard isReady == 1, state.revents & Int16(POLLOUT) != 0 else {
      errno = EAGAIN
      return -1
    }
    // A pipe that is ready accepts this many bytes at once.
    return Glibc.write(STDERR_FILENO, bytes.baseAddress, min(bytes.count, Int(PIPE_BUF)))
  }
}
