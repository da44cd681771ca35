import FoundationEssentials
import Glibc

/// A child process, which runs this program with other arguments, or another program.
struct Child {
  let processID: pid_t
  let outputPath: String

  enum End: Equatable, CustomStringConvertible {
    case exited(Int32)
    case signaled(Int32)

    var description: String {
      switch self {
      case .exited(let code): code == 0 ? "exited normally" : "exited with code \(code)"
      case .signaled(let signal): "was ended by \(Self.name(of: signal))"
      }
    }

    private static func name(of signal: Int32) -> String {
      [
        SIGBUS: "SIGBUS", SIGSEGV: "SIGSEGV", SIGABRT: "SIGABRT", SIGILL: "SIGILL (a trap)", SIGKILL: "SIGKILL",
        SIGFPE: "SIGFPE", SIGALRM: "SIGALRM (a timeout)",
      ][signal] ?? "signal \(signal)"
    }
  }

  /// Starts a child process, whose output goes to a file.
  ///
  /// - Parameter executable: The program; by default this one, with the command `child`.
  static func start(
    _ arguments: [String], executable: String? = nil, outputPath: String, environment extra: [String: String] = [:]
  ) -> Child {
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
    posix_spawn_file_actions_addopen(&actions, 1, outputPath, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
    posix_spawn_file_actions_adddup2(&actions, 1, 2)
    defer { posix_spawn_file_actions_destroy(&actions) }
    var environment = ProcessInfo.processInfo.environment
    // Crashes are expected results, so backtraces are not needed.
    environment["SWIFT_BACKTRACE"] = environment["SWIFT_BACKTRACE"] ?? "enable=no"
    for (name, value) in extra { environment[name] = value }
    let path = executable ?? executablePath
    var arguments = ([path] + (executable == nil ? ["child"] : []) + arguments).map { strdup($0) } + [nil]
    var variables = environment.map { strdup("\($0)=\($1)") } + [nil]
    defer { for text in arguments + variables { free(text) } }
    var processID: pid_t = 0
    let code = posix_spawn(&processID, path, &actions, nil, &arguments, &variables)
    guard code == 0 else { fail("cannot start \(path): \(code)") }
    return Child(processID: processID, outputPath: outputPath)
  }

  static let executablePath: String = {
    var buffer = [CChar](repeating: 0, count: 4096)
    let count = readlink("/proc/self/exe", &buffer, buffer.count)
    return String(decoding: buffer.prefix(max(count, 0)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }()

  func kill(_ signal: Int32) { _ = Glibc.kill(processID, signal) }

  /// Waits until the process ends and kills it after `seconds`.
  func wait(seconds: Double = 60) -> End {
    var status: Int32 = 0
    let deadline = now() + seconds
    while waitpid(processID, &status, WNOHANG) == 0 {
      if now() > deadline {
        kill(SIGKILL)
        waitpid(processID, &status, 0)
        return .signaled(SIGALRM)
      }
      usleep(500)
    }
    return status & 0x7f == 0 ? .exited(status >> 8 & 0xff) : .signaled(status & 0x7f)
  }

  var output: String {
    guard let data = FileManager.default.contents(atPath: outputPath) else { return "" }
    return String(decoding: data, as: UTF8.self)
  }

  static func run(_ arguments: [String], outputPath: String, environment: [String: String] = [:]) -> (End, String) {
    let child = start(arguments, outputPath: outputPath, environment: environment)
    let end = child.wait()
    return (end, child.output)
  }
}

/// Returns the time of the monotonic clock in seconds.
func now() -> Double {
  var time = timespec()
  clock_gettime(CLOCK_MONOTONIC, &time)
  return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
}

/// Prints a message and ends the process with exit code 3.
func fail(_ text: String) -> Never {
  print("reliability: \(text)")
  fflush(nil)
  exit(3)
}

/// Prints a line and flushes it, so that the progress of a long series is visible.
func say(_ text: String) {
  print(text)
  fflush(nil)
}

func removeTree(_ path: String) {
  // A missing directory is not an error.
  try? FileManager.default.removeItem(atPath: path)
}

/// Waits up to ten seconds until a file exists.
func waitForFile(_ path: String) {
  for _ in 0..<10_000 where access(path, F_OK) != 0 { usleep(1000) }
}

/// Creates an empty directory and removes an existing one.
func makeDirectory(_ path: String) {
  removeTree(path)
  guard mkdir(path, 0o700) == 0 else { fail("cannot make \(path)") }
}

/// Runs `body` on a detached thread.
func startThread(_ body: @escaping @Sendable () -> Void) {
  final class Box: Sendable {
    let body: @Sendable () -> Void
    init(_ body: @escaping @Sendable () -> Void) { self.body = body }
  }
  var thread = pthread_t()
  let code = pthread_create(
    &thread, nil,
    { argument in
      guard let argument else { return nil }
      Unmanaged<Box>.fromOpaque(argument).takeRetainedValue().body()
      return nil
    }, Unmanaged.passRetained(Box(body)).toOpaque())
  guard code == 0 else { fail("cannot start a thread") }
  pthread_detach(thread)
}
