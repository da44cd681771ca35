import Foundation
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("Bodies read on demand")
struct StoredBodyTests {
  static let url = "http://example.com/large"
  static let limit = 20_000

  private func lookup(_ fixture: StoreFixture) -> StoredResponse? {
    fixture.store.lookup(fixture.key(Self.url), leavingBodiesBeyond: Self.limit)
  }

  /// Returns a store with one large body on disk that this process has not read yet.
  private func fixture(_ body: Data) throws -> StoreFixture {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.drain()
    try fixture.reopen()
    return fixture
  }

  @Test(
    "Bodies up to the limit are copied, and larger ones stay in the store",
    arguments: [900, 20_000, 20_001, 16_368 * 3, 300_000])
  func limit(byteCount: Int) throws {
    let body = pseudorandomData(byteCount, seed: 3)
    let fixture = try fixture(body)
    defer { fixture.finish() }
    let found = try #require(lookup(fixture))
    #expect(found.bodyByteCount == byteCount)
    #expect(found.fields["Content-Type"] == "text/plain")
    guard byteCount > Self.limit else { return #expect(found.body == body) }
    let stored = try #require(found.storedBody)
    #expect(stored.byteCount == byteCount)
    #expect(stored.read(0..<byteCount) == body)
    #expect(stored.read(7..<7) == Data())
    for start in stride(from: 0, to: byteCount - 1, by: 4_999) {
      for count in [1, 4_080, 16_368, 40_000] {
        let range = start..<min(start + count, byteCount)
        #expect(stored.read(range) == body[range])
      }
    }
  }

  @Test("A large body that is read in pieces does not become resident memory of the process")
  func residentMemory() throws {
    let byteCount = 24 << 20
    let body = pseudorandomData(byteCount, seed: 3)
    let fixture = try StoreFixture(capacity: 512 << 20)
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.drain()
    try fixture.reopen()
    let before = try residentFilePageCount()
    let stored = try #require(lookup(fixture)?.storedBody)
    for start in stride(from: 0, to: byteCount, by: 256 << 10) {
      let range = start..<min(start + 256 << 10, byteCount)
      #expect(stored.read(range) == body[range])
    }
    let growth = try (residentFilePageCount() - before) * Int(sysconf(CInt(_SC_PAGESIZE)))
    #expect(growth < byteCount / 8, "\(growth) bytes of \(byteCount)")
  }

  /// The pages of mapped files that are in this process's resident memory.
  private func residentFilePageCount() throws -> Int {
    let file = try #require(fopen("/proc/self/statm", "re"))
    defer { fclose(file) }
    var buffer = [UInt8](repeating: 0, count: 128)
    let count = fread(&buffer, 1, buffer.count, file)
    let fields = String(decoding: buffer.prefix(count), as: UTF8.self).split(separator: " ")
    return try #require(fields.count > 2 ? Int(fields[2]) : nil)
  }

  @Test("The body of a pending write is in memory")
  func pending() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let body = pseudorandomData(100_000, seed: 3)
    fixture.store.store(fixture.response(Self.url, body: body))
    #expect(lookup(fixture)?.body == body)
    fixture.drain()
    #expect(lookup(fixture)?.storedBody != nil)
  }

  @Test("A body that does not match its checksum is a miss before any of its bytes is read")
  func damage() throws {
    let body = pseudorandomData(200_000, seed: 77)
    let fixture = try fixture(body)
    defer { fixture.finish() }
    let path = fixture.path("data.mdb")
    let range = try #require(try Data(contentsOf: URL(fileURLWithPath: path)).range(of: body[150_000..<150_064]))
    let file = try FileHandle(forUpdating: URL(fileURLWithPath: path))
    try file.seek(toOffset: UInt64(range.lowerBound))
    try file.write(contentsOf: Data([body[150_000] ^ 1]))
    try file.close()
    #expect(fixture.store.hasUnverifiedBody(fixture.key(Self.url), beyond: Self.limit) { _ in true })
    #expect(lookup(fixture) == nil)
    #expect(fixture.store.statistics.corruptRecords == 1)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test(
    "A body is compared with its checksum once, or at every lookup if the options require it", arguments: [false, true])
  func comparison(verifiesEveryRead: Bool) throws {
    let fixture = try StoreFixture { $0.verifiesEveryRead = verifiesEveryRead }
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: pseudorandomData(100_000, seed: 3)))
    fixture.drain()
    let key = fixture.key(Self.url)
    #expect(fixture.store.hasUnverifiedBody(key, beyond: Self.limit) { _ in true })
    #expect(lookup(fixture)?.storedBody != nil)
    #expect(fixture.store.hasUnverifiedBody(key, beyond: Self.limit) { _ in true } == verifiesEveryRead)
    #expect(lookup(fixture)?.storedBody != nil)
  }

  @Test(
    "The rest of a replaced or removed body cannot be read, and no other body is read instead",
    arguments: [true, false])
  func gone(isReplaced: Bool) throws {
    let body = pseudorandomData(200_000, seed: 3)
    let fixture = try fixture(body)
    defer { fixture.finish() }
    let stored = try #require(lookup(fixture)?.storedBody)
    #expect(stored.read(0..<50_000) == body[0..<50_000])
    if isReplaced {
      fixture.store.store(fixture.response(Self.url, body: pseudorandomData(200_000, seed: 4)))
    } else {
      fixture.store.remove(fixture.key(Self.url))
    }
    fixture.drain()
    #expect(stored.read(50_000..<100_000) == nil)
  }

  @Test("A body stays readable after its record is updated")
  func updated() throws {
    let body = pseudorandomData(200_000, seed: 3)
    let fixture = try fixture(body)
    defer { fixture.finish() }
    let stored = try #require(lookup(fixture)?.storedBody)
    let complete = try #require(fixture.store.lookup(fixture.key(Self.url)))
    fixture.store.update(complete, fields: HeaderFields([("X-New", "1")]), freshness: fixture.freshness(lifetime: 90))
    fixture.drain()
    #expect(lookup(fixture)?.fields["X-New"] == "1")
    #expect(stored.read(0..<200_000) == body)
  }

  @Test("An update of a large body that is in the store holds no body, and is readable before its commit")
  func updatedInPieces() throws {
    let body = pseudorandomData(200_000, seed: 3)
    let fixture = try StoreFixture { $0.queueByteCount = 100_000 }
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: body))
    fixture.drain()
    let key = fixture.key(Self.url)
    // With this in the queue, an update that holds the body does not fit.
    fixture.store.store(fixture.response("http://example.com/other", body: Data(count: 1000)))
    for number in ["1", "2"] {
      let found = try #require(lookup(fixture))
      #expect(found.storedBody != nil)
      #expect(
        fixture.store.update(
          found, fields: HeaderFields([("X-New", number)]), freshness: fixture.freshness(lifetime: 90),
          waitsForSpace: false))
      for isCommitted in [false, true] where !isCommitted || number == "2" {
        if isCommitted { fixture.drain() }
        let pieces = try #require(lookup(fixture))
        #expect(pieces.fields["X-New"] == number)
        #expect(pieces.bodyByteCount == body.count)
        #expect(pieces.storedBody?.read(0..<200_000) == body)
        let copy = try #require(fixture.store.lookup(key))
        #expect(copy.fields["X-New"] == number)
        #expect(copy.body == body)
        let borrowed = fixture.store.withResponse(key) { response in
          var bytes = Data()
          response.forEachPiece { piece in piece.withUnsafeBytes { bytes.append(contentsOf: $0) } }
          return bytes
        }
        #expect(borrowed == body)
      }
    }
    #expect(fixture.store.statistics.droppedWrites == 0)
  }

  @Test("An update without the body of a record that is removed before the commit is a miss, and is dropped")
  func updatedAndRemoved() throws {
    let fixture = try fixture(pseudorandomData(200_000, seed: 3))
    defer { fixture.finish() }
    let found = try #require(lookup(fixture))
    fixture.store.update(found, fields: HeaderFields([("X-New", "1")]), freshness: fixture.freshness(lifetime: 90))
    fixture.store.remove(fixture.key(Self.url))
    #expect(lookup(fixture) == nil)
    #expect(fixture.store.lookup(fixture.key(Self.url)) == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("An update without the body keeps a body that another update has moved into the record")
  func updatedAfterMove() throws {
    let body = pseudorandomData(1500, seed: 3)
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let key = fixture.key(Self.url)
    // The fields leave no space for the body in the record.
    fixture.store.store(
      fixture.response(Self.url, body: body, fields: HeaderFields([("X-Long", String(repeating: "x", count: 3000))])))
    fixture.drain()
    let inStore = try #require(fixture.store.lookup(key, leavingBodiesBeyond: 0))
    #expect(inStore.storedBody != nil)
    let whole = try #require(fixture.store.lookup(key))
    fixture.store.update(whole, fields: HeaderFields([("X-New", "1")]), freshness: fixture.freshness(lifetime: 90))
    fixture.drain()
    fixture.store.update(inStore, fields: HeaderFields([("X-New", "2")]), freshness: fixture.freshness(lifetime: 90))
    fixture.drain()
    let found = try #require(fixture.store.lookup(key))
    #expect(found.fields["X-New"] == "2")
    #expect(found.body == body)
  }

  @Test("The body of an incomplete response is copied regardless of its size")
  func incomplete() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    var response = fixture.response(Self.url, body: pseudorandomData(100_000, seed: 3))
    response.freshness.flags.insert(.incomplete)
    fixture.store.store(response)
    fixture.drain()
    #expect(lookup(fixture)?.body.count == 100_000)
  }
}
