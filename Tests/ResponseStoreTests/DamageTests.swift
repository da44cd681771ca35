import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

@Suite("Damage found while running")
struct DamageTests {
  static let url = "http://a.example/"

  /// Flips a byte of the data file behind the store's back, where `pattern` stands.
  private func flip(_ pattern: Data, at offset: Int, in fixture: StoreFixture) throws {
    let path = fixture.path("data.mdb")
    let place = try #require(try Data(contentsOf: URL(fileURLWithPath: path)).range(of: pattern)).lowerBound + offset
    let descriptor = open(path, O_RDWR)
    defer { close(descriptor) }
    var byte: UInt8 = 0
    #expect(pread(descriptor, &byte, 1, off_t(place)) == 1)
    byte ^= 0x10
    #expect(pwrite(descriptor, &byte, 1, off_t(place)) == 1)
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
    defer { fixture.finish() }
    let body = pseudorandomData(place == .chunkedBody ? 100_000 : 300, seed: 77)
    fixture.store.store(
      fixture.response(Self.url, body: body, fields: HTTPFields([("X-Marked", "here it stands")])))
    for number in 0..<20 { fixture.store.store(fixture.response("http://b.example/\(number)")) }
    fixture.drain()
    try fixture.reopen()
    let key = Data(fixture.key(Self.url).bytes)
    switch place {
    case .inlineBody, .chunkedBody: try flip(body.prefix(64), at: 20, in: fixture)
    case .fields: try flip(Data("here it stands".utf8), at: 3, in: fixture)
    // In front of the record's key lies its fixed part, whose first bytes are checksum and version.
    case .key: try flip(key + Data([8, 0, 0, 0]), at: 3, in: fixture)
    case .checksum: try flip(key + Data([8, 0, 0, 0]), at: -HeadRecord.fixedByteCount, in: fixture)
    case .version:
      try flip(key + Data([8, 0, 0, 0]), at: -HeadRecord.fixedByteCount + HeadRecord.Offset.recordVersion, in: fixture)
    }
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.statistics.damagedRecords == 1)
    #expect(log.all.count == 1)
    #expect(log.all.allSatisfy { !$0.contains("a.example") })
    fixture.store.writePending()
    #expect(fixture.store.entryCount == 20)
    #expect(fixture.store.statistics.removals[.damaged] == 1)
    #expect(fixture.body("http://b.example/7") != nil)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    #expect(fixture.body(Self.url) == Data("body".utf8))
  }

  /// Swaps the first two entries of every leaf with many, so that their keys are out of order: liblmdb does not see it, and may
  /// not find what it stores there.
  private func disorderLeaves(in fixture: StoreFixture) throws {
    let pages = try Data(contentsOf: URL(fileURLWithPath: fixture.path("data.mdb")))
    let descriptor = open(fixture.path("data.mdb"), O_RDWR)
    defer { close(descriptor) }
    for page in stride(from: 2 * 4096, to: pages.count, by: 4096) where pages[page + 10] == 2 {
      let entryCount = (Int(pages[page + 12]) + (Int(pages[page + 13]) << 8) - 16) / 2
      guard entryCount > 12 else { continue }
      let swapped = [UInt8](pages[(page + 18)..<(page + 20)] + pages[(page + 16)..<(page + 18)])
      #expect(pwrite(descriptor, swapped, 4, off_t(page + 16)) == 4)
    }
  }

  private func fill(_ fixture: StoreFixture) {
    for number in 0..<40 { fixture.store.store(fixture.response("http://b.example/\(number)")) }
    fixture.drain()
    for number in 0..<40 { #expect(fixture.body("http://b.example/\(number)") != nil) }
  }

  /// A store in which one record has been found damaged.
  private func fixtureWithDamage(_ log: LogLines) throws -> StoreFixture {
    let fixture = try StoreFixture { $0.log = { log.append($0) } }
    let body = pseudorandomData(300, seed: 77)
    fixture.store.store(fixture.response(Self.url, body: body))
    fill(fixture)
    try fixture.reopen()
    try flip(body.prefix(64), at: 20, in: fixture)
    #expect(fixture.body(Self.url) == nil)
    return fixture
  }

  @Test("After a damaged record the trees are looked at, which no checksum guards; broken ones give the store up")
  func brokenTrees() throws {
    let log = LogLines()
    let fixture = try fixtureWithDamage(log)
    defer { fixture.finish() }
    try disorderLeaves(in: fixture)
    fixture.drain()
    #expect(fixture.store.isGivenUp)
    #expect(log.all.contains { $0.contains("out of order") })
    try fixture.reopen()
    fill(fixture)
  }

  @Test("After a damaged record the next opening looks at the trees again, once")
  func brokenLater() throws {
    let log = LogLines()
    let fixture = try fixtureWithDamage(log)
    defer { fixture.finish() }
    fixture.drain()
    #expect(!fixture.store.isGivenUp)
    fixture.close()
    try disorderLeaves(in: fixture)
    try fixture.open()
    #expect(log.all.contains { $0.contains("a damaged record was found in it") })
    #expect(fixture.store.entryCount == 0)
    fill(fixture)
    let count = log.all.count
    try fixture.reopen()
    #expect(fixture.store.entryCount == 40)
    #expect(log.all.count == count)
  }

  @Test("A record that was verified is compared again when every read is to be")
  func everyRead() throws {
    let fixture = try StoreFixture { $0.verifiesEveryRead = true }
    defer { fixture.finish() }
    let body = pseudorandomData(50_000, seed: 5)
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.drain()
    #expect(fixture.body(Self.url) == body)
    try flip(body.suffix(64), at: 0, in: fixture)
    #expect(fixture.body(Self.url) == nil)
    fixture.store.writePending()
  }

  @Test("Rows that lead nowhere are misses, and eviction cleans them away")
  func strays() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: pseudorandomData(40_000, seed: 1)))
    fixture.store.store(fixture.response("http://b.example/"))
    fixture.drain()
    let file = fixture.store.file
    let rowID = try #require(fixture.store.lookup(fixture.key(Self.url))).rowID
    try file.write { (transaction) throws(LMDBError) in
      try file.heads.removeChecked(rowID, in: transaction)
    }
    #expect(!fixture.store.checkInvariants().isEmpty)
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.statistics.damagedRecords == 0, "the index is a hint")
    fixture.store.store(fixture.response("http://c.example/"))
    fixture.drain()
    while try fixture.store.evict(pageCount: 1) > 0 {}
    #expect(fixture.store.checkInvariants() == [])
    #expect(fixture.store.entryCount == 0)
  }

  @Test("A missing chunk is damage, not a short body")
  func missingChunk() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: pseudorandomData(100_000, seed: 1)))
    fixture.drain()
    let file = fixture.store.file
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

  @Test("Damaged numbers of the store as a whole give it up, without a trap")
  func counters() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try fixture.store.file.write { [meta = fixture.store.file.meta] (transaction) throws(LMDBError) in
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
    "An index of dates that does not fit the records keeps neither eviction nor a purge from their end",
    arguments: Index.allCases, [true, false])
  func damagedDates(_ damage: Index, hasIndex: Bool) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.remove() }
    let body = pseudorandomData(20_000, seed: 3)
    for number in 0..<100 { fixture.store.store(fixture.response("http://a.example/old/\(number)", body: body)) }
    fixture.drain()
    if !hasIndex {
      fixture.close()
      try FileManager.default.removeItem(atPath: fixture.path(IndexLayout.fileName))
      try fixture.open()
    }
    let file = fixture.store.file
    try file.write { (transaction) throws(LMDBError) in
      switch damage {
      case .rowsThatLeadNowhere:
        for number in UInt64(0)..<2000 {
          try file.dates.put(1 << 24, for: DateKey(time: number, rowID: 1_000_000 + number), in: transaction)
          try file.expiries.put((), for: DateKey(time: number, rowID: 1_000_000 + number), in: transaction)
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
    #expect(fixture.store.statistics.droppedStores == 0)
    #expect(fixture.store.statistics.evictions > 300)
    fixture.clock.advance(by: 10)
    fixture.store.store(fixture.response("http://a.example/last"))
    fixture.drain()
    fixture.store.removeResponses(since: fixture.clock.now - 5)
    fixture.drain()
    #expect(fixture.body("http://a.example/last") == nil)
    #expect(fixture.store.entryCount > 50)
    fixture.store.removeAll()
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.body("http://a.example/new/599") == nil)
    fixture.close()
  }

  @Test("A mark of a purge that cannot be read hides everything")
  func damagedMark() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let file = fixture.store.file
    try file.write { (transaction) throws(LMDBError) in
      var counters = try file.counters(in: transaction)
      try file.meta.put([1, 2, 3], for: MetaKey.purge(1), in: transaction)
      counters.lastPurgeChange = transaction.id
      try file.setCounters(counters, in: transaction)
    }
    #expect(fixture.body(Self.url) == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("Random bytes are never a head, nor do they trap", arguments: [UInt64](1...4))
  func randomHeads(seed: UInt64) {
    var random = SplitMix64(state: seed)
    let fixtureHead = HeadRecord(
      NewResponse(
        key: RequestKey(urlString: Self.url)!, status: 200, fields: HTTPFields([("A", "b"), ("C", "d")]),
        body: Data("body".utf8),
        facts: FreshnessFacts(responseTime: Date(), initialAge: 0, lifetime: 1, date: Date()),
        vary: VarySelection(selectors: [VarySelection.Field(name: "x", value: nil)])),
      storedAt: Date(), removalSequence: 7, inlineByteCount: 2000, bodyChecksum: 1)
    for _ in 0..<5000 {
      var bytes = fixtureHead.bytes
      for _ in 0..<Int.random(in: 1...4, using: &random) {
        bytes[Int.random(in: 0..<bytes.count, using: &random)] = UInt8.random(in: 0...255, using: &random)
      }
      if Bool.random(using: &random) { bytes.removeLast(Int.random(in: 0..<bytes.count, using: &random)) }
      bytes.withUnsafeBytes { raw in
        guard let head = HeadLayout(raw) else { return }
        _ = (FieldCoding.decodeFields(head.fields), FieldCoding.decodeVary(head.vary), head.facts, head.status)
        _ = (RequestKey(storedBytes: [UInt8](head.key)).description, [UInt8](head.attachment))
        if head.isBodyInline {
          #expect(CopiedRecord(head, rowID: 1, snapshot: 0, hasOthers: false).body.elementsEqual(head.inlineBody))
        }
        if bytes != fixtureHead.bytes { #expect(!head.hasRightChecksum) }
      }
      bytes.withUnsafeBytes { _ = RemovalScope(encoded: $0) }
    }
  }
}
