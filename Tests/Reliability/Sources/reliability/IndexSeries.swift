import FoundationEssentials
import Glibc
import LMDB

/// A process that changes the index is killed at every step, and the index file is put through what a power cut may leave of
/// it. Lookups must find the newest committed version or nothing, and the index must become exact again.
struct IndexSeries {
  let setting: Setting
  let directory: String

  private var base: String { directory + "/base" }
  private var work: String { directory + "/work" }

  func run() -> Bool {
    makeDirectory(directory)
    var isGood = true
    for scenario in IndexScenario.allCases {
      isGood = report("killed at each step of: \(scenario.rawValue)") { try killAtEachStep(scenario) } && isGood
    }
    isGood = report("strange files", strangeFiles) && isGood
    isGood = report("a full file system", fullFileSystem) && isGood
    isGood = report("forked", forked) && isGood
    let seconds = setting.isQuick ? 5.0 : 60
    return report("two writers, killed at random, and two readers") {
      try IndexCrowd(directory: directory + "/crowd").run(seconds: seconds, seed: setting.seed)
    } && isGood
  }

  private func report(_ name: String, _ body: () throws -> String) -> Bool {
    do {
      setting.report("index: \(name)", "\(try body()): all well")
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
    // A short run takes a share of the steps, another one with each seed.
    let stride = setting.isQuick ? 17 : 1
    var step = 1 + Int(setting.seed % UInt64(stride))
    var count = 0
    while true {
      try copyBase()
      // A process that lives on: it has the file mapped, and looks up before anybody writes again.
      let survivor = count % 2 == 0 ? try scenario.open(work, boot: scenario.firstBoot) : nil
      if let survivor { try require(try survivor.settle(), "the index cannot be opened") }
      let child = Child.start(["index", work, scenario.rawValue, "\(step)"], outputPath: directory + "/log")
      let end = child.wait()
      guard end == .exited(0) || end == .signalled(SIGKILL) else {
        throw IndexFailure("step \(step): the child \(end) \(child.output)")
      }
      do {
        if let survivor { try scenario.check(survivor, isSettled: false) }
        try scenario.check(try survivor ?? scenario.open(work, boot: scenario.lastBoot), isSettled: true)
      } catch {
        throw IndexFailure("step \(step): \(error)")
      }
      count += 1
      if end == .exited(0) { return "\(count) runs, the last one of \(step) steps whole" }
      step += stride
    }
  }

  private func copyBase() throws {
    makeDirectory(work)
    for name in ["data.mdb", IndexLayout.fileName] where access(base + "/" + name, F_OK) == 0 {
      try FileManager.default.copyItem(atPath: base + "/" + name, toPath: work + "/" + name)
    }
  }

  // MARK: What a power cut may leave

  private func strangeFiles() throws -> String {
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
    let slots = IndexLayout.byteCount(slotCount: 512) - 16 * (512 + IndexLayout.maximumProbeLength)
    var kinds: [(name: String, bytes: [UInt8]?, boot: Boot, isSuspect: Bool)] = [
      ("no file", nil, .current, true), ("an empty file", [], .current, true),
      ("a short file", Array(newer.prefix(10)), .current, true),
      ("half a file", Array(newer.prefix(newer.count / 2)), .current, true),
      ("zeros", newer.map { _ in 0 }, .current, true), ("noise", noise, .current, true),
      // A copy that was put back while the machine ran: the number of the last transaction tells.
      ("an older copy of this boot", older, .current, true), ("the same file", newer, .current, false),
      ("the same file after a power cut", newer, rebooted, true),
      ("an older copy after a power cut", older, rebooted, true),
      (
        "noise behind a good header, after a power cut", Array(newer.prefix(4096)) + noise.dropFirst(4096), rebooted,
        true
      ),
      // Nothing can tell these; lookups must be right even so.
      ("noise in the slots", Array(newer.prefix(slots)) + noise.dropFirst(slots), .current, false),
      ("noise in the count", Array(newer.prefix(128)) + noise[128..<136] + newer.dropFirst(136), .current, false),
      ("zeros in the slots", Array(newer.prefix(slots)) + newer.dropFirst(slots).map { _ in 0 }, .current, false),
    ]
    for page in 0..<newer.count / 4096 {
      let torn =
        newer.prefix(4096 * page) + older.dropFirst(4096 * page).prefix(4096) + newer.dropFirst(4096 * (page + 1))
      kinds.append(
        ("page \(page) of an older time, after a power cut", Array(torn.prefix(newer.count)), rebooted, true))
    }
    for kind in kinds {
      do {
        try copyBase()
        unlink(path)
        if let bytes = kind.bytes { try Data(bytes).write(to: URL(filePath: path)) }
        let prototype = try scenario.open(work, boot: kind.boot)
        try require(try prototype.settle(), "the index cannot be opened")
        try require(prototype.file.current?.isComplete != kind.isSuspect, "it was taken for a good one, or a bad one")
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

  /// A file that was closed cleanly is good after a reboot, unless the data has changed since.
  private func cleanFiles(_ scenario: IndexScenario, older: [UInt8], rebooted: Boot) throws {
    try copyBase()
    try {
      let prototype = try scenario.open(work)
      _ = try prototype.settle()
      try require(try prototype.markClean(), "it cannot be marked as clean")
    }()
    let path = URL(filePath: work + "/" + IndexLayout.fileName)
    let clean = try Data(contentsOf: path)
    do {
      let prototype = try scenario.open(work, boot: rebooted)
      try require(try prototype.settle(), "the index cannot be opened")
      try require(prototype.file.current?.isComplete == true, "a clean file is not taken")
      try scenario.check(prototype, isSettled: true)
      _ = try prototype.store([(3, 1_000_000)])
    }
    try clean.write(to: path)
    let prototype = try scenario.open(work, boot: Boot(high: 5, low: 6))
    _ = try prototype.settle()
    try require(prototype.file.current?.isComplete == false, "a file is taken that was clean before the data changed")
    try scenario.check(prototype, isSettled: true)
  }

  private func fullFileSystem() throws -> String {
    makeDirectory(work)
    // As `posix_fallocate` answers: the flag is a file, since the closure is the process's.
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
    let slotCount = prototype.file.current?.slotCount ?? 0
    try require(key > UInt64(slotCount * 7 / 10), "the index was full at \(key) rows of \(slotCount) slots")
    if let wrong = try prototype.findWrongLookup(keyCount: key, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure(wrong)
    }
    unlink(flag)
    try require(try prototype.store([(key, 1)]), "the index did not grow when there was space")
    if let wrong = try prototype.findWrongLookup(keyCount: key + 1, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure(wrong)
    }
    return "refused at \(key) rows of \(slotCount) slots"
  }

  private func forked() throws -> String {
    makeDirectory(work)
    let prototype = try IndexPrototype(directory: work)
    for key in 0..<100 as Range<UInt64> { _ = try prototype.store([(key, 1)]) }
    typealias Fork = @convention(c) () -> pid_t
    let child = unsafeBitCast(dlsym(nil, "fork"), to: Fork.self)()
    if child == 0 {
      // The index can be read, and LMDB refuses everything else.
      var matches = prototype.file.current?.matches(of: prototype.digest(7))
      guard let match = matches?.next() else { _exit(1) }
      prototype.file.current?.noteUse(of: match)
      do {
        _ = try prototype.store([(7, 2)])
        _exit(2)
      } catch {
        _exit(error.code == .forked ? 0 : 3)
      }
    }
    var status: CInt = -1
    waitpid(child, &status, 0)
    try require(status == 0, "the forked child ended with \(status)")
    for key in 0..<500 as Range<UInt64> { _ = try prototype.store([(key, 2)]) }
    if let wrong = try prototype.findWrongLookup(keyCount: 500, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure(wrong)
    }
    return "a child reads, and cannot write"
  }
}

struct IndexFailure: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

func require(_ isRight: Bool, _ otherwise: String) throws {
  if !isRight { throw IndexFailure(otherwise) }
}
