import CacheActivity
import Foundation
import Glibc
import LMDBURLCache

/// The shared parts of commands that watch a directory.
struct WatchLoop {
  let directory: CacheDirectory

  /// Begins to watch the requests of all processes.
  func watchEvents() throws -> EventWatch {
    guard let watch = directory.watchEvents() else {
      // The directory may have been deleted since it was opened.
      try directory.checkIsInPlace()
      throw ToolError(
        "Requests cannot be recorded: no cache has opened the directory since an upgrade, the disk is full, the file "
          + "system is read-only, or this process's limit on file sizes is too low (ulimit -f).")
    }
    return watch
  }

  /// Waits. Returns at once if standard output is closed or the directory is gone, with an error.
  ///
  /// - Throws: `Output.BrokenPipe`, or `ToolError` if the directory was deleted, moved or has failed.
  func wait(_ duration: Duration) throws {
    try wait(duration, keys: -1) { nil }
  }

  /// Waits like ``wait(_:)``, or until a key or another size of the terminal asks for something, which it returns.
  func wait(_ duration: Duration, _ screen: inout Screen) throws -> Screen.Request? {
    try wait(duration, keys: screen.keyDescriptor) { screen.request() }
  }

  @discardableResult
  private func wait(
    _ duration: Duration, keys: CInt, request: () -> Screen.Request?
  ) throws -> Screen.Request? {
    let end = ContinuousClock.now + duration
    repeat {
      var files = [
        pollfd(fd: STDOUT_FILENO, events: 0, revents: 0), pollfd(fd: keys, events: Int16(POLLIN), revents: 0),
      ]
      poll(&files, 2, CInt(min(max((end - .now) / .milliseconds(1), 0), 200)))
      if files.contains(where: { $0.revents & Int16(POLLERR) != 0 }) { throw Output.BrokenPipe() }
      try directory.checkIsInPlace()
      if let request = request() { return request }
    } while ContinuousClock.now < end
    return nil
  }
}
