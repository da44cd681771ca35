import Foundation
import Glibc
import ResponseStore
import Testing

@Suite("Default log")
struct LogTests {
  /// A state of standard error in which a line cannot be written.
  enum Obstacle: String, CaseIterable, Codable, Sendable {
    case closed, readOnly, fullDisk, pipeWithoutReader, fullPipe, socketWithoutReader, fullSocket, fileAtItsLimit

    /// Puts standard error of a child process into this state.
    func prepare() {
      switch self {
      case .closed: close(STDERR_FILENO)
      case .readOnly: dup2(open("/dev/null", O_RDONLY), STDERR_FILENO)
      case .fullDisk: dup2(open("/dev/full", O_WRONLY), STDERR_FILENO)
      case .pipeWithoutReader, .fullPipe:
        var ends: [CInt] = [0, 0]
        pipe(&ends)
        dup2(ends[1], STDERR_FILENO)
        if self == .pipeWithoutReader { close(ends[0]) } else { fill(ends[1]) }
      case .socketWithoutReader, .fullSocket:
        var ends: [CInt] = [0, 0]
        socketpair(AF_UNIX, CInt(SOCK_STREAM.rawValue), 0, &ends)
        dup2(ends[1], STDERR_FILENO)
        if self == .socketWithoutReader { close(ends[0]) } else { fill(ends[1]) }
      case .fileAtItsLimit:
        if let file = tmpfile() { dup2(fileno(file), STDERR_FILENO) }
        var limit = rlimit(rlim_cur: 16, rlim_max: 16)
        setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit)
      }
    }

    private func fill(_ descriptor: CInt) {
      let flags = fcntl(descriptor, F_GETFL)
      _ = fcntl(descriptor, F_SETFL, flags | O_NONBLOCK)
      let bytes = [UInt8](repeating: 0, count: 4096)
      while write(descriptor, bytes, bytes.count) > 0 {}
      _ = fcntl(descriptor, F_SETFL, flags)
    }
  }

  @Test(
    "If standard error does not accept a line, the line is dropped and the process continues",
    arguments: Obstacle.allCases)
  func survives(_ obstacle: Obstacle) async {
    await #expect(processExitsWith: .success) { [obstacle = obstacle as Obstacle] in
      // Ends the process if the log blocks.
      alarm(30)
      var signals = sigset_t()
      sigemptyset(&signals)
      for number in [SIGPIPE, SIGXFSZ] {
        signal(number, SIG_DFL)
        sigaddset(&signals, number)
      }
      pthread_sigmask(SIG_UNBLOCK, &signals, nil)
      obstacle.prepare()
      let options = ResponseStore.Options(capacityByteCount: 1 << 20)
      for length in [10, 20_000] { options.log(String(repeating: "x", count: length)) }
      // The program's signal handlers and signal mask are unchanged.
      var (action, blocked, pending) = (sigaction(), sigset_t(), sigset_t())
      for number in [SIGPIPE, SIGXFSZ] {
        guard sigaction(number, nil, &action) == 0, action.__sigaction_handler.sa_handler == nil,
          pthread_sigmask(SIG_BLOCK, nil, &blocked) == 0, sigismember(&blocked, number) == 0,
          sigpending(&pending) == 0, sigismember(&pending, number) == 0
        else { exit(1) }
      }
      exit(0)
    }
  }

  @Test("Standard error receives the complete line if it accepts it")
  func line() async throws {
    let text = String(repeating: "a line ", count: 2000)
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      [text = text as String] in
      ResponseStore.Options(capacityByteCount: 1 << 20).log(text)
      exit(0)
    }
    let written = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(written.contains(text + "\n"))
  }
}
