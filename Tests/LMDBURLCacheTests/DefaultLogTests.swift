import Foundation
import Glibc
import LMDBURLCache
import Testing

@Suite("Default log of a cache")
struct DefaultLogTests {
  @Test("A closed or full standard error, or one without a reader, does not end the process", arguments: [0, 1, 2])
  func survives(obstacle: Int) async {
    await #expect(processExitsWith: .success) { [obstacle = obstacle as Int] in
      signal(SIGPIPE, SIG_DFL)
      switch obstacle {
      case 0: close(STDERR_FILENO)
      case 1: dup2(open("/dev/full", O_WRONLY), STDERR_FILENO)
      default:
        var ends: [CInt] = [0, 0]
        pipe(&ends)
        dup2(ends[1], STDERR_FILENO)
        close(ends[0])
      }
      LMDBURLCache.Options().log("The disk is full")
      ResponseCache.Options().storeOptions(diskCapacity: 1 << 20).log("The disk is full")
      exit(0)
    }
  }
}
