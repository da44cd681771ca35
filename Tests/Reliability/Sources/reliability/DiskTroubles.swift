import FoundationEssentials
import Glibc
import ResponseStore

/// Disks that fail or are full, and a directory that disappears.
struct DiskTroubles {
  let setting: Setting
  let directory: String

  func run() -> Bool {
    var isGood = failingWrites()
    isGood = fullDisk() && isGood
    return vanishedDirectory() && isGood
  }

  /// Each of the first writes and syncs fails in turn, once, four times, or for good.
  private func failingWrites() -> Bool {
    var isGood = true
    var cases = 0
    var logged = 0
    for number in stride(from: 0, to: setting.isQuick ? 60 : 240, by: setting.isQuick ? 9 : 3) {
      for (count, code) in [(1, EIO), (4, ENOSPC), (1_000_000, EIO)] {
        cases += 1
        makeDirectory(directory + "/eio")
        Ledger(path: directory + "/eio/ledger", keyCount: KillSeries.keyCount).isEvicting = true
        let store = [
          directory + "/eio/store", directory + "/eio/ledger", "\(KillSeries.keyCount)", "\(8 << 20)",
        ]
        let (end, output) = Child.run(
          ["trouble"] + store, outputPath: directory + "/eio/log",
          environment: [
            "LD_PRELOAD": setting.recorder, "RECORDER_FAIL": "\(number)", "RECORDER_FAIL_COUNT": "\(count)",
            "RECORDER_ERRNO": "\(code)",
          ])
        if output.contains("LMDBURLCache:") || output.contains("cannot be opened") { logged += 1 }
        // Without the failing disk it must go on, whatever the first one left.
        let (second, checked) = Child.run(["check"] + store, outputPath: directory + "/eio/check")
        if end != .exited(0) || second != .exited(0) {
          isGood = false
          say(
            "damage: errno \(code) from operation \(number), \(count) times: \(end), then \(second)\n\(output)\(checked)"
          )
        }
      }
    }
    setting.report(
      "damage: EIO and ENOSPC",
      "\(cases) cases by the shim, \(logged) of them met by the store and logged: \(isGood ? "all well" : "FAILED")")
    return isGood
  }

  /// A small tmpfs that another file fills.
  private func fullDisk() -> Bool {
    let disk = directory + "/disk"
    makeDirectory(disk)
    guard mount("tmpfs", disk, "tmpfs", 0, "size=6m") == 0 else {
      setting.report("damage: full disk", "skipped, as mounting a tmpfs takes root")
      return true
    }
    defer { umount2(disk, 2) }
    let (end, output) = Child.run(["full-disk", disk], outputPath: directory + "/full.log")
    let isGood = end == .exited(0)
    setting.report(
      "damage: full disk", isGood ? "\(output.split(separator: "\n").last ?? ""): all well" : "FAILED \(end) \(output)")
    return isGood
  }

  private func vanishedDirectory() -> Bool {
    let (end, output) = Child.run(["vanish", directory + "/vanish"], outputPath: directory + "/vanish.log")
    let isGood = end == .exited(0)
    setting.report(
      "damage: a directory that disappears while open",
      isGood ? "given up, and made anew in the same process: all well" : "FAILED \(end) \(output)")
    return isGood
  }
}

extension Scenes {
  /// Works a while on a disk that fails; what it finds must be right, and what was removed must not come back.
  static func trouble(_ directory: String, ledgerPath: String, keyCount: Int, capacity: Int) {
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
        let version = ledger.takeVersion()
        ledger[.started, key] = version
        store.store(content.response(key, version: version, at: Ledger.date(version)))
      }
      do throws(StoreError) { try store.flush() } catch { say("flush: \(error)") }
      for key in stride(from: round * 60, to: round * 60 + 60, by: 7) {
        store.remove(content.requestKey(key))
        ledger[.gone, key] = ledger[.started, key]
      }
      for key in 0..<(round * 60 + 60) {
        guard let found = store.lookup(content.requestKey(key)) else { continue }
        guard let version = content.version(of: found, key: key) else { fail("key \(key): a wrong response") }
        if version <= ledger[.gone, key] { fail("key \(key): what was removed is back") }
      }
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
    let dropped = store.statistics.droppedStores
    expect(dropped > 0, "nothing was dropped on a full disk")
    let kept = (0..<100).filter { store.lookup(content.requestKey($0)) != nil }.count
    expect(kept > 50, "reads do not go on")
    store.removeResponses(withPrefix: content.prefixURL(host: 0, prefix: 1))
    for key in 0..<400 where content.prefix(of: key) == 1 {
      expect(store.lookup(content.requestKey(key)) == nil, "what was removed on a full disk is there")
    }
    unlink(disk + "/ballast")
    close(ballast)
    if store.statistics.entryCount > 0 {
      for key in 500..<600 { store.store(content.response(key, version: 1, at: Ledger.date(1))) }
      try store.flush()
      let stored = (500..<600).filter { store.lookup(content.requestKey($0)) != nil }.count
      expect(stored == 100, "nothing is stored when there is room again")
      expect(store.checkInvariants().isEmpty, "\(store.checkInvariants())")
    }
    say("\(dropped) of 300 stores dropped while full, \(kept) of 100 read on, a removal held, stored again with room")
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
      expect(store.isGivenUp, "nobody has noticed")
      for key in 0..<200 { expect(store.lookup(content.requestKey(key)) == nil, "a response from nowhere") }
      store.removeAll()
      _ = store.statistics
      let anew = try ResponseStore.open(directory: directory, options: options(8 << 20))
      expect(anew !== store, "the directory that was made anew gave the old store")
      anew.store(content.response(1, version: 1, at: Ledger.date(1)))
      try anew.flush()
      expect(anew.lookup(content.requestKey(1)) != nil, "nothing is stored in the new directory")
      anew.close()
      store.close()
    }
    let again = try ResponseStore.open(directory: directory, options: options(8 << 20))
    expect(again.lookup(content.requestKey(1)) != nil, "what was stored in the new directory is gone")
  }

  /// Something of every size.
  static func fill(_ directory: String, ledgerPath: String, keyCount: Int, capacity: Int) throws(StoreError) {
    let ledger = Ledger(path: ledgerPath, keyCount: keyCount)
    let content = Content(keyCount: keyCount, hostCount: Worker.hostCount, capacity: capacity)
    let store = try Worker.open(directory, capacity: capacity, ledger: ledger)
    for key in 0..<keyCount {
      let version = ledger.takeVersion()
      ledger[.started, key] = version
      store.store(content.response(key, version: version, at: Ledger.date(version)))
      if key % 100 == 99 { store.remove(content.requestKey(key - 50)) }
    }
    try store.flush()
    store.close()
  }
}
