import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Testing

@Suite("Bodies read on demand", .endsFixtures)
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

  @Test("A body that does not match its checksum is a miss before any of its bytes is read")
  func damage() throws {
    let body = pseudorandomData(200_000, seed: 77)
    let fixture = try fixture(body)
    let path = fixture.dataPath("data.mdb")
    let range = try #require(try Data(contentsOf: URL(fileURLWithPath: path)).range(of: body[150_000..<150_064]))
    let file = try FileHandle(forUpdating: URL(fileURLWithPath: path))
    try file.seek(toOffset: UInt64(range.lowerBound))
    try file.write(contentsOf: Data([body[150_000] ^ 1]))
    try file.close()
    #expect(lookup(fixture) == nil)
    #expect(fixture.store.statistics.corruptRecords == 1)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test(
    "The rest of a replaced or removed body cannot be read, and no other body is read instead",
    arguments: [true, false])
  func gone(isReplaced: Bool) throws {
    let body = pseudorandomData(200_000, seed: 3)
    let fixture = try fixture(body)
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

  private static let key = RequestKey(urlString: url)!.bytes
  private static func tag(_ name: String) -> RemovalScope {
    .tag(.bytes(Array(name.utf8)), fieldNames: ["surrogate-key"], origin: [])
  }
  private static let removals: [(Removal, isRemoved: Bool)] = [
    (Removal(.everything), true), (Removal(.key(key)), true), (Removal(.since(.distantPast)), true),
    (Removal(tag("a")), true), (Removal(tag("c")), false), (Removal(.since(.distantFuture)), false),
    (Removal(.key(key + [0])), false), (Removal(.everything, .stale(since: .distantPast)), false),
  ]

  @Test(
    "When a removal returns, the rest of the body cannot be read, even if it is still on disk", arguments: removals)
  private func notDeletedYet(_ removal: (Removal, isRemoved: Bool)) throws {
    let body = pseudorandomData(200_000, seed: 3)
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url, body: body, fields: HeaderFields([("Surrogate-Key", "a b")])))
    fixture.drain()
    let stored = try #require(lookup(fixture)?.storedBody)
    #expect(stored.read(0..<50_000) == body[0..<50_000])
    for logged in [Removal(.key([1])), removal.0] { try fixture.store.logOnly(logged) }
    for start in [50_000, 100_000] {
      let part = start..<start + 50_000
      #expect(stored.read(part) == (removal.isRemoved ? nil : body[part]))
    }
  }
}
