import CacheModel
import Foundation
import HTTPCaching
import LMDB
import SystemFiles
import Testing

// The size of the live data, and the view of bodies in progress that another process has, are seen only inside.
@testable import ResponseStore

@Suite("Bodies that are written while they arrive", .endsFixtures, .timeLimit(.minutes(1)))
struct IncomingBodyTests {
  static let url = "http://example.com/large"
  static let body = pseudorandomData(3_000_001, seed: 5)

  private func write(_ body: Data, in pieces: Int = 100_000, to incoming: IncomingBody) -> Bool {
    stride(from: 0, to: body.count, by: pieces).allSatisfy { start in
      incoming.write([body.subdata(in: start..<min(start + pieces, body.count))])
    }
  }

  private func store(_ incoming: IncomingBody, in fixture: StoreFixture) -> StorageOutcome {
    let head = fixture.response(Self.url).response
    return incoming.store(head, for: fixture.key(Self.url), attachment: nil, askedAt: nil, by: nil)
  }

  @Test(
    "Pieces of any size make the same body, which is visible when it is stored", arguments: [997, 65_520, 1_100_000])
  func pieces(byteCount: Int) throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    let incoming = fixture.store.makeIncomingBody()
    #expect(write(Self.body, in: byteCount, to: incoming))
    fixture.drain()
    let readable = incoming.readableByteCount
    #expect(readable > Self.body.count - 70_000)
    #expect(incoming.read(5..<readable) == Self.body[5..<readable])
    #expect(fixture.body(Self.url) == nil)
    #expect(incoming.complete())
    #expect(store(incoming, in: fixture) == .stored)
    #expect(fixture.body(Self.url) == Self.body)
    fixture.drain()
    #expect(fixture.body(Self.url) == Self.body)
    try fixture.reopen()
    #expect(fixture.body(Self.url) == Self.body)
    #expect(fixture.store.statistics.unfinishedBodyCount == 0)
  }

  @Test("A body that is not stored is deleted")
  func released() throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    fixture.drain()
    let before = try fixture.store.space.livePageCount()
    var incoming: IncomingBody? = fixture.store.makeIncomingBody()
    #expect(write(Self.body, to: incoming!))
    #expect(try fixture.store.space.livePageCount() > before + Self.body.count / 5000)
    #expect(fixture.store.statistics.arrivingByteCount > 2_900_000)
    fixture.drain()
    #expect(fixture.store.statistics.unfinishedBodyCount == 1)
    incoming = nil
    fixture.drain()
    #expect(fixture.store.statistics.unfinishedBodyCount == 0)
    #expect(fixture.store.statistics.arrivingByteCount == 0)
    #expect(try fixture.store.space.livePageCount() < before + 10)
  }

  @Test("Of bodies that need more than half of the capacity together, those that began first become complete")
  func competing() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    var bodies = (0..<4).map { _ in fixture.store.makeIncomingBody() }
    var areWritten = [true, true, true, true]
    for start in stride(from: 0, to: Self.body.count, by: 100_000) {
      let piece = Self.body.subdata(in: start..<min(start + 100_000, Self.body.count))
      for (index, body) in bodies.enumerated() where !body.write([piece]) { areWritten[index] = false }
    }
    #expect(areWritten == [true, true, false, false])
    for (index, body) in bodies.enumerated() where areWritten[index] {
      #expect(body.complete())
      let url = "\(Self.url)/\(index)"
      let response = fixture.response(url).response
      #expect(body.store(response, for: fixture.key(url), attachment: nil, askedAt: nil, by: nil) == .stored)
      #expect(fixture.body(url) == Self.body)
    }
    bodies = []
    fixture.drain()
    #expect(fixture.store.statistics.unfinishedBodyCount == 0)
  }

  @Test("An update of a response whose body has just arrived is kept")
  func update() throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    let incoming = fixture.store.makeIncomingBody()
    #expect(write(Self.body, to: incoming) && incoming.complete())
    #expect(store(incoming, in: fixture) == .stored)
    let key = fixture.key(Self.url)
    let stored = try #require(fixture.store.lookup(key, leavingBodiesBeyond: 0) { _ in true })
    var fields = stored.fields
    fields["X-Updated"] = "1"
    #expect(fixture.store.update(stored, fields: fields, freshness: stored.freshness))
    for step in 0..<3 {
      #expect(fixture.store.lookup(key) { _ in true }?.fields["X-Updated"] == "1", "\(step)")
      #expect(fixture.body(Self.url) == Self.body, "\(step)")
      if step == 0 { fixture.drain() }
      if step == 1 { try fixture.reopen() }
    }
    #expect(fixture.store.statistics.unfinishedBodyCount == 0)
  }

  @Test("A removal while the body arrives covers it; a reader has its bytes until then")
  func removed() throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    let token = fixture.store.removalToken
    let incoming = fixture.store.makeIncomingBody()
    #expect(write(Self.body, to: incoming))
    fixture.store.remove(fixture.key(Self.url))
    #expect(incoming.complete())
    #expect(incoming.read(0..<1000) == Self.body[0..<1000])
    let outcome = incoming.store(
      fixture.response(Self.url).response, for: fixture.key(Self.url), attachment: nil, askedAt: token, by: nil)
    #expect(outcome == .notStored(.writeDropped))
    #expect(fixture.body(Self.url) == nil)
  }

  @Test("Of two bodies for one key, the one that is stored last counts, and the other is deleted")
  func replaced() throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    var all = (0..<2).map { _ in fixture.store.makeIncomingBody() }
    let bodies = [Self.body, pseudorandomData(2_500_000, seed: 6)]
    for (incoming, body) in zip(all, bodies) { #expect(write(body, to: incoming)) }
    for incoming in all {
      #expect(incoming.complete())
      #expect(store(incoming, in: fixture) == .stored)
    }
    #expect(fixture.body(Self.url) == bodies[1])
    all = []
    fixture.drain()
    #expect(fixture.body(Self.url) == bodies[1])
    #expect(fixture.store.statistics.unfinishedBodyCount == 0)
    #expect(fixture.store.statistics.payloadByteCount < 2_600_000)
  }

  @Test("Bodies that arrive take at most half of what the capacity holds")
  func limit() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    let limit = fixture.store.maximumBodyByteCount
    let incoming = (0..<4).map { _ in fixture.store.makeIncomingBody() }
    var written = 0
    let piece = pseudorandomData(500_000, seed: 1)
    while incoming[written / piece.count % 4].write([piece]) { written += piece.count }
    #expect(written <= limit && written > limit - 4 * piece.count)
    #expect(incoming[written / piece.count % 4].write([Data([1])]) == false)
  }

  @Test("A body whose first transaction failed does not write into the next body, which has the same ID")
  func failedBeginning() throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    fixture.drain()
    let (store, bodies) = (fixture.store, [Self.body.prefix(500_000), Self.body.dropFirst(1_000_000).prefix(600_000)])
    let writers = bodies.map { _ in
      BodyWriter(store.context.database, space: store.space, evictor: store.evictor)
    }
    try store.scatterFreePages()
    #expect(throws: LMDBError.self) { _ = try writers[0].append([Data(bodies[0])]) }
    try store.removeScatteredPages()
    #expect(try writers[1].append([Data(bodies[1])]))
    #expect(try writers[0].append([]))
    for (writer, body) in zip(writers, bodies) {
      let location = try #require(try writer.finish()).location
      #expect(store.reader.copyBytes(0..<body.count, of: location) == body)
    }
  }

  // MARK: Blocks

  /// Changes a byte of a body in the data file.
  private func damage(_ fixture: StoreFixture, at position: Int) throws {
    let path = URL(fileURLWithPath: fixture.dataPath("data.mdb"))
    let bytes = try Data(contentsOf: path)
    let range = try #require(bytes.range(of: Self.body[position..<position + 64]))
    let file = try FileHandle(forUpdating: path)
    try file.seek(toOffset: UInt64(range.lowerBound))
    try file.write(contentsOf: Data([Self.body[position] ^ 1]))
    try file.close()
  }

  @Test(
    "A range is compared with the checksums of its blocks; a damaged block ends the record", arguments: [true, false])
  func damagedBlock(whileArriving: Bool) throws {
    let fixture = try StoreFixture(capacity: 512 << 20)
    if whileArriving {
      let incoming = fixture.store.makeIncomingBody()
      #expect(write(Self.body, to: incoming) && incoming.complete())
      #expect(store(incoming, in: fixture) == .stored)
    } else {
      fixture.store.store(fixture.response(Self.url, body: Self.body))
    }
    fixture.drain()
    fixture.close()
    try damage(fixture, at: 1_500_000)
    try fixture.open()
    let lookup = { fixture.store.lookup(fixture.key(Self.url), leavingBodiesBeyond: 1 << 20) }
    let stored = try #require(lookup()?.storedBody)
    #expect(fixture.store.checkInvariants() != [])
    #expect(fixture.store.statistics.corruptRecords == 0)
    let failed = stride(from: 0, to: Self.body.count, by: 30_000).filter { start in
      let range = start..<min(start + 30_000, Self.body.count)
      let piece = stored.read(range)
      #expect(piece == nil || piece == Self.body[range])
      return piece == nil
    }
    // The pieces that have bytes of the damaged block.
    #expect((2...4).contains(failed.count), "\(failed)")
    #expect(fixture.store.statistics.corruptRecords == 1)
    fixture.drain()
    #expect(lookup() == nil)
  }

  @Test("A body that is copied as a whole is compared as a whole, also after a range of it was read")
  func damagedCopy() throws {
    let fixture = try StoreFixture(capacity: 512 << 20)
    fixture.store.store(fixture.response(Self.url, body: Self.body))
    fixture.drain()
    fixture.close()
    try damage(fixture, at: 1_500_000)
    try fixture.open()
    let stored = fixture.store.lookup(fixture.key(Self.url), leavingBodiesBeyond: 1 << 20)?.storedBody
    #expect(stored?.read(0..<100) == Self.body[0..<100])
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.statistics.corruptRecords == 1)
    fixture.drain()
  }

  // MARK: Processes

  @Test("Other processes leave a body alone while its writer lives, and delete it after its end")
  func otherProcess() async throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    fixture.drain()
    await #expect(processExitsWith: .signal(SIGKILL)) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 64 << 20))
      let incoming = store.makeIncomingBody()
      guard incoming.write([pseudorandomData(2 << 20, seed: 1)]) else { exit(2) }
      // The view of a process in another container, in which this process does not exist.
      let other = BodiesInProgress()
      other.useLocks(of: .init(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC))
      let unfinished = try store.context.database.environment.read { (transaction) throws(LMDBError) in
        try store.context.database.unfinishedBodies(in: transaction)
      }
      guard unfinished.count == 1, !other.isAbandoned(unfinished[0].bodyID, begunBy: 1 << 30) else { exit(3) }
      kill(getpid(), SIGKILL)
    }
    #expect(fixture.store.statistics.unfinishedBodyCount == 1)
    try fixture.store.context.database.noteUnfinishedBodies(isAlone: false)
    fixture.drain()
    #expect(fixture.store.statistics.unfinishedBodyCount == 0)
  }
}
