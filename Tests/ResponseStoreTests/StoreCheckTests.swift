import Foundation
import HTTPCaching
import LMDB
import Testing

// Breaks each invariant, which no operation of a store does.
@testable import ResponseStore

@Suite("Check of a whole store", .endsFixtures)
struct StoreCheckTests {
  /// An inconsistency in one table, and the violation that the check reports.
  enum Damage: String, CaseIterable, Sendable {
    case missingDate, strayDate, foreignDate, missingCell, strayCell, strayChunk
    case missingChunk, head
    case body, entryCount, payload

    var violation: String {
      switch self {
      case .missingDate: "has no date"
      case .strayDate: "dates and"
      case .foreignDate: "names another key"
      case .missingCell: "is not in the index under its key"
      case .strayCell: "The index has"
      case .strayChunk: "1 chunks belong to no record"
      case .missingChunk: "is incomplete"
      case .head: "is malformed or does not match its checksum"
      case .body: "does not match its checksum"
      case .entryCount: "The counters say 7 entries, there are 40"
      case .payload: "The counters say 7 bytes"
      }
    }
  }

  private func filled(_ count: Int = 40) throws -> StoreFixture {
    let fixture = try StoreFixture()
    for number in 0..<count {
      let body = pseudorandomData(number.isMultiple(of: 4) ? 30_000 : 300, seed: UInt64(number))
      fixture.store.store(fixture.response("http://a.example/\(number)", body: body))
      fixture.clock.advance(by: 1)
    }
    fixture.drain()
    return fixture
  }

  private func inflict(_ damage: Damage, on file: RecordDatabase, row: UInt64, key: [UInt8]) throws {
    let stray = DateKey(time: SortableTimestamp.encode(Date(timeIntervalSince1970: 1_900_000_000)), rowID: 99_999)
    let index = try #require(file.index.current)
    try file.write { (transaction) throws(LMDBError) in
      let head = try file.head(row, in: transaction) ?? []
      let time = head.withUnsafeBytes { RecordHeaderView($0).map { SortableTimestamp.encode($0.updatedAt) } ?? 0 }
      switch damage {
      case .missingDate:
        try file.dates.remove(DateKey(time: time, rowID: row), in: transaction)
      case .strayDate: try file.dates.put(1 << 24, for: stray, in: transaction)
      case .foreignDate:
        try file.dates.put(1 << 24, for: DateKey(time: time, rowID: row), in: transaction)
      case .missingCell: index.remove(tag: IndexEntry.tag(of: file.keyDigest(of: key)), rowID: row)
      case .strayCell: _ = index.insert(IndexEntry(digest: 77, hostDigest: 0, rowID: 99_999, byteCount: 1000))
      case .strayChunk: try file.bodies.put([1], for: ChunkKey(bodyID: 99_999, index: 3), in: transaction)
      case .missingChunk: try file.bodies.remove(ChunkKey(bodyID: row, index: 1), in: transaction)
      case .head:
        var head = head
        head[150] ^= 1
        try file.heads.put(head, for: row, in: transaction)
      case .body:
        var chunk = try file.bodies.value(for: ChunkKey(bodyID: row, index: 0), in: transaction) ?? []
        chunk[100] ^= 1
        try file.bodies.put(chunk, for: ChunkKey(bodyID: row, index: 0), in: transaction)
      case .entryCount, .payload:
        try file.change(in: transaction) {
          if damage == .entryCount { $0.counters.entryCount = 7 } else { $0.counters.payloadByteCount = 7 }
        }
      }
    }
  }

  @Test("Each violation is reported, and nothing else", arguments: Damage.allCases)
  func damage(damage: Damage) throws {
    let fixture = try filled()
    fixture.isChecked = false
    let url = "http://a.example/8"
    let row = try #require(fixture.store.lookup(fixture.key(url))).rowID
    #expect(fixture.store.checkInvariants() == [])
    try inflict(damage, on: fixture.store.context.database, row: row, key: fixture.key(url).bytes)
    let violations = fixture.store.verify().violations
    #expect(violations.contains { $0.contains(damage.violation) }, "\(violations)")
    let isAboutOthers = violations.contains { $0.contains("ow ") && !$0.contains("ow \(row)") && !$0.contains("99999") }
    #expect(!isAboutOthers, "\(violations)")
  }

  @Test(
    "While others write, every row is still checked in both directions",
    arguments: [Damage.missingDate, .strayDate, .strayCell, .entryCount])
  func damageWhileOthersWrite(damage: Damage) throws {
    let fixture = try filled(600)
    fixture.isChecked = false
    let url = "http://a.example/8"
    let row = try #require(fixture.store.lookup(fixture.key(url))).rowID
    if damage != .entryCount {
      try inflict(damage, on: fixture.store.context.database, row: row, key: fixture.key(url).bytes)
    }
    var count = 0
    let result = fixture.store.verify(maximumSnapshotAge: .zero) { _, _ in
      count += 1
      fixture.store.store(fixture.response("http://a.example/new\(count)"))
      fixture.store.writePending()
      if damage == .entryCount {
        #expect(throws: Never.self) {
          try inflict(damage, on: fixture.store.context.database, row: row, key: fixture.key(url).bytes)
        }
      }
    }
    #expect(count > 2)
    #expect(!result.hasComparedSums)
    let violation = damage == .entryCount ? "The counters say 7 entries, there are 60" : damage.violation
    #expect(result.violations.contains { $0.contains(violation) }, "\(result.violations)")
  }

  @Test("A consistent store passes while others write, and old snapshots are released")
  func renewsItsSnapshot() throws {
    let fixture = try filled(1000)
    let environment = fixture.store.context.database.environment
    var commits: [UInt64] = []
    let result = fixture.store.verify(maximumSnapshotAge: .zero) { _, _ in
      // The commit before the last one precedes the start of the current snapshot.
      if let last = commits.dropLast().last { #expect(environment.oldestReaderTransactionID() >= last) }
      fixture.store.store(fixture.response("http://b.example/\(commits.count)"))
      fixture.store.writePending()
      commits.append(environment.lastTransactionID)
    }
    #expect(commits.count > 3)
    #expect(result.violations == [])
    #expect(!result.hasComparedSums)
    #expect(result.entryCount > 1000)
  }

  @Test("Entries and bytes are counted as lookups find them, and progress reaches the end")
  func counts() throws {
    let fixture = try filled(600)
    var progress: [Int] = []
    let result = fixture.store.verify {
      progress.append($0)
      #expect($1 == 600)
    }
    #expect(result.violations == [])
    #expect(result.hasComparedSums)
    #expect(result.entryCount == 600)
    #expect(result.bodyByteCount == 150 * 30_000 + 450 * 300)
    #expect(progress == [0, 256, 512])
  }
}
