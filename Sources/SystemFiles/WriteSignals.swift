internal import Glibc

/// Signals that the kernel sends to a thread because of a write, which then also fails with an error.
package enum WriteSignals {
  /// Runs `body` so that its writes fail with an error and without a signal.
  ///
  /// This applies to the limit on file sizes: `EFBIG` without `SIGXFSZ`, which would end the process. The kernel sends
  /// these signals to the writing thread, so blocking them works with any signal handling of the program. Keeps
  /// `errno`. Costs four system calls.
  ///
  /// - Parameter other: Another signal to which this applies; nil for none.
  package static func suppressing<R, Failure: Error>(
    and other: CInt? = nil, _ body: () throws(Failure) -> R
  ) throws(Failure) -> R {
    var signals = sigset_t()
    var before = sigset_t()
    sigemptyset(&signals)
    sigaddset(&signals, SIGXFSZ)
    if let other { sigaddset(&signals, other) }
    guard pthread_sigmask(SIG_BLOCK, &signals, &before) == 0 else { return try body() }
    var pending = sigset_t()
    sigpending(&pending)
    defer {
      let code = errno
      // A signal that was pending before belongs to the program.
      if sigismember(&pending, SIGXFSZ) == 1 { sigdelset(&signals, SIGXFSZ) }
      if let other, sigismember(&pending, other) == 1 { sigdelset(&signals, other) }
      var none = timespec()
      while sigtimedwait(&signals, nil, &none) > 0 || errno == EINTR {}
      pthread_sigmask(SIG_SETMASK, &before, nil)
      errno = code
    }
    return try body()
  }
}
