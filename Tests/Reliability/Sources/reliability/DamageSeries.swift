import FoundationEssentials
import Glibc
import StoreContract

/// Opens stores with corrupt, truncated and foreign files.
///
/// No start may return a wrong byte or trap in Swift code. After a failed store the next start must work, and after
/// three crashes in liblmdb the fourth. The series counts the runs without a log line.
struct DamageSeries {
  static let keyCount = 400
  static let capacity = 8 << 20
  let setting: RunConfiguration
  let directory: String
  var storePath: String { directory + "/store" }
  var dataPath: String { storePath + "/data-1/data.mdb" }

  private struct Tally {
    var cases = 0
    var starts = 0
    var crashes = 0
    var failures = 0
    var lostWrites = 0
    var unlogged = 0
    var isGood = true
  }

  func run() -> Bool {
    makeDirectory(directory)
    guard makeOriginal() else { return false }
    var isGood = true
    for (name, group) in [
      ("truncation", truncations), ("zeroed pages", zeroedPages), ("random bytes", randomBytes),
      ("foreign files", foreignFiles), ("lock file", lockFiles),
    ] as [(String, (inout Tally) -> Void)] {
      var tally = Tally()
      group(&tally)
      tally.isGood = tally.isGood && tally.cases > 0
      isGood = isGood && tally.isGood
      setting.report(
        "damage: \(name)",
        "\(tally.cases) runs, \(tally.starts) process starts; \(tally.crashes) crashes, "
          + "\(tally.failures) stores failed at run time, \(tally.lostWrites) lost new writes, "
          + "\(tally.unlogged) not logged: \(tally.isGood ? "OK" : "FAILED")")
    }
    return DiskFaults(setting: setting, directory: directory).run() && isGood
  }

  /// Creates a store with responses of all sizes and closes it normally.
  private func makeOriginal() -> Bool {
    let (end, output) = Child.run(
      ["fill", storePath, directory + "/ledger", "\(Self.keyCount)", "\(Self.capacity)"],
      outputPath: directory + "/log"
    )
    guard end == .exited(0), FileManager.default.contents(atPath: dataPath) != nil else {
      say("the store could not be filled: \(end) \(output)")
      return false
    }
    return rename(storePath, directory + "/original") == 0
  }

  private func restore() {
    removeTree(storePath)
    makeDirectory(storePath)
    makeDirectory(storePath + "/data-1")
    let names = [
      "data-1/data.mdb", "LMDBURLCache.store", "data-1/LMDBURLCache.removals", "data-1/LMDBURLCache.index",
      "users.lock", "data-1/lock.mdb", "LMDBURLCache.counters",
    ]
    for name in names {
      guard let data = FileManager.default.contents(atPath: directory + "/original/" + name) else { continue }
      DiskImage(bytes: [UInt8](data)).write(to: storePath + "/" + name)
    }
  }

  private var originalByteCount: Int {
    FileManager.default.contents(atPath: directory + "/original/data-1/data.mdb")?.count ?? 0
  }

  // MARK: One run

  private func attempt(_ name: String, _ tally: inout Tally, expectsRefusal: Bool = false, _ damage: () -> Void) {
    restore()
    damage()
    tally.cases += 1
    var logged = false
    for start in 1...4 {
      tally.starts += 1
      let (end, output) = Child.run(
        ["check", storePath, directory + "/ledger", "\(Self.keyCount)", "\(Self.capacity)", "damaged"],
        outputPath: directory + "/check.log")
      logged = logged || output.contains("LMDBURLCache:") || output.contains("LMDB:") || output.contains("cannot be")
      switch end {
      case .exited(0) where !expectsRefusal:
        if setting.isVerbose, start > 1 || !logged {
          say("damage: \(name): start \(start), \(logged ? "" : "un")logged")
        }
        if !logged { tally.unlogged += 1 }
        return
      case .exited(2) where expectsRefusal:
        return
      case .signaled(SIGBUS), .signaled(SIGSEGV), .signaled(SIGABRT), .signaled(SIGFPE):
        tally.crashes += 1
        if setting.isVerbose { say("damage: \(name): start \(start) \(end)\n\(output)") }
        if start < 4 { continue }
      case .exited(4):
        tally.failures += 1
        if start < 4 { continue }
      case .exited(5):
        // For example a leaf page whose keys are out of order, which nothing detects.
        tally.lostWrites += 1
        if setting.isVerbose { say("damage: \(name): start \(start) \(end)\n\(output)") }
        return
      default: break
      }
      tally.isGood = false
      say("damage: \(name): start \(start) \(end)\n\(output)")
      return
    }
  }

  private func overwrite(_ bytes: [UInt8], at offset: Int) {
    let descriptor = open(dataPath, O_RDWR)
    guard descriptor >= 0, pwrite(descriptor, bytes, bytes.count, off_t(offset)) == bytes.count else {
      fail("cannot damage \(dataPath)")
    }
    close(descriptor)
  }

  // MARK: Groups

  private func truncations(_ tally: inout Tally) {
    let pageCount = originalByteCount / 4096
    let step = setting.isQuick ? max(1, pageCount / 12) : 1
    for page in stride(from: 0, to: pageCount, by: step) {
      attempt("cut to \(page) pages", &tally) { truncate(dataPath, off_t(page * 4096)) }
    }
    for byteCount in [1, 100, 4095, 4248, originalByteCount - 1, originalByteCount / 2 + 77] {
      attempt("cut to \(byteCount) bytes", &tally) { truncate(dataPath, off_t(byteCount)) }
    }
  }

  private func zeroedPages(_ tally: inout Tally) {
    let pageCount = originalByteCount / 4096
    let step = setting.isQuick ? max(1, pageCount / 20) : 1
    for page in stride(from: 0, to: pageCount, by: step) {
      attempt("page \(page) zeroed", &tally) { overwrite([UInt8](repeating: 0, count: 4096), at: page * 4096) }
    }
  }

  private func randomBytes(_ tally: inout Tally) {
    let pageCount = originalByteCount / 4096
    for number in 0..<(setting.isQuick ? 25 : 600) {
      let seed = setting.seed &+ UInt64(number)
      var random = SeededRandom(seed)
      attempt("random bytes, seed \(seed)", &tally) {
        switch number % 3 {
        case 0:
          // A page of random bytes.
          let page = random.below(pageCount)
          overwrite((0..<4096).map { _ in UInt8(truncatingIfNeeded: random.next()) }, at: page * 4096)
        case 1:
          for _ in 0..<40 {
            overwrite([UInt8(truncatingIfNeeded: random.next())], at: random.below(originalByteCount))
          }
        default:
          // One byte in the header of a page, which LMDB interprets.
          let page = random.below(pageCount)
          overwrite([UInt8(truncatingIfNeeded: random.next())], at: page * 4096 + random.below(64))
        }
      }
    }
  }

  private func foreignFiles(_ tally: inout Tally) {
    func replace(_ bytes: [UInt8]) { DiskImage(bytes: bytes).write(to: dataPath) }
    let text = Array(String(repeating: "not a cache\n", count: 5000).utf8)
    let database = Array("SQLite format 3\0".utf8) + [UInt8](repeating: 0, count: 20_000)
    for (name, bytes) in [("text", text), ("SQLite", database), ("zeros", [UInt8](repeating: 0, count: 100_000))] {
      attempt("\(name) in the store's directory", &tally) { replace(bytes) }
      attempt("\(name) in another directory", &tally, expectsRefusal: true) {
        replace(bytes)
        unlink(storePath + "/LMDBURLCache.store")
      }
    }
    attempt("pages of 65536 bytes", &tally) {
      for meta in [0, 4096] { overwrite([0, 0, 1, 0], at: meta + 40) }
    }
    attempt("another version of LMDB", &tally) {
      for meta in [0, 4096] { overwrite([77, 3, 0, 0], at: meta + 20) }
    }
    attempt("a directory instead of the file", &tally, expectsRefusal: true) { makeDirectory(dataPath) }
    attempt("no file", &tally) { unlink(dataPath) }
  }

  private func lockFiles(_ tally: inout Tally) {
    let garbage = [UInt8]((0..<9000).map { UInt8(truncatingIfNeeded: SeededRandom.mixed($0)) })
    for name in [
      "data-1/lock.mdb", "users.lock", "data-1/LMDBURLCache.index", "data-1/LMDBURLCache.removals",
      "LMDBURLCache.counters", "LMDBURLCache.events",
    ] {
      attempt("no \(name)", &tally) { unlink(storePath + "/" + name) }
      attempt("an empty \(name)", &tally) { DiskImage().write(to: storePath + "/" + name) }
      attempt("garbage in \(name)", &tally) { DiskImage(bytes: garbage).write(to: storePath + "/" + name) }
    }
  }
}
