import CacheModel
import Foundation
import HTTPCaching
import LMDB
import Testing

// Rows and words to damage, at places that the format leaves open.
@testable import ResponseStore

@Suite("Corruption found at run time", .endsFixtures)
struct DamageTests {
  static let url = "http://a.example/"

  /// Flips a byte of the data file at an offset from `pattern`, without the store's knowledge.
  private func flip(_ pattern: Data, at offset: Int, in fixture: StoreFixture) throws {
    let path = fixture.dataPath("data.mdb")
    let position = try #require(try Data(contentsOf: URL(fileURLWithPath: path)).range(of: pattern)).lowerBound + offset
    let descriptor = open(path, O_RDWR)
    defer { close(descriptor) }
    var byte: UInt8 = 0
    #expect(pread(descriptor, &byte, 1, off_t(position)) == 1)
    byte ^= 0x10
    #expect(pwrite(descriptor, &byte, 1, off_t(position)) == 1)
  }

  enum Place: String, CaseIterable {
    case inlineBody, chunkedBody, fields, key, checksum, version
  }

  @Test(
    "A record that does not match its checksum is a miss, counted and logged once, and removed",
    arguments: Place.allCases)
  func flippedByte(place: Place) throws {
    let log = LogLines()
    let fixture = try StoreFixture { $0.log = { log.append($0) } }
    let body = pseudorandomData(place == .chunkedBody ? 100_000 : 300, seed: 77)
    fixture.store.store(
      fixture.response(Self.url, body: body, fields: HeaderFields([("X-Marked", "marked value")])))
    for number in 0..<20 { fixture.store.store(fixture.response("http://b.example/\(number)")) }
    fixture.drain()
    try fixture.reopen()
    let key = Data(fixture.key(Self.url).bytes)
    switch place {
    case .inlineBody, .chunkedBody: try flip(body.prefix(64), at: 20, in: fixture)
    case .fields: try flip(Data("marked value".utf8), at: 3, in: fixture)
    // The fixed part of the record header precedes the key. It begins with the checksum and the version.
    case .key: try flip(key + Data([8, 0, 0, 0]), at: 3, in: fixture)
    case .checksum: try flip(key + Data([8, 0, 0, 0]), at: -RecordHeader.fixedByteCount, in: fixture)
    case .version:
      try flip(
        key + Data([8, 0, 0, 0]), at: -RecordHeader.fixedByteCount + RecordHeader.Offset.recordVersion, in: fixture)
    }
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.statistics.corruptRecords == 1)
    #expect(log.all.count == 1)
    #expect(log.all.allSatisfy { !$0.contains("a.example") })
    fixture.store.writePending()
    #expect(fixture.store.entryCount == 20)
    #expect(fixture.store.statistics.removals[.corrupt] == 1)
    #expect(fixture.body("http://b.example/7") != nil)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    #expect(fixture.body(Self.url) == Data("body".utf8))
  }

  @Test("Older data with a newer removal log brings no removed response back", arguments: [1, 40, 63, 64, 65, 200])
  func olderData(removalCount: Int) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    for number in 0..<20 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    fixture.close()
    let path = fixture.dataPath("data.mdb")
    let older = try Data(contentsOf: URL(fileURLWithPath: path))
    try fixture.open()
    fixture.store.remove(.everything)
    for number in 1..<removalCount { fixture.store.remove(.host("h\(number).example")) }
    fixture.drain()
    fixture.close()
    try older.write(to: URL(fileURLWithPath: path))
    try fixture.open()
    for number in 0..<20 { #expect(fixture.body("http://a.example/\(number)") == nil) }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    #expect(fixture.body(Self.url) == Data("body".utf8))
  }

  @Test("A corrupt record of a key space is counted as what it was", arguments: [true, false])
  func flippedKeySpace(byLookup: Bool) throws {
    let fixture = try StoreFixture()
    func key(_ number: Int) -> RequestKey { RequestKey(urlString: "http://a.example/\(number)")!.urlSpace }
    let byteCount = RecordHeader.fixedByteCount + key(100).bytes.count
    let numbers = 100..<100 + byteCount
    for number in numbers {
      var response = childResponse("http://a.example/\(number)", body: Data())
      response.key = key(number)
      fixture.store.store(response)
      fixture.store.store(fixture.response("http://a.example/\(number)"))
    }
    fixture.drain()
    #expect(fixture.store.entryCount == byteCount)
    // In each record of a key space, a bit of another byte flips.
    let file = fixture.store.context.database
    for (offset, number) in numbers.enumerated() {
      let rowID = try #require(fixture.store.lookup(key(number))).rowID
      try file.write { (transaction) throws(LMDBError) in
        var head = try file.head(rowID, in: transaction) ?? []
        head[offset] ^= 1
        try file.heads.put(head, for: rowID, in: transaction)
      }
    }
    try fixture.reopen()
    if byLookup {
      for number in numbers { #expect(fixture.store.lookup(key(number)) == nil) }
      fixture.drain()
      #expect(fixture.store.statistics.removals[.corrupt] == byteCount)
      #expect(fixture.store.entryCount == byteCount)
    }
    fixture.store.remove(.everything)
    fixture.drain()
    // Corrupt bits may say that a record is newer than the removal, or hide its row of `dates`.
    for number in numbers { #expect(fixture.store.lookup(key(number)) == nil) }
    // More records than one transaction removes, so that a sweep deletes them.
    for number in 0..<400 { fixture.store.store(fixture.response("http://c.example/\(number)")) }
    fixture.drain()
    fixture.store.remove(.everything)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.store.verify().violations == [])
  }

  @Test("The date row of a record whose time is corrupt is deleted when it is met", arguments: [true, false])
  func flippedTime(bySweep: Bool) throws {
    let fixture = try StoreFixture()
    let body = pseudorandomData(100_000, seed: 77)
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.store.store(fixture.response("http://b.example/"))
    fixture.drain()
    try fixture.reopen()
    let key = Data(fixture.key(Self.url).bytes)
    // The key follows the fixed part, and the length of a field's name follows the key.
    try flip(
      key + Data([12, 0, 0, 0]), at: -RecordHeader.fixedByteCount + RecordHeader.Offset.updatedAt + 2, in: fixture)
    #expect(fixture.body(Self.url) == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 1)
    func dateCount() throws -> Int {
      let file = fixture.store.context.database
      return try file.environment.read { (transaction) throws(LMDBError) in
        try file.dates.statistics(in: transaction).entryCount
      }
    }
    #expect(try dateCount() == 2)
    if bySweep {
      // More records than one transaction removes.
      for number in 0..<400 { fixture.store.store(fixture.response("http://c.example/\(number)")) }
      fixture.drain()
      fixture.store.remove(.everything)
      fixture.drain()
    } else {
      fixture.close()
      try FileManager.default.removeItem(atPath: fixture.dataPath(IndexLayout.fileName))
      try fixture.open()
    }
    #expect(try dateCount() == Int(fixture.store.entryCount))
    #expect(fixture.store.entryCount == (bySweep ? 0 : 1))
    fixture.drain()
  }

  @Test("With verifiesEveryRead the checksums of a verified record are compared again")
  func everyRead() throws {
    let fixture = try StoreFixture { $0.verifiesEveryRead = true }
    let body = pseudorandomData(50_000, seed: 5)
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.drain()
    #expect(fixture.body(Self.url) == body)
    try flip(body.suffix(64), at: 0, in: fixture)
    #expect(fixture.body(Self.url) == nil)
    fixture.store.writePending()
  }

  @Test("Index and date entries without a record are misses, and a purge of everything deletes them")
  func strays() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.store.store(fixture.response("http://b.example/"))
    fixture.drain()
    let file = fixture.store.context.database
    let rowID = try #require(fixture.store.lookup(fixture.key(Self.url))).rowID
    try file.write { (transaction) throws(LMDBError) in
      let byteCount = try file.heads.withHeader(of: rowID, in: transaction) { $0.storedByteCount }
      try file.heads.remove(rowID, in: transaction)
      try file.change(in: transaction) { $0.counters.remove(byteCount: byteCount ?? 0, isKeySpace: false) }
    }
    #expect(!fixture.store.checkInvariants().isEmpty)
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.statistics.corruptRecords == 0)
    // More records than one transaction removes.
    for number in 0..<400 { fixture.store.store(fixture.response("http://c.example/\(number)")) }
    fixture.drain()
    fixture.store.remove(.everything)
    fixture.drain()
    #expect(fixture.store.checkInvariants() == [])
  }

  @Test("A missing chunk is corruption, not a shorter body")
  func missingChunk() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url, body: pseudorandomData(100_000, seed: 1)))
    fixture.drain()
    let file = fixture.store.context.database
    let rowID = try #require(fixture.store.lookup(fixture.key(Self.url))).rowID
    for index: UInt32 in [2, 5, 0] {
      try file.write { (transaction) throws(LMDBError) in
        try file.bodies.remove(ChunkKey(bodyID: rowID, index: index), in: transaction)
      }
      #expect(fixture.body(Self.url) == nil)
    }
    fixture.store.writePending()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("Corrupt counters make the store fail without a trap")
  func counters() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try fixture.store.context.database.write {
      [meta = fixture.store.context.database.meta] (transaction) throws(LMDBError) in
      try meta.put([UInt8](repeating: 0xFF, count: 72), for: MetaKey.counters, in: transaction)
    }
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.body(Self.url) == nil)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try fixture.reopen()
    fixture.store.store(fixture.response(Self.url))
    #expect(fixture.body(Self.url) != nil)
  }

  enum Index: String, CaseIterable {
    case rowsThatLeadNowhere, missingRows
  }

  @Test(
    "Eviction and removals complete even if the dates table does not match the records",
    arguments: Index.allCases, [true, false])
  func damagedDates(_ damage: Index, hasIndex: Bool) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    fixture.isChecked = false
    let body = pseudorandomData(20_000, seed: 3)
    for number in 0..<100 { fixture.store.store(fixture.response("http://a.example/old/\(number)", body: body)) }
    fixture.drain()
    if !hasIndex {
      fixture.close()
      try FileManager.default.removeItem(atPath: fixture.dataPath(IndexLayout.fileName))
      try fixture.open()
    }
    let file = fixture.store.context.database
    try file.write { (transaction) throws(LMDBError) in
      switch damage {
      case .rowsThatLeadNowhere:
        for number in UInt64(0)..<2000 {
          try file.dates.put(1 << 24, for: DateKey(time: number, rowID: 1_000_000 + number), in: transaction)
        }
      case .missingRows:
        var rows: [DateKey] = []
        try file.dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
          var more = try cursor.first()
          while more {
            rows.append(try cursor.checkedKey())
            more = try cursor.next()
          }
        }
        for row in rows { try file.dates.remove(row, in: transaction) }
      }
    }
    // Three times the capacity.
    for number in 0..<600 {
      fixture.store.store(fixture.response("http://a.example/new/\(number)", body: body))
      fixture.store.writePending()
      if number % 8 == 7 { fixture.drain() }
    }
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.statistics.evictions > 300)
    fixture.clock.advance(by: 10)
    fixture.store.store(fixture.response("http://a.example/last"))
    fixture.drain()
    fixture.store.remove(.since(fixture.clock.now - 5))
    fixture.drain()
    #expect(fixture.body("http://a.example/last") == nil)
    #expect(fixture.store.entryCount > 50)
    fixture.store.remove(.everything)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.body("http://a.example/new/599") == nil)
    fixture.close()
  }

  @Test("A corrupt tombstone fails the store, so that no removed response reappears")
  func damagedMark() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    // Retains the database only for the call, so that the store can be reopened.
    func addTombstone(to file: RecordDatabase) throws {
      try file.write { (transaction) throws(LMDBError) in
        try file.meta.put([1, 2, 3], for: MetaKey.tombstone(1), in: transaction)
        try file.change(in: transaction) { $0.counters.lastTombstoneChange = transaction.id }
      }
    }
    try addTombstone(to: fixture.store.context.database)
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.hasFailed)
    try fixture.reopen()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("Random bytes are not accepted as a record header and do not trap", arguments: [UInt64](1...4))
  func randomHeads(seed: UInt64) {
    var random = SeededGenerator(seed: seed)
    let fixtureHead = RecordHeader(
      CacheableResponse(
        status: 200, fields: HeaderFields([("A", "b"), ("C", "d")]), body: Data("body".utf8),
        freshness: FreshnessInfo(responseTime: Date(), initialAge: 0, lifetime: 1, date: Date()),
        vary: VaryKey(fields: [VaryKey.Field(name: "x", value: nil)])),
      for: RequestKey(urlString: Self.url)!, attachment: nil, storedAt: Date(), removalSequence: 7,
      inlineByteCount: 2000, bodyChecksum: 1)
    for _ in 0..<5000 {
      var bytes = fixtureHead.bytes
      for _ in 0..<Int.random(in: 1...4, using: &random) {
        bytes[Int.random(in: 0..<bytes.count, using: &random)] = UInt8.random(in: 0...255, using: &random)
      }
      if Bool.random(using: &random) { bytes.removeLast(Int.random(in: 0..<bytes.count, using: &random)) }
      bytes.withUnsafeBytes { raw in
        guard let head = RecordHeaderView(raw) else { return }
        _ = (FieldCoding.decodeFields(head.fields), FieldCoding.decodeVary(head.vary), head.freshness, head.status)
        _ = (RequestKey(storedBytes: [UInt8](head.key)).description, [UInt8](head.attachment))
        if head.isBodyInline {
          #expect(
            StoredResponse(copying: head, rowID: 1, removalSequence: 0, hasOthers: false).body
              .elementsEqual(head.inlineBody))
        }
        if bytes != fixtureHead.bytes { #expect(!head.hasRightChecksum) }
      }
      bytes.withUnsafeBytes { _ = Removal(encoded: $0) }
    }
  }
}
