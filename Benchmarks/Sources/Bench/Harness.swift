import Foundation
import Synchronization

/// The monotonic wall-clock time in nanoseconds.
func now() -> UInt64 {
  var time = timespec()
  clock_gettime(CLOCK_MONOTONIC, &time)
  return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
}

/// The CPU time of the calling thread in nanoseconds.
func processorTime() -> UInt64 {
  var time = timespec()
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
  return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
}

/// The CPU time of all threads of this process in microseconds.
func processTime() -> Double {
  var time = timespec()
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time)
  return Double(time.tv_sec) * 1e6 + Double(time.tv_nsec) / 1e3
}

func nanoseconds(_ body: () throws -> Void) rethrows -> Double {
  let start = now()
  try body()
  return Double(now() - start)
}

/// One case of a comparison: performs `operations` operations per round and measures no time.
struct BenchmarkCase {
  let name: String
  /// The number of operations in a round.
  let operations: Int
  /// The number of concurrent threads; each performs `operations`.
  var threads = 1
  /// Whether the operations wait for another process or thread, and need wall-clock time.
  ///
  /// The others are measured in CPU time, which does not depend on the machine's load.
  var waits = false
  let run: (_ thread: Int, _ round: Int) -> Void
}

enum Harness {
  /// Runs all cases in alternating order and returns the nanoseconds per operation of each round.
  ///
  /// Each round runs every case once. A first round warms up and is not counted.
  static func compare(_ cases: [BenchmarkCase], rounds: Int) -> [String: [Double]] {
    var samples: [String: [Double]] = [:]
    for round in 0...rounds {
      for offset in cases.indices {
        let benchmarkCase = cases[(offset + round) % cases.count]
        let elapsed = time(benchmarkCase, round: round)
        if round > 0 { samples[benchmarkCase.name, default: []].append(elapsed / Double(benchmarkCase.operations)) }
      }
    }
    return samples
  }

  private static func time(_ benchmarkCase: BenchmarkCase, round: Int) -> Double {
    if benchmarkCase.threads == 1 { return time(benchmarkCase, thread: 0, round: round) }
    let times = Mutex<[Double]>([])
    inParallel(benchmarkCase.threads) { thread in
      let elapsed = time(benchmarkCase, thread: thread, round: round)
      times.withLock { $0.append(elapsed) }
    }
    return times.withLock { $0.reduce(0, +) / Double($0.count) }
  }

  private static func time(_ benchmarkCase: BenchmarkCase, thread: Int, round: Int) -> Double {
    let clock = benchmarkCase.waits ? now : processorTime
    let start = clock()
    benchmarkCase.run(thread, round)
    return Double(clock() - start)
  }

  /// Runs `body` on `count` new threads and returns when all have ended.
  static func inParallel(_ count: Int, _ body: @escaping (Int) -> Void) {
    let box = UncheckedBox(body)
    let group = DispatchGroup()
    for number in 0..<count {
      group.enter()
      let thread = Thread {
        box.value(number)
        group.leave()
      }
      thread.stackSize = 1 << 20
      thread.start()
    }
    group.wait()
  }
}

/// Carries a value to another thread.
struct UncheckedBox<Value>: @unchecked Sendable {
  // Sendable: the sender waits until the receiving thread has ended.
  let value: Value
  init(_ value: Value) { self.value = value }
}

/// A temporary folder that is removed at the end of the run.
final class Scratch {
  let path: String

  init(below root: String) throws {
    path = root + "/bench-\(getpid())"
    try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
  }

  func folder(_ name: String) throws -> String {
    let folder = path + "/" + name
    try remove(folder)
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    return folder
  }

  func remove(_ folder: String) throws {
    if FileManager.default.fileExists(atPath: folder) { try FileManager.default.removeItem(atPath: folder) }
  }

  deinit {
    // A folder that cannot be removed stays among the temporary files.
    try? FileManager.default.removeItem(atPath: path)
  }
}

struct BenchError: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

/// Kills a process and returns when it has ended.
///
/// Uses SIGKILL, which cannot be blocked. A `Process` started on a thread of Swift's pool inherits the blocked signals
/// of that thread, so that Redis would never receive SIGTERM.
func endProcess(_ process: Process) {
  kill(process.processIdentifier, SIGKILL)
  while process.isRunning { usleep(10_000) }
}
