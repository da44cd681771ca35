import Foundation
import HTTPCaching
import LMDB
import Testing

// Whether the index is absent, complete, or of another boot.
@testable import ResponseStore

/// Without an index the disk tier is off, until one process has built the index in one go.
@Suite("Building an absent index", .endsFixtures)
struct IndexBuildTests: NumberedResponses {
  private static let count = 20

  private func file(of fixture: StoreFixture) -> IndexFile { fixture.store.context.database.index }

  private func number(of fixture: StoreFixture) -> UInt64 {
    fixture.store.context.storeDirectory.indexNumber.value
  }

  /// Expects a text or a miss for each response.
  private func expect(_ texts: (Int) -> String?, in fixture: StoreFixture) {
    for number in 0..<Self.count { #expect(text(number, in: fixture) == texts(number), "\(number)") }
  }

  @Test("Without an index lookups miss, writes wait in the queue, and removals stay in effect")
  func off() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    fixture.close()
    fixture.options.runsInBackground = true
    // Another process builds the index.
    let claim = try #require(IndexClaim(fixture))
    unlink(fixture.dataPath(IndexLayout.fileName))
    try fixture.open()
    #expect(file(of: fixture).isAbsent)
    expect({ _ in nil }, in: fixture)
    fixture.store.store(fixture.response(url(3), body: Data("newer".utf8)))
    fixture.store.store(fixture.response(url(30), body: Data("new".utf8)))
    fixture.store.remove(fixture.key(url(4)))
    fixture.store.discard(fixture.response(url(5)).response, for: fixture.key(url(5)))
    #expect(text(3, in: fixture) == "newer" && text(30, in: fixture) == "new")
    #expect(fixture.store.statistics.writes == 0)
    claim.end()
    try fixture.flush()
    expect({ $0 == 3 ? "newer" : [4, 5].contains($0) ? nil : "older" }, in: fixture)
    #expect(text(30, in: fixture) == "new" && fixture.store.statistics.droppedWrites == 0)
  }

  @Test("Without an index, a write that finds the queue full is dropped, and the response that it replaces is deleted")
  func fullQueue() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    fixture.close()
    fixture.options.runsInBackground = true
    fixture.options.queueByteCount = 10_000
    fixture.options.fullQueueTimeout = .milliseconds(1)
    let claim = try #require(IndexClaim(fixture))
    unlink(fixture.dataPath(IndexLayout.fileName))
    try fixture.open()
    let large = Data(repeating: 7, count: 4000)
    for number in 0..<4 { fixture.store.store(fixture.response(url(number), body: large)) }
    let dropped = (0..<4).filter { text($0, in: fixture) == nil }
    #expect(!dropped.isEmpty && fixture.store.statistics.droppedWrites == dropped.count)
    claim.end()
    try fixture.flush()
    for number in 0..<4 { #expect(fixture.body(url(number)) == (dropped.contains(number) ? nil : large)) }
    for number in 4..<Self.count { #expect(text(number, in: fixture) == "older") }
  }

  @Test("An index is used until the next boot")
  func boots() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    let first = number(of: fixture)
    try fixture.reopen()
    #expect(first != 0 && number(of: fixture) == first)
    fixture.store.context.storeDirectory.lockedStatusPage[.bootLow] ^= 1
    try fixture.reopen()
    #expect(number(of: fixture) != first && number(of: fixture) != 0)
    expect({ _ in "older" }, in: fixture)
  }

  enum Loss: CaseIterable {
    case missing, garbage, olderCopy, unfinishedFile
  }

  @Test("An index that is missing or of another moment is built again", arguments: Loss.allCases)
  func loss(_ loss: Loss) throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    let path = fixture.dataPath(IndexLayout.fileName)
    let older = try Data(contentsOf: URL(fileURLWithPath: path))
    for number in 0..<5 { store(number, "newer", in: fixture) }
    fixture.store.remove(fixture.key(url(9)))
    fixture.drain()
    fixture.close()
    switch loss {
    case .missing: unlink(path)
    case .garbage: try Data(repeating: 0x5a, count: 40_960).write(to: URL(fileURLWithPath: path))
    case .olderCopy: try older.write(to: URL(fileURLWithPath: path))
    case .unfinishedFile:
      unlink(path)
      try older.write(to: URL(fileURLWithPath: path + ".new"))
    }
    try fixture.open()
    expect({ $0 < 5 ? "newer" : $0 == 9 ? nil : "older" }, in: fixture)
    #expect(access(path + ".new", F_OK) != 0)
    #expect(fixture.store.entryCount == Self.count - 1)
    #expect(file(of: fixture).current?.recordCount == Self.count - 1)
  }

  @Test("A copy of a directory that is in use gets an index of its own")
  func copiedDirectory() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    let copy = fixture.directory + "-copy"
    try FileManager.default.copyItem(atPath: fixture.directory, toPath: copy)
    let other = try StoreFixture(directory: copy)
    #expect(number(of: other) != number(of: fixture))
    expect({ _ in "older" }, in: other)
  }

  @Test("If the process that builds the index is suspended, another one builds it after the stall timeout")
  func suspendedBuilder() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    fixture.close()
    fixture.options.stallTimeout = .milliseconds(50)
    let claim = try #require(IndexClaim(fixture))
    unlink(fixture.dataPath(IndexLayout.fileName))
    try fixture.open()
    expect({ _ in nil }, in: fixture)
    fixture.drain()
    expect({ _ in "older" }, in: fixture)
    claim.end()
  }

  @Test("Without space for an index the store misses and drops writes; it recovers when there is space")
  func noSpace() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    fixture.close()
    unlink(fixture.dataPath(IndexLayout.fileName))
    // Blocks the creation of the new file.
    let obstacle = fixture.dataPath(IndexLayout.fileName + ".new")
    try FileManager.default.createDirectory(atPath: obstacle, withIntermediateDirectories: false)
    try fixture.open()
    #expect(text(7, in: fixture) == nil)
    store(30, "refused", in: fixture)
    #expect(text(30, in: fixture) == nil)
    #expect(fixture.store.statistics.droppedWrites == 1)
    fixture.store.remove(fixture.key(url(8)))
    fixture.drain()
    #expect(fixture.logged.all.count { $0.contains("The index cannot be built") } == 1)
    try FileManager.default.removeItem(atPath: obstacle)
    fixture.drain()
    expect({ $0 == 8 ? nil : "older" }, in: fixture)
    store(30, "stored", in: fixture)
    #expect(text(30, in: fixture) == "stored")
  }

  @Test(
    "An inspection without an index finds the responses, and builds one for all only to purge",
    arguments: [false, true])
  func inspection(isPurging: Bool) throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    // The machine restarts.
    fixture.store.context.storeDirectory.lockedStatusPage[.bootLow] ^= 1
    fixture.close()
    let inspection = try ResponseStore.open(directory: fixture.directory, options: .existing)
    #expect(inspection.lookup(fixture.key(url(7)))?.body == Data("older".utf8))
    #expect(inspection.lookup(fixture.key(url(70))) == nil)
    // As a verification does in between.
    inspection.context.database.index.current?.releaseResidentPages()
    #expect(inspection.lookup(fixture.key(url(7)))?.body == Data("older".utf8))
    if isPurging {
      try inspection.removeOrThrow([fixture.key(url(7))], .removed)
      #expect(inspection.entryCount == Self.count - 1)
      #expect(inspection.lookup(fixture.key(url(7))) == nil && inspection.lookup(fixture.key(url(8))) != nil)
    }
    #expect(inspection.context.database.index.isAbsent != isPurging)
    inspection.close()
    try fixture.open()
    expect({ isPurging && $0 == 7 ? nil : "older" }, in: fixture)
  }
}
