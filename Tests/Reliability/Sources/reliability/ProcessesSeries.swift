import FoundationEssentials
import Glibc
import ResponseStore
import StoreContract

/// Tests several processes on one directory, including killed, suspended and forked ones.
struct ProcessesSeries {
  let setting: RunConfiguration
  let directory: String
  var storePath: String { directory + "/store" }
  var ledgerPath: String { directory + "/ledger" }

  func run(seconds: Double) -> Bool {
    var isGood = true
    let scenarios: [(String, () -> Bool)] = [
      ("concurrent", { concurrentProcesses(seconds: seconds) }),
      ("faulty", { faultyProcesses(seconds: seconds / 2) }), ("suspended", suspendedWriter),
      ("capacity, resumed", { capacityWithSuspendedWriter(endsBy: SIGCONT) }),
      ("capacity, killed", { capacityWithSuspendedWriter(endsBy: SIGKILL) }), ("forked", forked),
      ("other format", otherFormat),
    ]
    for (name, scenario) in scenarios {
      prepare()
      if !scenario() {
        isGood = false
        say("processes: \(name) FAILED")
      }
    }
    return isGood
  }

  private func prepare() {
    makeDirectory(directory)
    Ledger(path: ledgerPath, keyCount: ConcurrentWorker.keyCount).isEvicting = true
  }

  private func start(_ number: Int, seconds: Double, capacity: Int = ConcurrentWorker.capacity, of count: Int = 1)
    -> Child
  {
    Child.start(
      ["crowd", storePath, ledgerPath, "\(capacity)", "\(number)", "\(Int(seconds * 1000))", "\(count)"],
      outputPath: directory + "/crowd.\(number)")
  }

  private func numbers(of child: Child) -> [Int]? {
    let line = child.output.split(separator: "\n").first { $0.hasPrefix("numbers ") }
    return line.map { $0.split(separator: " ").dropFirst().compactMap { Int($0) } }
  }

  /// Returns whether a child exited normally and logged nothing, such as a lock error, except for expected lines.
  private func hasSucceeded(_ child: Child, _ end: Child.End, expecting expected: String? = nil) -> Bool {
    let lines = child.output.split(separator: "\n").filter { $0.contains("log:") }
    if end == .exited(0), lines.allSatisfy({ line in expected.map { line.contains($0) } ?? false }) { return true }
    say("a concurrent worker \(end): \(child.output)")
    return false
  }

  private func check(capacity: Int = ConcurrentWorker.capacity) -> Bool {
    let (end, output) = Child.run(
      ["crowd-check", storePath, ledgerPath, "\(capacity)"], outputPath: directory + "/check")
    if end == .exited(0) { return true }
    say("the checker \(end): \(output)")
    return false
  }

  // MARK: Concurrent processes

  private func concurrentProcesses(seconds: Double) -> Bool {
    let children = (0..<ConcurrentWorker.processCount).map {
      start($0, seconds: seconds, of: ConcurrentWorker.processCount)
    }
    var sums = [Int](repeating: 0, count: 8)
    var isGood = true
    var longest = 0
    for child in children {
      isGood = hasSucceeded(child, child.wait(seconds: seconds + 60)) && isGood
      guard let numbers = numbers(of: child), numbers.count == 8 else { return false }
      for index in sums.indices { sums[index] += numbers[index] }
      longest = max(longest, numbers[6])
    }
    let (_, output) = Child.run(["count", storePath, "\(ConcurrentWorker.capacity)"], outputPath: directory + "/count")
    let entryCount = output.split(separator: "\n").last.flatMap { Int($0) } ?? -1
    let addsUp = sums[0] - sums[1] == entryCount
    isGood = isGood && addsUp && sums[2] > 0 && sums[5] == 0 && check()
    setting.report(
      "processes: \(ConcurrentWorker.processCount) concurrent processes for \(Int(seconds)) s",
      "\(sums[2]) operations, \(sums[3]) hits, \(sums[4]) purges and removals (maximum latency \(longest / 1000) ms), "
        + "\(sums[0]) writes - \(sums[1]) removed = \(sums[0] - sums[1]), entries \(entryCount): "
        + (isGood ? "OK" : "FAILED"))
    return isGood
  }

  // MARK: Killed and suspended processes

  private func faultyProcesses(seconds: Double) -> Bool {
    var children = (0..<6).map { start($0, seconds: seconds) }
    usleep(UInt32(seconds * 2e5))
    children[0].kill(SIGKILL)
    children[1].kill(SIGSTOP)
    // Start two more processes meanwhile. Their capacity applies to all processes from then on.
    children.append(start(6, seconds: seconds / 2, capacity: ConcurrentWorker.capacity / 2))
    children.append(start(7, seconds: seconds / 2, capacity: ConcurrentWorker.capacity / 2))
    usleep(UInt32(seconds * 3e5))
    children[1].kill(SIGCONT)
    var isGood = children[0].wait() == .signaled(SIGKILL)
    // A process suspended in a read pins pages. The others may then get MDB_MAP_FULL, drop writes and log that.
    for child in children.dropFirst() {
      isGood = hasSucceeded(child, child.wait(seconds: seconds + 60), expecting: "MDB_MAP_FULL") && isGood
    }
    let mapFullCount = children.filter { $0.output.contains("MDB_MAP_FULL") }.count
    let (_, output) = Child.run(["count", storePath, "0"], outputPath: directory + "/count")
    isGood = isGood && check(capacity: ConcurrentWorker.capacity / 2)
    setting.report(
      "processes: 1 killed, 1 suspended for \(Int(seconds * 300)) ms, 2 with half the capacity",
      "\(output.split(separator: "\n").last ?? "?") entries at the end, MDB_MAP_FULL in \(mapFullCount) processes: "
        + (isGood ? "OK" : "FAILED"))
    return isGood
  }

  // MARK: Suspended with the write lock

  /// Halves the capacity while a process is suspended in a write transaction, and then resumes or kills that process.
  private func capacityWithSuspendedWriter(endsBy signal: Int32) -> Bool {
    for number in [0, 2, 3, 4] {
      let seeded = Child.run(
        ["crowd", storePath, ledgerPath, "\(ConcurrentWorker.capacity)", "\(number)", "700", "1"],
        outputPath: directory + "/seed")
      guard seeded.0 == .exited(0) else { return false }
    }
    let half = ConcurrentWorker.capacity / 2
    let setter = Child.start(
      ["capacity-next-to-suspended", storePath, "\(ConcurrentWorker.capacity)", "\(half)"],
      outputPath: directory + "/setter")
    waitForFile(storePath + ".ready")
    guard let stopped = startAndStopInWrite() else { return false }
    makeDirectory(storePath + ".go")
    waitForFile(storePath + ".set")
    stopped.kill(signal)
    let stoppedEnd = stopped.wait()
    let end = setter.wait()
    let (_, present) = Child.run(["capacity", storePath], outputPath: directory + "/capacity")
    let ended: Child.End = signal == SIGKILL ? .signaled(SIGKILL) : .exited(0)
    let isGood =
      end == .exited(0) && stoppedEnd == ended && present.split(separator: "\n").last == "\(half)"
      && check(capacity: half)
    let output = setter.output
    setting.report(
      "processes: capacity set while 1 process is suspended with the write lock, which then "
        + (signal == SIGKILL ? "is killed" : "resumes"),
      output.split(separator: "\n").filter { !$0.hasPrefix("log:") }.joined(separator: "; ") + ": "
        + (isGood ? "OK" : "FAILED, \(end), \(stoppedEnd)"))
    if !isGood { say(output + stopped.output + present) }
    for name in [".ready", ".go", ".set"] { removeTree(storePath + name) }
    return isGood
  }

  private func suspendedWriter() -> Bool {
    let seeded = Child.run(
      ["crowd", storePath, ledgerPath, "\(ConcurrentWorker.capacity)", "0", "300", "1"],
      outputPath: directory + "/seed"
    )
    guard seeded.0 == .exited(0) else { return false }
    let concurrent = Child.start(
      ["next-to-suspended", storePath, ledgerPath, "\(ConcurrentWorker.capacity)"],
      outputPath: directory + "/second")
    waitForFile(storePath + ".ready")
    guard let stopped = startAndStopInWrite() else { return false }
    let opener = Child.run(
      ["open-second", storePath, "\(ConcurrentWorker.capacity)"], outputPath: directory + "/opener")
    makeDirectory(storePath + ".go")
    let end = concurrent.wait()
    let output = concurrent.output + opener.1
    stopped.kill(SIGCONT)
    let stoppedEnd = stopped.wait()
    let isGood = end == .exited(0) && opener.0 == .exited(0) && stoppedEnd == .exited(0) && check()
    setting.report(
      "processes: 1 process suspended with the write lock",
      output.split(separator: "\n").filter { !$0.hasPrefix("log:") }.joined(separator: "; ") + ": "
        + (isGood ? "OK" : "FAILED, \(end), \(stoppedEnd)"))
    if !isGood { say(output + stopped.output) }
    return isGood
  }

  /// Starts a process that suspends itself in a write transaction; returns nil if it does not.
  private func startAndStopInWrite() -> Child? {
    let child = Child.start(
      ["crowd", storePath, ledgerPath, "\(ConcurrentWorker.capacity)", "1", "1000", "1"],
      outputPath: directory + "/stopped",
      environment: ["LD_PRELOAD": setting.recorder, "RECORDER_STOP": "25"])
    if isStopped(child) { return child }
    say("the process was not suspended: \(child.output)")
    return nil
  }

  private func isStopped(_ child: Child) -> Bool {
    for _ in 0..<10_000 {
      let state = FileManager.default.contents(atPath: "/proc/\(child.processID)/stat")
        .map { String(decoding: $0, as: UTF8.self) }
      if let state, state.contains(") T ") { return true }
      usleep(1000)
    }
    return false
  }

  // MARK: Fork and other format version

  private func forked() -> Bool {
    let (end, output) = Child.run(["fork", storePath, "\(ConcurrentWorker.capacity)"], outputPath: directory + "/fork")
    let isGood = end == .exited(0)
    setting.report(
      "processes: use after fork",
      isGood
        ? "the child's lookups miss, it does no damage, and it can open the directory itself: OK" : "FAILED \(output)")
    return isGood
  }

  private func otherFormat() -> Bool {
    let (end, output) = Child.run(
      ["other-format", storePath, "\(ConcurrentWorker.capacity)"], outputPath: directory + "/format")
    let isGood = end == .exited(0)
    setting.report(
      "processes: other format version",
      isGood ? "refused while in use, otherwise replaced: OK" : "FAILED \(end) \(output)")
    return isGood
  }
}
