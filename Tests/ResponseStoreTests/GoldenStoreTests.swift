import Foundation
import HTTPCaching
import LMDB
import Testing

// Writes the directories with the states that a store passes within a transaction.
@testable import ResponseStore

/// Opens directories that released versions of this library wrote, from the folder `Golden`.
///
/// Each was copied while its store was open, like the directory of a killed process, but without LMDB's lock file. To
/// write the directories of the present format again, run `WRITE_GOLDEN=1 swift test --filter GoldenStoreTests`, which
/// leaves out the tests that open them.
@Suite("Directories of released storage formats", .endsFixtures)
struct GoldenStoreTests {
  private static let folder = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent(
    "Golden")
  private static let capacity = ResponseStore.minimumCapacityByteCount
  private static let isWriting = ProcessInfo.processInfo.environment["WRITE_GOLDEN"] != nil

  /// The stored responses, except the removed ones and those of the group test.
  private static func responses(_ fixture: StoreFixture) -> [KeyedResponse] {
    var all: [KeyedResponse] = []
    all.append(fixture.response("http://inline.example/a?q=1", body: Data("body in the record".utf8)))
    all.append(fixture.response("http://empty.example/", body: Data()))
    all.append(
      fixture.response("http://long.example/" + String(repeating: "x", count: 600), body: Data("long key".utf8)))
    all.append(fixture.response("http://a.example/", body: Data("of a tenant".utf8), partition: "tenant"))
    // A body in chunks of four pages with a shorter last chunk, and one with a separate chunk for its end.
    for count in [40_000, 4096] { all.append(fixture.response("http://chunks.example/\(count)", body: body(count))) }
    for (name, value) in [("de", "de"), ("en", "en"), ("none", nil)] as [(String, String?)] {
      var variant = fixture.response(
        "http://variants.example/", body: Data(name.utf8),
        vary: VaryKey(fields: [.init(name: "accept-language", value: value)]))
      variant.freshness.flags = FreshnessInfo.Flags(rawValue: 1 << 10)
      all.append(variant)
    }
    var validated = fixture.response(
      "http://facts.example/", fields: ["ETag": "\"v\"", "Set-Cookie": "a", "set-cookie": "b"])
    validated.status = 404
    validated.attachment = [0, 1, 255]
    validated.freshness = FreshnessInfo(
      responseTime: fixture.clock.now - 5, initialAge: 2.5, lifetime: 1e6, date: fixture.clock.now - 8,
      staleWhileRevalidate: 30, staleIfError: 60, flags: [.strongETag, .mustRevalidate])
    all.append(validated)
    return all
  }

  private static let replacedURL = "http://replaced.example/"
  private static let updatedURL = "http://updated.example/"
  private static let removedURLs = [
    "http://removed.example/key", "http://host.removed.example/", "http://log.removed.example/1",
    "http://log.removed.example/2",
  ]
  /// More than are deleted directly, so that the removal of their group leaves a tombstone. Every tenth is a member.
  private static let groupCount = 270

  private static func groupURL(_ number: Int) -> String { "http://group.example/\(number)" }
  private static func isMember(_ number: Int) -> Bool { number % 10 == 0 }

  private static func body(_ count: Int) -> Data { Data((0..<count).map { UInt8($0 % 251) }) }

  private func openCopy(of name: String) throws -> StoreFixture {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("golden-\(UUID().uuidString)").path
    try FileManager.default.copyItem(atPath: Self.folder.appendingPathComponent(name).path, toPath: directory)
    chmod(directory, 0o700)
    return try StoreFixture(capacity: Self.capacity, directory: directory)
  }

  @Test(
    "A store of format 8 opens, contains every response, and satisfies all invariants",
    .disabled(if: isWriting, "This run writes the files."))
  func format8() throws {
    let fixture = try openCopy(of: "format-8")
    #expect(fixture.logged.all == [])
    #expect(try unfinished(fixture.store) == [1, 1, 1], "a logged removal, a tombstone, and an orphaned body")
    try expectContent(fixture)
    #expect(fixture.store.checkInvariants() == [])
    try expectContent(fixture)
    fixture.drain()
    #expect(fixture.store.checkInvariants() == [])
    try expectContent(fixture)
    let memberCount = (0..<Self.groupCount).count(where: Self.isMember)
    #expect(fixture.store.entryCount == Self.responses(fixture).count + 2 + Self.groupCount - memberCount)
    #expect(try unfinished(fixture.store) == [0, 0, 0])
  }

  @Test(
    "A store of format 8 with soft removals opens, and has every response, stale if a soft removal covers it",
    .disabled(if: isWriting, "This run writes the files."))
  func format8WithSoftRemovals() throws {
    let fixture = try openCopy(of: "format-8-soft")
    #expect(fixture.logged.all == [])
    #expect(try unfinished(fixture.store) == [1, 1, 0], "a logged soft removal, and a soft tombstone")
    func expectContent() throws {
      for host in Self.softHosts {
        for number in 0..<host.count {
          let freshness = try #require(fixture.store.lookup(fixture.key(host.url(number)))).freshness
          #expect(freshness.lifetime == host.lifetime)
          #expect(freshness.flags.contains(.softPurged) == (host.name != "fresh"))
        }
      }
    }
    try expectContent()
    #expect(fixture.store.checkInvariants() == [])
    fixture.drain()
    try expectContent()
    #expect(try unfinished(fixture.store) == [0, 0, 0])
    #expect(fixture.store.entryCount == Self.softHosts.reduce(0) { $0 + $1.count })
  }

  /// A host whose responses a soft removal has covered in some state, and the lifetime of its responses since.
  private struct SoftHost {
    let name: String
    let count: Int
    let lifetime: Double
    func url(_ number: Int) -> String { "http://\(name).example/\(number)" }
  }

  private static let softHosts = [
    SoftHost(name: "marked", count: 10, lifetime: 10), SoftHost(name: "tombstone", count: groupCount, lifetime: 20),
    SoftHost(name: "log", count: 10, lifetime: 30), SoftHost(name: "fresh", count: 10, lifetime: 1000),
  ]

  @Test(
    "A store of an earlier format is deleted, and the store starts empty and logs one line",
    arguments: ["format-4", "format-5", "format-5-soft", "format-6", "format-6-soft", "format-7", "format-7-soft"])
  func earlierFormat(_ name: String) throws {
    let fixture = try openCopy(of: name)
    let number = name.split(separator: "-")[1]
    let isInFolder = number >= "6"
    #expect(fixture.logged.all.count == 1)
    #expect(fixture.logged.all.first?.contains(isInFolder ? "format \(number)" : "earlier format") == true)
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.store.removalOverview { _, _ in }?.removals.isEmpty == true)
    for file in ["data.mdb", "LMDBURLCache.removals", "LMDBURLCache.index", "LMDBURLCache.uses"] {
      #expect(!FileManager.default.fileExists(atPath: fixture.path(file)))
    }
    fixture.store.store(fixture.response(Self.replacedURL))
    fixture.drain()
    #expect(fixture.body(Self.replacedURL) != nil)
  }

  /// Returns the numbers of removals not yet applied, of tombstones, and of orphaned bodies.
  private func unfinished(_ store: ResponseStore) throws -> [Int] {
    try store.context.database.environment.read { (transaction) throws(LMDBError) in
      [
        Int(store.context.removalLog.sequence - store.context.removalLog.lastApplied),
        try store.context.database.tombstones(in: transaction).count,
        try store.context.database.unfinishedBodies(in: transaction).count,
      ]
    }
  }

  private func expectContent(_ fixture: StoreFixture) throws {
    for expected in Self.responses(fixture) {
      let found = try #require(fixture.store.lookup(expected.key) { $0 == expected.vary })
      #expect(found.key == expected.key)
      #expect(found.status == expected.status)
      #expect(found.fields == expected.fields)
      #expect(found.body == expected.body)
      #expect(found.freshness == expected.freshness)
      #expect(found.attachment == expected.attachment)
      #expect(found.storedAt == fixture.clock.now)
      #expect(found.updatedAt == fixture.clock.now)
    }
    let updated = try #require(fixture.store.lookup(fixture.key(Self.updatedURL)))
    #expect(updated.storedAt == fixture.clock.now)
    #expect(updated.updatedAt == fixture.clock.now + 30)
    #expect(fixture.body(Self.replacedURL) == Data("newer".utf8))
    for url in Self.removedURLs { #expect(fixture.body(url) == nil) }
    for number in 0..<Self.groupCount {
      #expect((fixture.body(Self.groupURL(number)) == nil) == Self.isMember(number))
    }
  }

  @Test("The golden directory of the present format is written again", .enabled(if: isWriting))
  func write() throws {
    let fixture = try StoreFixture(capacity: Self.capacity)
    let store = fixture.store
    for response in Self.responses(fixture) { store.store(response) }
    for text in ["older", "newer"] {
      store.store(fixture.response(Self.replacedURL, body: Data(text.utf8)))
      while store.writePending() {}
    }
    for url in Self.removedURLs { store.store(fixture.response(url)) }
    for number in 0..<Self.groupCount {
      let fields: HeaderFields = Self.isMember(number) ? ["Cache-Groups": "\"g\""] : [:]
      store.store(fixture.response(Self.groupURL(number), fields: fields))
    }
    while store.writePending() {}
    store.store(fixture.response(Self.updatedURL))
    while store.writePending() {}
    fixture.clock.advance(by: 30)
    let found = try #require(store.lookup(fixture.key(Self.updatedURL)))
    store.update(found, fields: found.fields, freshness: found.freshness)
    while store.writePending() {}
    fixture.clock.advance(by: -30)
    try addPartialBody(to: store.context.database)
    // In the database: deleted rows, and a tombstone whose records are not deleted yet.
    store.remove(fixture.key(Self.removedURLs[0]))
    store.remove(.host("host.removed.example"))
    store.remove(.group("g", ofOrigin: URL(string: Self.groupURL(0))!)!)
    // Only in the removal log.
    try store.context.removalLog.append([Removal(.host("log.removed.example"))], timeout: .seconds(10)) {}

    try copyToGolden(fixture, "format-\(StorageFormat.version)")
    #expect(store.checkInvariants() == [])
    fixture.close()
  }

  @Test("The golden directory with soft removals is written again", .enabled(if: isWriting))
  func writeSoftRemovals() throws {
    let fixture = try StoreFixture(capacity: Self.capacity)
    let store = fixture.store
    for host in Self.softHosts {
      for number in 0..<host.count {
        var response = fixture.response(host.url(number))
        response.freshness = fixture.freshness(lifetime: 1000)
        store.store(response)
      }
    }
    fixture.drain()
    fixture.clock.advance(by: 10)
    store.softPurge(.host("marked.example"))
    fixture.clock.advance(by: 10)
    store.softPurge(.host("tombstone.example"))
    fixture.clock.advance(by: 10)
    try store.context.removalLog.append(
      [Removal(.host("log.example"), .stale(since: fixture.clock.now))], timeout: .seconds(10)
    ) {}
    try copyToGolden(fixture, "format-\(StorageFormat.version)-soft")
    #expect(store.checkInvariants() == [])
    fixture.close()
  }

  private func copyToGolden(_ fixture: StoreFixture, _ name: String) throws {
    let golden = Self.folder.appendingPathComponent(name).path
    // For a new format there is no directory yet.
    try? FileManager.default.removeItem(atPath: golden)
    try FileManager.default.createDirectory(atPath: Self.folder.path, withIntermediateDirectories: true)
    try FileManager.default.copyItem(atPath: fixture.directory, toPath: golden)
    try FileManager.default.removeItem(atPath: golden + "/data-1/lock.mdb")
  }

  /// Adds a chunk without a record header, like an unfinished removal of a large body.
  private func addPartialBody(to file: RecordDatabase) throws {
    try file.write { (transaction) throws(LMDBError) in
      let bodyID = try file.change(in: transaction) { $0.counters.takeNumber() }
      try file.meta.put(UnfinishedBody.encode(processID: 0), for: MetaKey.partial(bodyID), in: transaction)
      try file.bodies.put(Array(Self.body(2000)), for: ChunkKey(bodyID: bodyID, index: 3), in: transaction)
    }
  }
}
