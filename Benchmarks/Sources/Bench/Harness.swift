import Foundation
import Synchronization

/// Nanoseconds of a clock that only goes forward.
func now() -> UInt64 {
  var time = timespec()
  clock_gettime(CLOCK_MONOTONIC, &time)
  return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
}

/// Nanoseconds that the calling thread has spent on a processor.
func processorTime() -> UInt64 {
  var time = timespec()
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
  return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
}

func nanoseconds(_ body: () throws -> Void) rethrows -> Double {
  let start = now()
  try body()
  return Double(now() - start)
}

/// One who takes part in a comparison: does `operations` of something, and keeps no time.
struct Contestant {
  let name: String
  /// How many operations a round has.
  let operations: Int
  /// On how many threads at once; each does `operations`.
  var threads = 1
  /// Whether it waits for someone else, so that only the clock on the wall tells what it takes. What only computes is
  /// measured in processor time, which does not depend on how many others want the processor.
  var waits = false
  let run: (_ thread: Int, _ round: Int) -> Void
}

enum Harness {
  /// Lets all run side by side: one round not counted, then `rounds` in which each comes once, the order turning. Returns
  /// the nanoseconds per operation of each round.
  static func compare(_ contestants: [Contestant], rounds: Int) -> [String: [Double]] {
    var samples: [String: [Double]] = [:]
    for round in 0...rounds {
      for offset in contestants.indices {
        let contestant = contestants[(offset + round) % contestants.count]
        let elapsed = time(contestant, round: round)
        if round > 0 { samples[contestant.name, default: []].append(elapsed / Double(contestant.operations)) }
      }
    }
    return samples
  }

  private static func time(_ contestant: Contestant, round: Int) -> Double {
    if contestant.threads == 1 { return time(contestant, thread: 0, round: round) }
    let times = Mutex<[Double]>([])
    inParallel(contestant.threads) { thread in
      let elapsed = time(contestant, thread: thread, round: round)
      times.withLock { $0.append(elapsed) }
    }
    return times.withLock { $0.reduce(0, +) / Double($0.count) }
  }

  private static func time(_ contestant: Contestant, thread: Int, round: Int) -> Double {
    let clock = contestant.waits ? now : processorTime
    let start = clock()
    contestant.run(thread, round)
    return Double(clock() - start)
  }

  /// Runs `body` on threads of their own, and returns when all have ended.
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

/// Carries a value to another thread while the one who gave it waits.
struct UncheckedBox<Value>: @unchecked Sendable {
  // Sendable: the giver waits until the taker has ended.
  let value: Value
  init(_ value: Value) { self.value = value }
}

/// A folder for a run, removed at its end.
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
    // What cannot be removed stays in the folder for temporary files.
    try? FileManager.default.removeItem(atPath: path)
  }
}

struct BenchError: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

/// Ends a process and returns when it is gone. With the one signal that cannot be blocked: a `Process` that is started on a
/// thread of Swift's pool inherits that thread's blocked signals, and Redis then never sees a request to end.
func end(_ process: Process) {
  kill(process.processIdentifier, SIGKILL)
  while process.isRunning { usleep(10_000) }
}
