internal import Glibc

/// Signals that the kernel sends to a thread because of a write, which then also fails with an error.
package enum WriteSignals {
  /// Runs `body` so that its writes fail with an error and without a signal.
  ///
  /// By default this applies to the limit on file sizes: `EFBIG` without `SIGXFSZ`, which would end the process. The
  /// kernel sends these signals to the writing thread, so blocking them works with any signal handling of the program.
  /// Keeps `errno`. Costs four system calls.
  package static func suppressing<R, Failure: Error>(
    _ numbers: [CInt] = [SIGXFSZ], _ body: () throws(Failure) -> R
  ) throws(Failure) -> R {
    var signals = sigset_t()
    var before = sigset_t()
    sigemptyset(&signals)
    for number in numbers { sigaddset(&signals, number) }
    guard pthread_sigmask(SIG_BLOCK, &signals, &before) == 0 else { return try body() }
    var pending = sigset_t()
    sigpending(&pending)
    defer {
      let code = errno
      // A signal that was pending before belongs to the program.
      for number in numbers where sigismember(&pending, number) == 1 { sigdelset(&signals, number) }
      var none = timespec()
      while sigtimedwait(&signals, nil, &none) > 0 || errno == EINTR {}
      pthread_sigmask(SIG_SETMASK, &before, nil)
      errno = code
    }
    return try body()
  }
}
