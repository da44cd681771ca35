import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

/// Directories as released versions of this library left them, in the folder `Golden`: what a later version is given.
///
/// Each was copied while its store was open, as a killed process leaves it, without LMDB's lock file. To write the one of the
/// present format anew, run `WRITE_GOLDEN=1 swift test --filter GoldenStoreTests`.
@Suite("Directories of released storage formats")
struct GoldenStoreTests {
  private static let folder = URL(fileURLWithPath: #filePath).deletingLastPathComponent().appendingPathComponent(
    "Golden")
  private static let capacity = ResponseStore.smallestCapacityByteCount

  /// What is stored, apart from the members of the group, and what is removed.
  private static func responses(_ fixture: StoreFixture) -> [NewResponse] {
    var all: [NewResponse] = []
    all.append(fixture.response("http://inline.example/a?q=1", body: Data("body in the record".utf8)))
    all.append(fixture.response("http://empty.example/", body: Data()))
    all.append(
      fixture.response("http://long.example/" + String(repeating: "x", count: 600), body: Data("long key".utf8)))
    all.append(fixture.response("http://a.example/", body: Data("of a tenant".utf8), partition: "tenant"))
    // Chunks of four pages, the last one shorter; and an end that is a chunk of its own.
    for count in [40_000, 4096] { all.append(fixture.response("http://chunks.example/\(count)", body: body(count))) }
    for (name, value) in [("de", "de"), ("en", "en"), ("none", nil)] as [(String, String?)] {
      var variant = fixture.response(
        "http://variants.example/", body: Data(name.utf8),
        vary: VarySelection(selectors: [.init(name: "accept-language", value: value)]))
      variant.facts.flags = [.hasVary]
      all.append(variant)
    }
    var validated = fixture.response(
      "http://facts.example/", fields: ["ETag": "\"v\"", "Set-Cookie": "a", "set-cookie": "b"])
    validated.status = 404
    validated.attachment = [0, 1, 255]
    validated.facts = FreshnessFacts(
      responseTime: fixture.clock.now - 5, initialAge: 2.5, lifetime: 1e6, date: fixture.clock.now - 8,
      staleWhileRevalidate: 30, staleIfError: 60, flags: [.strongETag, .mustRevalidate])
    all.append(validated)
    return all
  }

  private static let replacedURL = "http://replaced.example/"
  private static let removedURLs = [
    "http://removed.example/key", "http://host.removed.example/", "http://log.removed.example/1",
    "http://log.removed.example/2",
  ]
  /// More than are deleted at once, so that the removal of their group leaves a mark; every tenth is a member.
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

  @Test("The store of format 5 opens, holds every response with its content, and keeps all invariants")
  func format5() throws {
    let fixture = try openCopy(of: "format-5")
    defer { fixture.finish() }
    #expect(fixture.logged.all == [])
    #expect(try unfinished(fixture.store) == [1, 1, 1], "a removal in the log, a mark, and a body without a head")
    try expectContent(fixture)
    #expect(fixture.store.checkInvariants() == [])
    try expectContent(fixture)
    fixture.drain()
    #expect(fixture.store.checkInvariants() == [])
    try expectContent(fixture)
    let memberCount = (0..<Self.groupCount).count(where: Self.isMember)
    #expect(fixture.store.entryCount == Self.responses(fixture).count + 1 + Self.groupCount - memberCount)
    #expect(try unfinished(fixture.store) == [0, 0, 0])
  }

  @Test("A store of format 4 is set aside, and an empty one takes its place")
  func format4() throws {
    let fixture = try openCopy(of: "format-4")
    defer { fixture.finish() }
    #expect(fixture.logged.all.contains { $0.contains("format 4") })
    #expect(fixture.store.entryCount == 0)
    #expect(FileManager.default.fileExists(atPath: fixture.path("data.mdb.other-version")))
    #expect(!FileManager.default.fileExists(atPath: fixture.path("LMDBURLCache.uses")))
    fixture.store.store(fixture.response(Self.replacedURL))
    fixture.drain()
    #expect(fixture.body(Self.replacedURL) != nil)
  }

  /// How many removals stand in the log alone, how many hide what is not deleted yet, and how many bodies have no head.
  private func unfinished(_ store: ResponseStore) throws -> [Int] {
    try store.file.environment.read { (transaction) throws(LMDBError) in
      [
        Int(store.removalLog.sequence - store.removalLog.adopted), try store.file.purges(in: transaction).count,
        try store.partialBodies(in: transaction).count,
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
      #expect(found.facts == expected.facts)
      #expect(found.attachment == expected.attachment)
      #expect(found.storedAt == fixture.clock.now)
    }
    #expect(fixture.body(Self.replacedURL) == Data("newer".utf8))
    for url in Self.removedURLs { #expect(fixture.body(url) == nil) }
    for number in 0..<Self.groupCount {
      #expect((fixture.body(Self.groupURL(number)) == nil) == Self.isMember(number))
    }
  }

  @Test(
    "The golden directory of the present format can be written anew",
    .enabled(if: ProcessInfo.processInfo.environment["WRITE_GOLDEN"] != nil))
  func write() throws {
    let fixture = try StoreFixture(capacity: Self.capacity)
    defer { fixture.remove() }
    let store = fixture.store
    for response in Self.responses(fixture) { store.store(response) }
    for text in ["older", "newer"] {
      store.store(fixture.response(Self.replacedURL, body: Data(text.utf8)))
      while store.writePending() {}
    }
    for url in Self.removedURLs { store.store(fixture.response(url)) }
    for number in 0..<Self.groupCount {
      let fields: HTTPFields = Self.isMember(number) ? ["Cache-Groups": "\"g\""] : [:]
      store.store(fixture.response(Self.groupURL(number), fields: fields))
    }
    while store.writePending() {}
    try addPartialBody(to: store.file)
    // In the data: deleted rows, and a mark with nothing deleted behind it yet.
    store.remove(fixture.key(Self.removedURLs[0]))
    store.removeResponses(forHost: "host.removed.example")
    store.removeResponses(inGroup: "g", origin: URL(string: Self.groupURL(0))!)
    // In the log alone.
    try store.removalLog.append(.prefix(RequestKey.prefix(host: "log.removed.example")), timeout: .seconds(10)) {}

    let golden = Self.folder.appendingPathComponent("format-\(StorageFormat.version)").path
    // The first time there is none.
    try? FileManager.default.removeItem(atPath: golden)
    try FileManager.default.createDirectory(atPath: Self.folder.path, withIntermediateDirectories: true)
    try FileManager.default.copyItem(atPath: fixture.directory, toPath: golden)
    try FileManager.default.removeItem(atPath: golden + "/lock.mdb")
    #expect(store.checkInvariants() == [])
    fixture.close()
  }

  /// A chunk without a head, as the removal of a large body leaves it under way.
  private func addPartialBody(to file: StoreFile) throws {
    try file.write { (transaction) throws(LMDBError) in
      var counters = try file.counters(in: transaction)
      let bodyID = counters.takeNumber()
      try file.meta.put(PartialBody.encode(processID: 0), for: MetaKey.partial(bodyID), in: transaction)
      try file.bodies.put(Array(Self.body(2000)), for: ChunkKey(bodyID: bodyID, index: 3), in: transaction)
      try file.setCounters(counters, in: transaction)
    }
  }
}
