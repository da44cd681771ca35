import Foundation
import Glibc
import HTTPCaching
import LMDB
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Opening after a crash")
struct OpeningAfterCrashTests {
  private static let capacity = 48 << 20

  private static func url(_ number: Int) -> String { "http://a.example/\(number)" }

  /// Returns a closed store with `count` responses of 15 pages each.
  private func filledFixture(count: Int) throws -> StoreFixture {
    let fixture = try StoreFixture(capacity: Self.capacity)
    let body = pseudorandomData(60_000, seed: 1)
    for number in 0..<count {
      fixture.store.store(fixture.response(Self.url(number), body: body))
      fixture.store.writePending()
    }
    fixture.drain()
    #expect(fixture.store.entryCount == UInt64(count))
    fixture.close()
    return fixture
  }

  /// Lets a child process open the store and be killed, optionally in a read transaction.
  private func killChild(_ directory: String, inTransaction: Bool) async {
    await #expect(processExitsWith: .signal(SIGKILL)) {
      [directory = directory as String, inTransaction = inTransaction as Bool] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: Self.capacity))
      if inTransaction {
        _ = store.withResponse(RequestKey(urlString: Self.url(0))!) { _ in kill(getpid(), SIGKILL) }
      }
      kill(getpid(), SIGKILL)
    }
  }

  /// Returns the number of bytes that a child process reads to open the store; the child does not close it.
  private func byteCountOfOpening(_ directory: String) async throws -> Int {
    await #expect(processExitsWith: .signal(SIGKILL)) { [directory = directory as String] in
      func readByteCount() -> Int {
        let text = (try? String(contentsOfFile: "/proc/self/io", encoding: .utf8)) ?? ""
        return text.split(separator: "\n").first.flatMap { Int($0.dropFirst("rchar: ".count)) } ?? -1
      }
      let before = readByteCount()
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: Self.capacity))
      let after = readByteCount()
      guard before >= 0, store.lookup(RequestKey(urlString: Self.url(0))!) != nil else { exit(2) }
      try "\(after - before)".write(toFile: directory + ".read", atomically: false, encoding: .utf8)
      kill(getpid(), SIGKILL)
    }
    defer { unlink(directory + ".read") }
    return try #require(Int(String(contentsOfFile: directory + ".read", encoding: .utf8)))
  }

  private func isUnchecked(_ store: ResponseStore) -> Bool { store.checker.isUnchecked.load(ordering: .relaxed) }

  @Test(
    "After a kill, opening a store with four times as many responses reads no more bytes", arguments: [false, true])
  func constant(inTransaction: Bool) async throws {
    var byteCounts: [Int] = []
    for count in [150, 600] {
      let fixture = try filledFixture(count: count)
      defer { fixture.finish() }
      await killChild(fixture.directory, inTransaction: inTransaction)
      byteCounts.append(try await byteCountOfOpening(fixture.directory))
      try fixture.open()
      #expect(fixture.store.entryCount == UInt64(count))
      #expect(fixture.body(Self.url(count - 1))?.count == 60_000)
      // Only a process that ended in a transaction may have crashed because of the data.
      #expect((fixture.store.context.storeDirectory.integrityCheckReason != nil) == inTransaction)
      #expect(isUnchecked(fixture.store) == inTransaction)
      fixture.drain()
      #expect(fixture.store.context.storeDirectory.integrityCheckReason == nil)
      #expect(!isUnchecked(fixture.store))
    }
    #expect(abs(byteCounts[1] - byteCounts[0]) < 64 << 10, "\(byteCounts)")
  }

  @Test("Commits of other processes during a page check cause no failure and lose no writes")
  func commitsOfOthers() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let file = fixture.store.context.database
    for number in 0..<1000 { fixture.store.store(fixture.response(Self.url(number))) }
    fixture.drain()
    fixture.store.checker.isUnchecked.store(true, ordering: .relaxed)
    let isDone = Monitor(false)
    let committer = Thread {
      while !isDone.withLock({ $0 }) {
        // A commit may fail; the next one follows.
        try? file.write { (transaction) throws(LMDBError) in
          try file.setCounters(try file.counters(in: transaction), in: transaction)
        }
      }
      isDone.update { $0 = false }
    }
    committer.start()
    let body = Data("newer".utf8)
    for number in 0..<1000 { fixture.store.store(fixture.response(Self.url(number), body: body)) }
    fixture.drain()
    let foundCount = (0..<1000).count { fixture.body(Self.url($0)) == body }
    isDone.update { $0 = true }
    isDone.wait { $0 ? nil : () }
    #expect(fixture.store.statistics.droppedWrites == 0 && foundCount == 1000)
    #expect(fixture.logged.all == [])
    fixture.store.checker.isUnchecked.store(false, ordering: .relaxed)
  }

  /// Zeroes leaf pages with request keys. With `inner`, leaves the first and last ones of each table, which opening
  /// checks.
  private func zeroLeaves(in fixture: StoreFixture, inner: Bool) throws {
    let path = fixture.path("data.mdb")
    let pages = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))
    func number(_ offset: Int) -> Int { Int(pages[offset]) + Int(pages[offset + 1]) << 8 }
    var leaves: [Bool: [(page: Int, firstKey: [UInt8])]] = [:]
    for page in stride(from: 2 * 4096, to: pages.count, by: 4096) where number(page + 10) == 2 {
      // The bytes between the node list and the nodes are left over from liblmdb's memory.
      let nodes = Data(pages[(page + min(number(page + 14), 4096))..<(page + 4096)])
      guard nodes.range(of: Data("a.example".utf8)) != nil else { continue }
      let node = page + number(page + 16)
      let key = pages[(node + 8)..<(node + 8 + number(node + 6))]
      leaves[key.count == 8, default: []].append((page, Array(key)))
    }
    let descriptor = open(path, O_RDWR)
    defer { close(descriptor) }
    let zeros = [UInt8](repeating: 0, count: 4096)
    var count = 0
    for table in leaves.values {
      let inOrder = table.sorted { $0.firstKey.lexicographicallyPrecedes($1.firstKey) }
      // Some pages are older versions of others.
      let keys = inOrder.map(\.firstKey)
      let outer = keys.prefix(3) + keys.suffix(3)
      for leaf in inOrder where !inner || !outer.contains(leaf.firstKey) {
        #expect(pwrite(descriptor, zeros, zeros.count, off_t(leaf.page)) == zeros.count)
        count += 1
      }
    }
    #expect(count > 0)
  }

  @Test(
    "During the check of a large file a lookup that reads a broken page misses, and the next open recreates the store")
  func checkedLookups() async throws {
    let fixture = try filledFixture(count: 150)
    defer { fixture.finish() }
    await killChild(fixture.directory, inTransaction: true)
    try zeroLeaves(in: fixture, inner: true)
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: Self.capacity))
      // liblmdb would crash on a zeroed page.
      for number in 0..<150 {
        let found = store.lookup(RequestKey(urlString: Self.url(number))!)
        guard found == nil || found?.body.count == 60_000 else { exit(2) }
      }
      guard store.hasFailed else { exit(3) }
      for number in 0..<150 { store.store(childResponse(Self.url(number))) }
      while store.writePending() {}
    }
    try fixture.open()
    for number in 0..<150 { #expect(fixture.body(Self.url(number)) == nil) }
    fixture.store.store(fixture.response(Self.url(0)))
    fixture.drain()
    #expect(fixture.body(Self.url(0)) != nil)
    #expect(FileManager.default.fileExists(atPath: fixture.path("data.mdb.damaged")))
  }

  @Test("The background check finds broken pages that no lookup has read, and the store fails")
  func background() async throws {
    let fixture = try filledFixture(count: 150)
    defer { fixture.finish() }
    await killChild(fixture.directory, inTransaction: true)
    try fixture.open()
    #expect(fixture.store.entryCount == 150)
    try zeroLeaves(in: fixture, inner: true)
    fixture.drain()
    #expect(fixture.store.hasFailed)
    try fixture.reopen()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("An unfinished check is continued by the next process, and by another one if the checking process ends")
  func continued() async throws {
    let fixture = try filledFixture(count: 150)
    defer { fixture.finish() }
    await killChild(fixture.directory, inTransaction: true)
    try fixture.open()
    fixture.store.maintain()
    try fixture.reopen()
    #expect(fixture.store.context.storeDirectory.integrityCheckReason != nil)
    // Pretend that another process was checking and has ended.
    let flag = try #require(fixture.store.context.storeDirectory.statusPage)
    #expect(flag.replaceChecker(UInt64(getpid()), with: 1))
    #expect(!fixture.store.context.storeDirectory.claimCheck())
    #expect(flag.replaceChecker(1, with: 1 << 22 + 1))
    #expect(fixture.store.context.storeDirectory.claimCheck())
    fixture.drain()
    #expect(fixture.store.context.storeDirectory.integrityCheckReason == nil)
    try fixture.reopen()
    #expect(fixture.store.context.storeDirectory.integrityCheckReason == nil)
    #expect(fixture.body(Self.url(149)) != nil)
  }

  @Test("After a reboot the pages that lead to records are checked", arguments: [false, true])
  func anotherBoot(isBroken: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<40 { fixture.store.store(fixture.response(Self.url(number))) }
    fixture.drain()
    try #require(fixture.store.context.storeDirectory.statusPage)[.bootHigh] += 1
    fixture.close()
    if isBroken { try zeroLeaves(in: fixture, inner: false) }
    try fixture.open()
    #expect(fixture.store.entryCount == (isBroken ? 0 : 40))
    #expect(fixture.logged.all.contains { $0.contains("the machine has restarted") } == isBroken)
    let count = fixture.logged.all.count
    try fixture.reopen()
    #expect(fixture.store.entryCount == (isBroken ? 0 : 40))
    #expect(fixture.logged.all.count == count)
  }
}
