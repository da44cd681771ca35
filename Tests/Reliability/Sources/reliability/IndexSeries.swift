import FoundationEssentials
import Glibc
import LMDB

/// Kills a process at every step of an index change, and simulates index files after a power failure.
///
/// Lookups must find the newest committed version or none, and a rebuild must make the index exact again.
struct IndexSeries {
  let setting: RunConfiguration
  let directory: String

  private var base: String { directory + "/base" }
  private var work: String { directory + "/work" }

  func run() -> Bool {
    makeDirectory(directory)
    var isGood = true
    for scenario in IndexScenario.allCases {
      isGood = report("killed at each step of \(scenario.rawValue)") { try killAtEachStep(scenario) } && isGood
    }
    isGood = report("unexpected files", unexpectedFiles) && isGood
    isGood = report("full file system", fullFileSystem) && isGood
    isGood = report("use after fork", forked) && isGood
    let seconds = setting.isQuick ? 5.0 : 60
    return report("2 writers, killed at random times, and 2 readers") {
      try ConcurrentIndexWorkers(directory: directory + "/crowd").run(seconds: seconds, seed: setting.seed)
    } && isGood
  }

  private func report(_ name: String, _ body: () throws -> String) -> Bool {
    do {
      setting.report("index: \(name)", "\(try body()): OK")
      return true
    } catch {
      setting.report("index: \(name)", "FAILED: \(error)")
      return false
    }
  }

  // MARK: Kills

  private func killAtEachStep(_ scenario: IndexScenario) throws -> String {
    makeDirectory(base)
    do {
      let prototype = try scenario.open(base)
      try scenario.prepare(prototype)
    }
    // A quick run tests every 17th step; the seed selects the first one.
    let stride = setting.isQuick ? 17 : 1
    var step = 1 + Int(setting.seed % UInt64(stride))
    var count = 0
    while true {
      try copyBase()
      // In every second run, this process has the file mapped during the kill, and looks keys up before the next write.
      let survivor = count % 2 == 0 ? try scenario.open(work, boot: scenario.firstBoot) : nil
      if let survivor { try require(try survivor.settle(), "the index cannot be opened") }
      let child = Child.start(["index", work, scenario.rawValue, "\(step)"], outputPath: directory + "/log")
      let end = child.wait()
      guard end == .exited(0) || end == .signaled(SIGKILL) else {
        throw IndexFailure("step \(step): the child \(end) \(child.output)")
      }
      do {
        if let survivor { try scenario.check(survivor, isSettled: false) }
        try scenario.check(try survivor ?? scenario.open(work, boot: scenario.lastBoot), isSettled: true)
      } catch {
        throw IndexFailure("step \(step): \(error)")
      }
      count += 1
      try require(end == .signaled(SIGKILL) || count > 1 || stride > 1, "no step was killed")
      if end == .exited(0) { return "\(count) runs; the last one completed before step \(step)" }
      step += stride
    }
  }

  private func copyBase() throws {
    makeDirectory(work)
    for name in ["data.mdb", IndexLayout.fileName] where access(base + "/" + name, F_OK) == 0 {
      try FileManager.default.copyItem(atPath: base + "/" + name, toPath: work + "/" + name)
    }
  }

  // MARK: Files after a power failure

  private func unexpectedFiles() throws -> String {
    let rebooted = Boot(high: 1, low: 2)
    var random = SeededRandom(setting.seed)
    let scenario = IndexScenario.mixed
    makeDirectory(base)
    try {
      let prototype = try scenario.open(base)
      try scenario.prepare(prototype)
    }()
    let path = work + "/" + IndexLayout.fileName
    let older = [UInt8](try Data(contentsOf: URL(filePath: base + "/" + IndexLayout.fileName)))
    try {
      let prototype = try scenario.open(base)
      try scenario.run(prototype)
    }()
    let newer = [UInt8](try Data(contentsOf: URL(filePath: base + "/" + IndexLayout.fileName)))
    let noise = newer.map { _ in UInt8(truncatingIfNeeded: random.next()) }
    let cells = IndexLayout.byteCount(cellCount: 512) - 16 * (512 + IndexLayout.maximumProbeLength)
    var kinds: [(name: String, bytes: [UInt8]?, boot: Boot, isSuspect: Bool)] = [
      ("no file", nil, .current, true), ("an empty file", [], .current, true),
      ("a short file", Array(newer.prefix(10)), .current, true),
      ("half a file", Array(newer.prefix(newer.count / 2)), .current, true),
      ("zeros", newer.map { _ in 0 }, .current, true), ("random bytes", noise, .current, true),
      // A copy that was restored within the same boot is detected by the number of the last transaction.
      ("an older copy of this boot", older, .current, true), ("the same file", newer, .current, false),
      ("the same file after a power failure", newer, rebooted, true),
      ("an older copy after a power failure", older, rebooted, true),
      (
        "random bytes after an intact header, after a power failure",
        Array(newer.prefix(4096)) + noise.dropFirst(4096), rebooted, true
      ),
      // These cannot be detected; lookups must be correct anyway.
      ("random bytes in the cells", Array(newer.prefix(cells)) + noise.dropFirst(cells), .current, false),
      ("a random count", Array(newer.prefix(128)) + noise[128..<136] + newer.dropFirst(136), .current, false),
      ("zeros in the cells", Array(newer.prefix(cells)) + newer.dropFirst(cells).map { _ in 0 }, .current, false),
    ]
    for page in 0..<newer.count / 4096 {
      let torn =
        newer.prefix(4096 * page) + older.dropFirst(4096 * page).prefix(4096) + newer.dropFirst(4096 * (page + 1))
      kinds.append(
        ("page \(page) of an older copy, after a power failure", Array(torn.prefix(newer.count)), rebooted, true))
    }
    for kind in kinds {
      do {
        try copyBase()
        unlink(path)
        if let bytes = kind.bytes { try Data(bytes).write(to: URL(filePath: path)) }
        let prototype = try scenario.open(work, boot: kind.boot)
        try require(try prototype.settle(), "the index cannot be opened")
        try require(
          prototype.file.current?.isComplete != kind.isSuspect,
          kind.isSuspect ? "the file was accepted" : "the file was rejected")
        if !kind.isSuspect, kind.bytes != newer {
          if let wrong = try prototype.findWrongLookup(keyCount: scenario.keyCount, mayMiss: true) {
            throw IndexFailure(wrong)
          }
          continue
        }
        try scenario.check(prototype, isSettled: true)
      } catch {
        throw IndexFailure("\(kind.name): \(error)")
      }
    }
    try cleanFiles(scenario, older: older, rebooted: rebooted)
    return "\(kinds.count) files"
  }

  /// Checks that a cleanly closed file is accepted after a reboot, unless the data has changed since.
  private func cleanFiles(_ scenario: IndexScenario, older: [UInt8], rebooted: Boot) throws {
    try copyBase()
    try {
      let prototype = try scenario.open(work)
      _ = try prototype.settle()
      try require(try prototype.markClean(), "the file cannot be marked as clean")
    }()
    let path = URL(filePath: work + "/" + IndexLayout.fileName)
    let clean = try Data(contentsOf: path)
    do {
      let prototype = try scenario.open(work, boot: rebooted)
      try require(try prototype.settle(), "the index cannot be opened")
      try require(prototype.file.current?.isComplete == true, "a clean file was rejected")
      try scenario.check(prototype, isSettled: true)
      _ = try prototype.store([(3, 1_000_000)])
    }
    try clean.write(to: path)
    let prototype = try scenario.open(work, boot: Boot(high: 5, low: 6))
    _ = try prototype.settle()
    try require(prototype.file.current?.isComplete == false, "a file that was clean before a change was accepted")
    try scenario.check(prototype, isSettled: true)
  }

  private func fullFileSystem() throws -> String {
    makeDirectory(work)
    // Returns error codes like `posix_fallocate`. The flag is a file, because the closure is kept by the process.
    let flag = directory + "/full"
    close(open(flag, O_CREAT | O_RDWR, 0o600))
    let prototype = try IndexPrototype(
      directory: work,
      allocate: { descriptor, byteCount in
        access(flag, F_OK) == 0 ? ENOSPC : posix_fallocate(descriptor, 0, byteCount)
      })
    try require(try !prototype.store([(1, 1)]), "a row was stored without an index")
    unlink(flag)
    try require(try prototype.store([(1, 1)]), "no index was made when there was space")
    close(open(flag, O_CREAT | O_RDWR, 0o600))
    var key: UInt64 = 2
    while try prototype.store([(key, 1)]) { key += 1 }
    let cellCount = prototype.file.current?.cellCount ?? 0
    try require(key > UInt64(cellCount * 7 / 10), "the index was full at \(key) rows of \(cellCount) cells")
    if let wrong = try prototype.findWrongLookup(keyCount: key, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure(wrong)
    }
    unlink(flag)
    try require(try prototype.store([(key, 1)]), "the index did not grow when there was space")
    if let wrong = try prototype.findWrongLookup(keyCount: key + 1, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure(wrong)
    }
    return "storing refused at \(key) rows in \(cellCount) cells"
  }

  private func forked() throws -> String {
    makeDirectory(work)
    let prototype = try IndexPrototype(directory: work)
    for key in 0..<100 as Range<UInt64> { _ = try prototype.store([(key, 1)]) }
    typealias Fork = @convention(c) () -> pid_t
    let child = unsafeBitCast(dlsym(nil, "fork"), to: Fork.self)()
    if child == 0 {
      // The child can read the index; LMDB refuses everything else.
      var matches = prototype.file.current?.matches(of: prototype.digest(7))
      guard let match = matches?.next() else { _exit(1) }
      prototype.file.current?.recordUse(of: match)
      do {
        _ = try prototype.store([(7, 2)])
        _exit(2)
      } catch {
        _exit(error.code == .forked ? 0 : 3)
      }
    }
    var status: CInt = -1
    waitpid(child, &status, 0)
    try require(status == 0, "the forked child exited with status \(status)")
    for key in 0..<500 as Range<UInt64> { _ = try prototype.store([(key, 2)]) }
    if let wrong = try prototype.findWrongLookup(keyCount: 500, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure(wrong)
    }
    return "the child can read and cannot write"
  }
}

struct IndexFailure: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

/// Throws an `IndexFailure` unless the condition is true.
func require(_ condition: Bool, _ failure: String) throws {
  if !condition { throw IndexFailure(failure) }
}
