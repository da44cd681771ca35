import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

/// Corruption makes a lookup miss. It never brings back a removed or replaced response.
@Suite("A corrupt index")
struct CorruptIndexTests: NumberedResponses {
  private static let count = 40

  private func fixtureWithRecords() throws -> StoreFixture {
    let fixture = try fixture(withResponsesBelow: Self.count)
    fixture.drain()
    return fixture
  }

  private func indexFile(of fixture: StoreFixture) throws -> (bytes: Data, cells: Int) {
    let bytes = try Data(contentsOf: URL(fileURLWithPath: fixture.path(IndexLayout.fileName)))
    let cellCount = bytes.withUnsafeBytes {
      Int($0.load(fromByteOffset: 8 * IndexLayout.Word.cellCount, as: UInt64.self))
    }
    return (bytes, IndexLayout.pageByteCount + IndexLayout.journalByteCount(cellCount: cellCount))
  }

  /// Overwrites bytes of the file, which all processes see that have mapped it.
  private func write(_ bytes: [UInt8], at offset: Int, of fixture: StoreFixture) {
    let descriptor = open(fixture.path(IndexLayout.fileName), O_RDWR)
    defer { close(descriptor) }
    #expect(pwrite(descriptor, bytes, bytes.count, off_t(offset)) == bytes.count)
  }

  /// Zeros every second cell.
  private func loseCells(of fixture: StoreFixture) throws {
    let (bytes, first) = try indexFile(of: fixture)
    let cellByteCount = 8 * IndexLayout.wordsPerCell
    let end = first + IndexLayout.minimumCellCount * cellByteCount
    #expect(bytes.count > end)
    for offset in stride(from: first, to: end, by: 2 * cellByteCount) {
      write([UInt8](repeating: 0, count: cellByteCount), at: offset, of: fixture)
    }
  }

  /// When the cells are lost.
  enum Loss: CaseIterable {
    case inUse, whileClosed
    /// The store is closed and opened again afterwards.
    case beforeClosing
  }

  private func corruptFixture(_ loss: Loss) throws -> StoreFixture {
    let fixture = try fixtureWithRecords()
    if loss == .whileClosed { fixture.close() }
    try loseCells(of: fixture)
    if loss == .beforeClosing { fixture.close() }
    if loss != .inUse { try fixture.open() }
    return fixture
  }

  /// Replaces the index by an empty one, like a power failure, and rebuilds it.
  private func rebuildIndex(of fixture: StoreFixture) throws {
    try fixture.reopen()
    let database = fixture.store.context.database
    try database.write { (_) throws(LMDBError) in database.index.discard() }
    fixture.drain()
    #expect(database.isIndexComplete)
  }

  @Test("Purges cover responses whose cells are lost", arguments: ["host", "prefix", "key"], Loss.allCases)
  func purges(scope: String, loss: Loss) throws {
    let fixture = try corruptFixture(loss)
    defer { fixture.finish() }
    switch scope {
    case "host": fixture.store.remove(.host("host0.example"))
    case "prefix": fixture.store.remove(.urlPrefix(URL(string: "http://host0.example/")!)!)
    default: for number in stride(from: 0, to: Self.count, by: 2) { fixture.store.remove(fixture.key(url(number))) }
    }
    fixture.drain()
    #expect(fixture.store.entryCount == Self.count / 2)
    try rebuildIndex(of: fixture)
    for number in 0..<Self.count {
      #expect(text(number, in: fixture) == (number % 2 == 0 ? nil : "older"), "\(number)")
    }
  }

  @Test("Soft purges cover responses whose cells are lost", arguments: ["host", "key"], Loss.allCases)
  func softPurges(scope: String, loss: Loss) throws {
    let fixture = try corruptFixture(loss)
    defer { fixture.finish() }
    switch scope {
    case "host": fixture.store.softPurge(.host("host0.example"))
    default:
      for number in stride(from: 0, to: Self.count, by: 2) {
        fixture.store.softPurge(.key(fixture.key(url(number)).bytes))
      }
    }
    fixture.drain()
    try rebuildIndex(of: fixture)
    for number in 0..<Self.count {
      let response = try #require(fixture.store.lookup(fixture.key(url(number))))
      #expect(response.freshness.flags.contains(.softPurged) == (number % 2 == 0), "\(number)")
    }
  }

  @Test("New responses replace those whose cells are lost", arguments: Loss.allCases)
  func replacements(loss: Loss) throws {
    let fixture = try corruptFixture(loss)
    defer { fixture.finish() }
    // A clock that is set back has no influence.
    fixture.clock.advance(by: -10_000)
    for number in 0..<Self.count { store(number, "newer", in: fixture) }
    // Until the index is rebuilt, lookups miss what was stored before the corruption was found.
    for number in 0..<Self.count { #expect(text(number, in: fixture) != "older") }
    fixture.drain()
    for number in 0..<Self.count { #expect(text(number, in: fixture) == "newer", "\(number)") }
    try rebuildIndex(of: fixture)
    for number in 0..<Self.count { #expect(text(number, in: fixture) == "newer", "\(number)") }
    #expect(fixture.store.entryCount == Self.count)
  }

  @Test(
    "A rebuild does not bring back older responses if the cells of newer ones are lost meanwhile", arguments: [1, 2])
  func rebuilding(step: Int) throws {
    let fixture = try fixtureWithRecords()
    defer { fixture.finish() }
    let database = fixture.store.context.database
    try database.write { (_) throws(LMDBError) in database.index.discard() }
    for number in stride(from: 0, to: Self.count, by: step) { store(number, "newer", in: fixture) }
    // The first step meets the newer records. So only the index tells later steps that there are some.
    _ = try database.write { (transaction) throws(LMDBError) in
      try database.rebuildIndex(limit: Self.count / step, in: transaction)
    }
    try loseCells(of: fixture)
    func expectNoOlder() {
      for number in stride(from: 0, to: Self.count, by: step) { #expect(text(number, in: fixture) != "older") }
    }
    while fixture.store.maintain() { expectNoOlder() }
    fixture.drain()
    expectNoOlder()
    #expect(fixture.store.entryCount == Self.count)
    for number in 0..<Self.count { #expect(text(number, in: fixture) == (number % step == 0 ? "newer" : "older")) }
  }

  @Test("A corrupt index is found after opening, also if nothing is stored or removed")
  func opening() throws {
    let fixture = try corruptFixture(.whileClosed)
    defer { fixture.finish() }
    #expect((0..<Self.count).contains { text($0, in: fixture) == nil })
    fixture.drain()
    for number in 0..<Self.count { #expect(text(number, in: fixture) == "older") }
  }

  @Test(
    "A response that was discarded during a rebuild stays hidden if the word that announces its tombstone is corrupt")
  func lastTombstone() throws {
    let fixture = try fixtureWithRecords()
    defer { fixture.finish() }
    let database = fixture.store.context.database
    func rebuildStep() throws {
      _ = try database.write { (transaction) throws(LMDBError) in
        try database.rebuildIndex(limit: Self.count / 2, in: transaction)
      }
    }
    try database.write { (_) throws(LMDBError) in database.index.discard() }
    try rebuildStep()
    // From here on this process knows that there is no tombstone.
    let number = Self.count - 3
    #expect(text(number, in: fixture) == "older")
    fixture.store.discard(fixture.response(url(number)).response, for: fixture.key(url(number)))
    fixture.store.writePending()
    #expect(text(number, in: fixture) == nil)
    write([UInt8](repeating: 0, count: 16), at: 8 * IndexLayout.Word.lastTombstone, of: fixture)
    #expect(!database.isIndexComplete)
    #expect(text(number, in: fixture) == nil)
    fixture.drain()
    #expect(text(number, in: fixture) == nil)
    #expect(fixture.store.entryCount == Self.count - 1)
  }

  @Test("Random bytes of the file change while responses are stored and removed", arguments: 1...12)
  func randomChanges(seed: UInt64) throws {
    let log = LogLines()
    let fixture = try StoreFixture { $0.log = { log.append($0) } }
    defer { fixture.finish() }
    var random = SeededGenerator(seed: seed)
    var texts: [Int: String] = [:]
    for round in 0..<150 {
      let number = Int.random(in: 0..<Self.count, using: &random)
      switch Int.random(in: 0..<10, using: &random) {
      case 0:
        fixture.store.remove(.host("host\(number % 2).example"))
        for other in texts.keys where other % 2 == number % 2 { texts[other] = nil }
      case 1, 2:
        fixture.store.remove(fixture.key(url(number)))
        texts[number] = nil
      case 3:
        try fixture.reopen()
      case 4 where round > 20:
        // Not in the first words of the header, by which a process recognizes the file.
        let size = try indexFile(of: fixture).bytes.count
        let offset = Int.random(in: 24..<size - 256, using: &random)
        let count = Int.random(in: 1...256, using: &random)
        let isZero = Bool.random(using: &random)
        write((0..<count).map { _ in isZero ? 0 : .random(in: 0...255, using: &random) }, at: offset, of: fixture)
      case 5:
        fixture.drain()
      default:
        texts[number] = "\(round)"
        store(number, "\(round)", in: fixture)
      }
      if Bool.random(using: &random) { fixture.store.writePending() }
      for other in 0..<Self.count {
        let found = text(other, in: fixture)
        #expect(found == nil || found == texts[other], "seed \(seed), round \(round), response \(other)")
      }
    }
    fixture.drain()
    try rebuildIndex(of: fixture)
    for number in 0..<Self.count {
      let found = text(number, in: fixture)
      #expect(found == nil || found == texts[number], "seed \(seed), response \(number)")
    }
  }
}
