import FoundationEssentials
import Glibc
import ResponseStore
import StoreContract

/// Tests failing and full disks, and a directory that is deleted while it is open.
struct DiskFaults {
  let setting: RunConfiguration
  let directory: String

  func run() -> Bool {
    var isGood = failingWrites()
    isGood = fullDisk() && isGood
    return vanishedDirectory() && isGood
  }

  /// Makes writes and syncs of a process fail, starting at different operations: once, four times, or permanently.
  private func failingWrites() -> Bool {
    var isGood = true
    var cases = 0
    var logged = 0
    for number in stride(from: 0, to: setting.isQuick ? 60 : 240, by: setting.isQuick ? 9 : 3) {
      for (count, code) in [(1, EIO), (4, ENOSPC), (1_000_000, EIO)] {
        cases += 1
        makeDirectory(directory + "/eio")
        let ledger = Ledger(path: directory + "/eio/ledger", keyCount: KillSeries.keyCount)
        (ledger.isEvicting, ledger.isFaulty) = (true, true)
        let store = [
          directory + "/eio/store", directory + "/eio/ledger", "\(KillSeries.keyCount)", "\(8 << 20)",
        ]
        let (end, output) = Child.run(
          ["failing-disk"] + store, outputPath: directory + "/eio/log",
          environment: [
            "LD_PRELOAD": setting.recorder, "RECORDER_FAIL": "\(number)", "RECORDER_FAIL_COUNT": "\(count)",
            "RECORDER_ERRNO": "\(code)",
          ])
        if output.contains("LMDBURLCache:") || output.contains("cannot be opened") { logged += 1 }
        // Without injected errors the store must work again.
        let (second, checked) = Child.run(["check"] + store, outputPath: directory + "/eio/check")
        if end != .exited(0) || second != .exited(0) {
          isGood = false
          say(
            "damage: errno \(code) from operation \(number), \(count) times: \(end), then \(second)\n"
              + "\(output)\(checked)")
        }
      }
    }
    setting.report(
      "damage: EIO and ENOSPC",
      "\(cases) runs with injected errors, \(logged) of them logged by the store: \(isGood ? "OK" : "FAILED")")
    return isGood
  }

  /// Fills a small tmpfs with another file.
  private func fullDisk() -> Bool {
    let disk = directory + "/disk"
    makeDirectory(disk)
    guard mount("tmpfs", disk, "tmpfs", 0, "size=6m") == 0 else {
      setting.report("damage: full disk", "skipped, because mounting a tmpfs requires root")
      return true
    }
    defer { umount2(disk, 2) }
    let (end, output) = Child.run(["full-disk", disk], outputPath: directory + "/full.log")
    let isGood = end == .exited(0)
    setting.report(
      "damage: full disk", isGood ? "\(output.split(separator: "\n").last ?? ""): OK" : "FAILED \(end) \(output)")
    return isGood
  }

  private func vanishedDirectory() -> Bool {
    let (end, output) = Child.run(["vanish", directory + "/vanish"], outputPath: directory + "/vanish.log")
    let isGood = end == .exited(0)
    setting.report(
      "damage: directory deleted while open",
      isGood ? "the store failed and was recreated in the same process: OK" : "FAILED \(end) \(output)")
    return isGood
  }
}

extension Scenarios {
  /// Uses a store on a failing disk; found responses must be correct, and removed ones must not reappear.
  static func failingDisk(_ directory: String, ledgerPath: String, keyCount: Int, capacity: Int) {
    let ledger = Ledger(path: ledgerPath, keyCount: keyCount)
    let content = Content(keyCount: keyCount, hostCount: Worker.hostCount, capacity: capacity)
    let store: ResponseStore
    do {
      store = try Worker.open(directory, capacity: capacity, ledger: ledger)
    } catch {
      say("cannot be opened: \(error)")
      return
    }
    for round in 0..<4 {
      for key in round * 60..<(round * 60 + 60) {
        ledger.store(key, in: store, content)
      }
      do throws(StoreError) { try store.flush() } catch { say("flush: \(error)") }
      for removed in stride(from: round * 60, to: round * 60 + 60, by: 7) {
        ledger.purge(by: 0, isSoft: false, covers: { $0 == removed }) {
          store.remove(content.requestKey(removed))
          return true
        }
      }
      for key in 0..<(round * 60 + 60) { ledger.check(key, content) { store.lookup(content.requestKey(key)) } }
    }
    store.close()
  }

  static func fullDisk(_ disk: String) throws(StoreError) {
    let content = Content(keyCount: 1000, hostCount: 1, capacity: 16 << 20)
    let store = try ResponseStore.open(directory: disk + "/store", options: options(16 << 20))
    for key in 0..<100 { store.store(content.response(key, version: 1, at: Ledger.date(1))) }
    try store.flush()
    let ballast = open(disk + "/ballast", O_WRONLY | O_CREAT, 0o600)
    let block = [UInt8](repeating: 1, count: 4096)
    while write(ballast, block, block.count) > 0 {}
    for key in 100..<400 { store.store(content.response(key, version: 1, at: Ledger.date(1))) }
    do throws(StoreError) { try store.flush() } catch { say("flush: \(error)") }
    let dropped = store.statistics.droppedWrites
    expect(dropped > 0, "no write was dropped on a full disk")
    let kept = (0..<100).filter { store.lookup(content.requestKey($0)) != nil }.count
    expect(kept > 50, "reads do not continue")
    store.remove(.urlPrefix(content.prefixURL(host: 0, prefix: 1))!)
    for key in 0..<400 where content.prefix(of: key) == 1 {
      expect(store.lookup(content.requestKey(key)) == nil, "a response removed on a full disk was found")
    }
    unlink(disk + "/ballast")
    close(ballast)
    if store.statistics.entryCount > 0 {
      for key in 500..<600 { store.store(content.response(key, version: 1, at: Ledger.date(1))) }
      try store.flush()
      let stored = (500..<600).filter { store.lookup(content.requestKey($0)) != nil }.count
      expect(stored == 100, "storing does not resume when space is available")
      expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
    }
    say(
      "\(dropped) of 300 writes dropped while full, \(kept) of 100 responses still readable, a removal took effect, "
        + "storing resumed with free space")
  }

  static func vanish(_ directory: String) throws(StoreError) {
    let content = Content(keyCount: 200, hostCount: 1, capacity: 8 << 20)
    do {
      let store = try ResponseStore.open(directory: directory, options: options(8 << 20))
      for key in 0..<100 { store.store(content.response(key, version: 1, at: Ledger.date(1))) }
      try store.flush()
      removeTree(directory)
      for key in 100..<200 { store.store(content.response(key, version: 1, at: Ledger.date(1))) }
      do throws(StoreError) { try store.flush() } catch { say("flush: \(error)") }
      expect(store.hasFailed, "the store did not fail")
      for key in 0..<200 { expect(store.lookup(content.requestKey(key)) == nil, "a failed store returned a response") }
      store.remove(.everything)
      _ = store.statistics
      let reopened = try ResponseStore.open(directory: directory, options: options(8 << 20))
      expect(reopened !== store, "opening the recreated directory returned the old store")
      reopened.store(content.response(1, version: 1, at: Ledger.date(1)))
      try reopened.flush()
      expect(reopened.lookup(content.requestKey(1)) != nil, "the recreated store does not store")
      reopened.close()
      store.close()
    }
    let again = try ResponseStore.open(directory: directory, options: options(8 << 20))
    expect(again.lookup(content.requestKey(1)) != nil, "a response in the recreated store was lost")
  }

  /// Fills a store with responses of all sizes and closes it.
  static func fill(_ directory: String, ledgerPath: String, keyCount: Int, capacity: Int) throws(StoreError) {
    let ledger = Ledger(path: ledgerPath, keyCount: keyCount)
    let content = Content(keyCount: keyCount, hostCount: Worker.hostCount, capacity: capacity)
    let store = try Worker.open(directory, capacity: capacity, ledger: ledger)
    for key in 0..<keyCount {
      ledger.store(key, in: store, content)
      if key % 100 == 99 { store.remove(content.requestKey(key - 50)) }
    }
    try store.flush()
    store.close()
  }
}
