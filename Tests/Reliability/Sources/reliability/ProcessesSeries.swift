import FoundationEssentials
import Glibc
import ResponseStore

/// Several processes on one directory, well and unwell.
struct ProcessesSeries {
  let setting: Setting
  let directory: String
  var storePath: String { directory + "/store" }
  var ledgerPath: String { directory + "/ledger" }

  func run(seconds: Double) -> Bool {
    var isGood = true
    let scenarios: [(String, () -> Bool)] = [
      ("eight", { eight(seconds: seconds) }), ("unwell", { unwell(seconds: seconds / 2) }),
      ("stopped", stoppedWhileWriting), ("capacity, goes on", { capacityBesideStopped(endsBy: SIGCONT) }),
      ("capacity, dies", { capacityBesideStopped(endsBy: SIGKILL) }), ("forked", forked), ("other format", otherFormat),
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
    Ledger(path: ledgerPath, keyCount: Crowd.keyCount).isEvicting = true
  }

  private func start(_ number: Int, seconds: Double, capacity: Int = Crowd.capacity, of count: Int = 1) -> Child {
    Child.start(
      ["crowd", storePath, ledgerPath, "\(capacity)", "\(number)", "\(Int(seconds * 1000))", "\(count)"],
      outputPath: directory + "/crowd.\(number)")
  }

  private func numbers(of child: Child) -> [Int]? {
    let line = child.output.split(separator: "\n").first { $0.hasPrefix("numbers ") }
    return line.map { $0.split(separator: " ").dropFirst().compactMap { Int($0) } }
  }

  /// Whether a child ended well and logged nothing, as a lock error would be, but what is expected.
  private func isWell(_ child: Child, _ end: Child.End, expecting expected: String? = nil) -> Bool {
    let lines = child.output.split(separator: "\n").filter { $0.contains("log:") }
    if end == .exited(0), lines.allSatisfy({ line in expected.map { line.contains($0) } ?? false }) { return true }
    say("a process of the crowd \(end): \(child.output)")
    return false
  }

  private func check(capacity: Int = Crowd.capacity) -> Bool {
    let (end, output) = Child.run(
      ["crowd-check", storePath, ledgerPath, "\(capacity)"], outputPath: directory + "/check")
    if end == .exited(0) { return true }
    say("the checker \(end): \(output)")
    return false
  }

  // MARK: All well

  private func eight(seconds: Double) -> Bool {
    let children = (0..<Crowd.processCount).map { start($0, seconds: seconds, of: Crowd.processCount) }
    var sums = [Int](repeating: 0, count: 8)
    var isGood = true
    var longest = 0
    for child in children {
      isGood = isWell(child, child.wait(seconds: seconds + 60)) && isGood
      guard let numbers = numbers(of: child), numbers.count == 8 else { return false }
      for index in sums.indices { sums[index] += numbers[index] }
      longest = max(longest, numbers[6])
    }
    let (_, output) = Child.run(["count", storePath, "\(Crowd.capacity)"], outputPath: directory + "/count")
    let entryCount = output.split(separator: "\n").last.flatMap { Int($0) } ?? -1
    let addsUp = sums[0] - sums[1] == entryCount
    isGood = isGood && addsUp && sums[5] == 0 && check()
    setting.report(
      "processes: eight for \(Int(seconds)) s",
      "\(sums[2]) operations, \(sums[3]) hits, \(sums[4]) purges and removals (longest \(longest / 1000) ms), "
        + "\(sums[0]) stores - \(sums[1]) removed = \(sums[0] - sums[1]), entries \(entryCount): "
        + (isGood ? "all well" : "FAILED"))
    return isGood
  }

  // MARK: Some unwell

  private func unwell(seconds: Double) -> Bool {
    var children = (0..<6).map { start($0, seconds: seconds) }
    usleep(UInt32(seconds * 2e5))
    children[0].kill(SIGKILL)
    children[1].kill(SIGSTOP)
    // Two more come in the middle of it: one with another capacity, for all from then on.
    children.append(start(6, seconds: seconds / 2, capacity: Crowd.capacity / 2))
    children.append(start(7, seconds: seconds / 2, capacity: Crowd.capacity / 2))
    usleep(UInt32(seconds * 3e5))
    children[1].kill(SIGCONT)
    var isGood = children[0].wait() == .signalled(SIGKILL)
    // Stopped within a read, it pins pages; others that store at full speed may then meet a full map, drop and say so.
    for child in children.dropFirst() {
      isGood = isWell(child, child.wait(seconds: seconds + 60), expecting: "MDB_MAP_FULL") && isGood
    }
    let fullMapCount = children.filter { $0.output.contains("MDB_MAP_FULL") }.count
    let (_, output) = Child.run(["count", storePath, "0"], outputPath: directory + "/count")
    isGood = isGood && check(capacity: Crowd.capacity / 2)
    setting.report(
      "processes: one killed, one stopped for \(Int(seconds * 300)) ms, two with half the capacity",
      "\(output.split(separator: "\n").last ?? "?") entries at the end, \(fullMapCount) processes met a full map: \(isGood ? "all well" : "FAILED")"
    )
    return isGood
  }

  // MARK: Stopped with the write lock

  /// Half the capacity is set while a process is stopped in a write transaction, which then goes on or dies.
  private func capacityBesideStopped(endsBy signal: Int32) -> Bool {
    for number in [0, 2, 3, 4] {
      let seeded = Child.run(
        ["crowd", storePath, ledgerPath, "\(Crowd.capacity)", "\(number)", "700", "1"], outputPath: directory + "/seed")
      guard seeded.0 == .exited(0) else { return false }
    }
    let half = Crowd.capacity / 2
    let setter = Child.start(
      ["capacity-beside-stopped", storePath, "\(Crowd.capacity)", "\(half)"], outputPath: directory + "/setter")
    waitForFile(storePath + ".ready")
    guard let stopped = startAndStopInWrite() else { return false }
    makeDirectory(storePath + ".go")
    waitForFile(storePath + ".set")
    stopped.kill(signal)
    let stoppedEnd = stopped.wait()
    let end = setter.wait()
    let (_, present) = Child.run(["capacity", storePath], outputPath: directory + "/capacity")
    let ended: Child.End = signal == SIGKILL ? .signalled(SIGKILL) : .exited(0)
    let isGood =
      end == .exited(0) && stoppedEnd == ended && present.split(separator: "\n").last == "\(half)"
      && check(capacity: half)
    let output = setter.output
    setting.report(
      "processes: capacity set beside one stopped in a write transaction, which then "
        + (signal == SIGKILL ? "dies" : "goes on"),
      output.split(separator: "\n").filter { !$0.hasPrefix("log:") }.joined(separator: "; ") + ": "
        + (isGood ? "all well" : "FAILED, \(end), \(stoppedEnd)"))
    if !isGood { say(output + stopped.output + present) }
    for name in [".ready", ".go", ".set"] { removeTree(storePath + name) }
    return isGood
  }

  private func stoppedWhileWriting() -> Bool {
    let seeded = Child.run(
      ["crowd", storePath, ledgerPath, "\(Crowd.capacity)", "0", "300", "1"], outputPath: directory + "/seed")
    guard seeded.0 == .exited(0) else { return false }
    let beside = Child.start(
      ["beside-stopped", storePath, ledgerPath, "\(Crowd.capacity)"], outputPath: directory + "/beside")
    waitForFile(storePath + ".ready")
    guard let stopped = startAndStopInWrite() else { return false }
    let opener = Child.run(["open-beside", storePath, "\(Crowd.capacity)"], outputPath: directory + "/opener")
    makeDirectory(storePath + ".go")
    let end = beside.wait()
    let output = beside.output + opener.1
    stopped.kill(SIGCONT)
    let stoppedEnd = stopped.wait()
    let isGood = end == .exited(0) && opener.0 == .exited(0) && stoppedEnd == .exited(0) && check()
    setting.report(
      "processes: one stopped in a write transaction",
      output.split(separator: "\n").filter { !$0.hasPrefix("log:") }.joined(separator: "; ") + ": "
        + (isGood ? "all well" : "FAILED, \(end), \(stoppedEnd)"))
    if !isGood { say(output + stopped.output) }
    return isGood
  }

  /// A process that stops itself in a write transaction.
  private func startAndStopInWrite() -> Child? {
    let child = Child.start(
      ["crowd", storePath, ledgerPath, "\(Crowd.capacity)", "1", "1000", "1"], outputPath: directory + "/stopped",
      environment: ["LD_PRELOAD": setting.recorder, "RECORDER_STOP": "25"])
    if isStopped(child) { return child }
    say("the process did not stop: \(child.output)")
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

  // MARK: Forked, and of another version

  private func forked() -> Bool {
    let (end, output) = Child.run(["fork", storePath, "\(Crowd.capacity)"], outputPath: directory + "/fork")
    let isGood = end == .exited(0)
    setting.report(
      "processes: forked", isGood ? "the child misses, does not harm, and can open anew: all well" : "FAILED \(output)")
    return isGood
  }

  private func otherFormat() -> Bool {
    let (end, output) = Child.run(
      ["other-format", storePath, "\(Crowd.capacity)"], outputPath: directory + "/format")
    let isGood = end == .exited(0)
    setting.report(
      "processes: another format",
      isGood ? "refused while it is in use, set aside when it is not: all well" : "FAILED \(end) \(output)")
    return isGood
  }
}
