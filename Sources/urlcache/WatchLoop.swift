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
    let end = ContinuousClock.now + duration
    repeat {
      var output = pollfd(fd: STDOUT_FILENO, events: 0, revents: 0)
      poll(&output, 1, CInt(min(max((end - .now) / .milliseconds(1), 0), 200)))
      if output.revents & Int16(POLLERR) != 0 { throw Output.BrokenPipe() }
      try directory.checkIsInPlace()
    } while ContinuousClock.now < end
  }
}
