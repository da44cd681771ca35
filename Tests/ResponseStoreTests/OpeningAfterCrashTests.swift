import CacheModel
import Foundation
import Glibc
import HTTPCaching
import LMDB
import ResponseStore
import Testing

@Suite("Opening after a crash", .endsFixtures)
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

  @Test(
    "After a kill, opening a store with four times as many responses reads no more bytes", arguments: [true])
  func constant(inTransaction: Bool) async throws {
    var byteCounts: [Int] = []
    for count in [50, 200] {
      let fixture = try filledFixture(count: count)
      await killChild(fixture.directory, inTransaction: inTransaction)
      byteCounts.append(try await byteCountOfOpening(fixture.directory))
      try fixture.open()
      #expect(fixture.store.entryCount == UInt64(count))
      #expect(fixture.body(Self.url(count - 1))?.count == 60_000)
    }
    #expect(abs(byteCounts[1] - byteCounts[0]) < 64 << 10, "\(byteCounts)")
  }

  /// Returns a closed store with one response.
  private func smallFixture() throws -> StoreFixture {
    let fixture = try StoreFixture(capacity: Self.capacity)
    fixture.store.store(fixture.response(Self.url(0)))
    fixture.drain()
    fixture.close()
    return fixture
  }

  @Test("After three processes in a row that ended within a transaction the store starts empty, and not after two")
  func killedInTransactions() async throws {
    let fixture = try smallFixture()
    for _ in 0..<2 { await killChild(fixture.directory, inTransaction: true) }
    try fixture.open()
    #expect(fixture.body(Self.url(0)) != nil)
    #expect(fixture.logged.all == [])
    fixture.close()
    for _ in 0..<3 { await killChild(fixture.directory, inTransaction: true) }
    try fixture.open()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.logged.all.count == 1)
    #expect(fixture.logged.all.first?.contains("three processes in a row") == true)
    fixture.store.store(fixture.response(Self.url(0)))
    fixture.drain()
    try fixture.reopen()
    #expect(fixture.body(Self.url(0)) != nil)
    #expect(fixture.logged.all.count == 1)
  }

  enum Interruption: String, CaseIterable, Sendable {
    case kill, inspection, minute
  }

  @Test(
    "A process that ends otherwise, or serves for a minute, resets the count of crashes; an inspection does not",
    arguments: Interruption.allCases)
  func interrupted(by interruption: Interruption) async throws {
    let fixture = try smallFixture()
    for _ in 0..<2 { await killChild(fixture.directory, inTransaction: true) }
    switch interruption {
    case .kill:
      await killChild(fixture.directory, inTransaction: false)
      await killChild(fixture.directory, inTransaction: true)
    case .inspection:
      var options = fixture.options
      options.opensExistingOnly = true
      try ResponseStore.open(directory: fixture.directory, options: options).close()
      await killChild(fixture.directory, inTransaction: true)
    case .minute:
      try fixture.open()
      fixture.store.serveForAMinute()
      fixture.close()
      #expect(StatusPage(directory: fixture.directory)[StatusPage.crashCount] == 0)
    }
    try fixture.open()
    #expect((fixture.body(Self.url(0)) != nil) == (interruption != .inspection))
  }

  @Test("A process that ends while it opens the data counts as a crash")
  func unfinishedOpening() throws {
    let fixture = try smallFixture()
    let page = StatusPage(directory: fixture.directory)
    for number in 1...3 {
      page[StatusPage.hasCrashed] = 1
      page[StatusPage.crashCount] = UInt64(number - 1)
      try fixture.open()
      #expect((fixture.body(Self.url(0)) != nil) == (number < 3))
      if number < 3 { #expect(page[StatusPage.hasCrashed] == 0) }
      fixture.close()
    }
    try fixture.open()
  }
}
