import Foundation
import LMDB
import Testing

@testable import ResponseStore

/// Frees segments in a database with an index, without the rest of a store.
@Suite("Freeing segments")
struct SegmentCleanerTests {
  private final class Fixture {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("segments-\(UUID().uuidString)").path
    let environment: LMDBEnvironment
    let logs: RecordLogs
    let file: IndexFile
    var cleaners = [SegmentCleaner(seed: 1), SegmentCleaner(seed: 1)]
    var counters = PersistentCounters()
    /// Row ID → key; simulates the other tables of a store.
    var rows: [UInt64: UInt64] = [:]
    var evicted: [UInt64] = []

    struct Abort: Error {}

    init() throws {
      try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
      let environment = try LMDBEnvironment.open(
        directory: directory, options: LMDBEnvironment.Options(mapByteCount: 64 << 20))
      self.environment = environment
      let logs = try RecordLogs(TableOpener(environment: environment, creates: true))
      self.logs = try #require(logs)
      file = IndexFile(path: directory + "/" + IndexLayout.fileName, owner: 1)
      #expect(file.use(try file.create(recordCount: 0), transactionID: environment.lastTransactionID))
      counters.capacityByteCount = 40_000 * 64
      try write { (_) throws(LMDBError) in }
    }

    func remove() {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(atPath: directory)
    }

    var index: RecordIndex { file.current! }

    func write(_ body: (borrowing WriteTransaction) throws(LMDBError) -> Void) throws {
      try environment.write { (transaction) throws(LMDBError) in
        try file.begin(transactionID: transaction.id)
        try body(transaction)
      }
      try environment.write { (transaction) throws(LMDBError) in try file.begin(transactionID: transaction.id) }
    }

    func record(_ key: UInt64, byteCount: Int) -> [UInt8] {
      withUnsafeBytes(of: key) { Array($0) } + [UInt8](repeating: UInt8(key & 0xff), count: byteCount - 8)
    }

    func store(_ keys: Range<UInt64>, byteCount: (UInt64) -> Int) throws {
      try write { (transaction) throws(LMDBError) in
        for key in keys {
          var entry = IndexEntry(
            digest: SeededGenerator.mixed(key), hostDigest: 0, rowID: 0, byteCount: byteCount(key),
            inflation: index.inflation)
          entry.rowID = entry.band(inflation: index.inflation).rowID(counters.takeNumber())
          try append(record(key, byteCount: byteCount(key)), entry, in: transaction)
          #expect(file.note(.insert(entry)))
          rows[entry.rowID] = key
        }
      }
    }

    private func append(
      _ record: [UInt8], _ entry: IndexEntry, in transaction: borrowing WriteTransaction
    ) throws(LMDBError) {
      try logs.append(
        record, entry: entry, closingByteCount: counters.closingByteCount, open: &counters.openSegments,
        in: transaction)
    }

    private func removable(_ rowID: UInt64, key: UInt64, byteCount: Int) -> RemovableRecord {
      RemovableRecord(
        rowID: rowID, checksum: 0, tag: IndexEntry.tag(of: SeededGenerator.mixed(key)), use: .forget,
        date: DateKey(time: 0, rowID: rowID), bodyID: rowID, chunkCount: 0, bodyPageCount: 0,
        recordByteCount: byteCount, byteCount: byteCount)
    }

    /// Performs one step of a cleaner; returns nil if there is nothing to evict.
    func clean(
      by number: Int = 0, limit: Int = 20, aborts: Bool = false, mayKeep: (UInt64) -> Bool = { _ in true },
      between: () throws -> Void = {}
    ) throws -> SegmentCleaner.Step? {
      var cleaner = cleaners[number]
      let found = try environment.read { (transaction) throws(LMDBError) in
        try cleaner.choose(
          logs, open: counters.openSegments, index: index, limit: limit, byteCount: 1 << 20, in: environment,
          transaction
        ) { (rowID, record) in
          let key = record.loadUnaligned(as: UInt64.self)
          return SegmentCleaner.Examination(
            removable: removable(rowID, key: key, byteCount: record.count), reason: mayKeep(key) ? nil : .requested)
        }
      }
      guard let found else { return nil }
      cleaners[number] = cleaner
      try between()
      let before = (counters, rows, evicted)
      var step: SegmentCleaner.Step?
      var removed: [IndexEntry] = []
      do {
        try write { (transaction) throws(LMDBError) in
          var changes = RecordChanges(counters: counters)
          step = try cleaner.clean(logs, rows: found, index: index, changes: &changes, in: transaction) {
            (leaving, _) throws(LMDBError) in
            for row in leaving where try logs.remove(row.rowID, in: transaction) {
              if let entry = row.entry { removed.append(entry) }
              evicted.append(rows.removeValue(forKey: row.rowID)!)
            }
            return leaving.count
          } move: { (old, changes) throws(LMDBError) in
            var entry = old
            entry.rowID = entry.band(inflation: index.inflation).rowID(changes.counters.takeNumber())
            let record = try logs.withValue(for: old.rowID, in: transaction) { (record) throws(LMDBError) in
              record.withUnsafeBytes { [UInt8]($0) }
            }
            guard let record else { return false }
            try logs.append(
              record, entry: entry, closingByteCount: changes.counters.closingByteCount,
              open: &changes.counters.openSegments, in: transaction)
            try logs.remove(old.rowID, in: transaction)
            #expect(file.note(.move(entry, from: old.rowID)))
            rows[entry.rowID] = rows.removeValue(forKey: old.rowID)
            return true
          }
          counters = changes.counters
          if aborts { throw LMDBError(code: .mapFull, function: "mdb_put") }
        }
      } catch {
        (counters, rows, evicted) = before
        return step
      }
      for entry in removed { index.remove(tag: entry.tag, rowID: entry.rowID) }
      if let step { cleaners[number].finish(step) }
      return step
    }

    /// Whether the mapping of the index has the advice `MADV_RANDOM`, according to the kernel.
    func isAccessRandom() throws -> Bool {
      let lines = MappingReport.lines(ofFile: directory + "/" + IndexLayout.fileName)
      let flags = try #require(lines.first { $0.hasPrefix("VmFlags:") })
      return flags.split(separator: " ").contains("rr")
    }

    /// Expects record logs, index, segments and expected rows to agree.
    func check(_ location: SourceLocation = #_sourceLocation) throws {
      try write { (_) throws(LMDBError) in }
      var found: [UInt64: UInt64] = [:]
      var firstRowIDs: [UInt64] = []
      try environment.read { (transaction) throws(LMDBError) in
        firstRowIDs = try logs.segments(open: counters.openSegments, in: transaction).map(\.firstRowID)
        for band in Band.all {
          try logs.forEachRow(of: band, in: transaction) { (rowID, record) in
            let key = record.loadUnaligned(as: UInt64.self)
            found[rowID] = key
            return record[8...].allSatisfy { $0 == UInt8(key & 0xff) }
          }
        }
      }
      #expect(found == rows, sourceLocation: location)
      var indexed: [UInt64: UInt64] = [:]
      index.forEachEntry(in: 0..<index.allCellCount) { indexed[$0.rowID] = $0.tag }
      #expect(indexed == rows.mapValues { IndexEntry.tag(of: SeededGenerator.mixed($0)) }, sourceLocation: location)
      let strays = rows.keys.filter { row in !firstRowIDs.contains { $0 <= row && $0 % 8 == row % 8 } }
      #expect(strays.isEmpty, sourceLocation: location)
    }
  }

  private static func byteCount(_ key: UInt64) -> Int { 200 + Int(SeededGenerator.mixed(key) % 3) * 900 }

  @Test("Steps free one segment after another until none is left")
  func everything() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    for start in stride(from: UInt64(0), to: 600, by: 100) {
      try fixture.store(start..<(start + 100), byteCount: Self.byteCount)
    }
    try fixture.check()
    var steps = 0
    while let step = try fixture.clean(), steps < 1000 {
      #expect(step.evictedCount + step.movedCount <= 20)
      steps += 1
      if steps % 7 == 0 { try fixture.check() }
    }
    #expect(fixture.rows.isEmpty)
    #expect(Set(fixture.evicted) == Set(0..<600))
    #expect(fixture.evicted.count == 600)
    #expect(fixture.index.recordCount == 0)
    try fixture.check()
  }

  @Test("Once records are evicted, the kernel takes the use of the index into account")
  func pageCache() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    try fixture.store(0..<400, byteCount: { _ in 1000 })
    // Without this, the kernel would read and write large pieces of a new file.
    #expect(try fixture.isAccessRandom())
    _ = try fixture.clean()
    #expect(try !fixture.isAccessRandom())
    try fixture.check()
  }

  /// Records uses of a key, each after its own lookup.
  private func use(_ key: UInt64, times: Int, in fixture: Fixture) {
    for _ in 0..<times {
      var matches = fixture.index.matches(of: SeededGenerator.mixed(key))
      while let match = matches.next() { fixture.index.recordUse(of: match) }
    }
  }

  @Test("Used records are appended again with their use counts, and the others are evicted")
  func survivors() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    try fixture.store(0..<400, byteCount: { _ in 1000 })
    let favorites: [UInt64] = stride(from: 0, to: 400, by: 20).map { $0 }
    for key in favorites { use(key, times: 5, in: fixture) }
    var next: UInt64 = 1000
    for _ in 0..<100 {
      try fixture.store(next..<(next + 10), byteCount: { _ in 1000 })
      next += 10
      while fixture.rows.count > 400 { _ = try fixture.clean() }
    }
    try fixture.check()
    #expect(favorites.allSatisfy { fixture.rows.values.contains($0) })
    for key in favorites {
      var matches = fixture.index.matches(of: SeededGenerator.mixed(key))
      #expect(matches.next().map { IndexEntry(tagWord: $0.tagWord, rowWord: 0).useCount } == 6)
    }
    // The best records are not moved forever: about as many are evicted as are stored.
    #expect(fixture.evicted.count < 1100)
  }

  @Test("A record that must not be kept is evicted regardless of its use count")
  func mayNotBeKept() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    try fixture.store(0..<400, byteCount: { _ in 1000 })
    for key in 0..<UInt64(400) where key % 40 == 0 { use(key, times: 5, in: fixture) }
    while fixture.rows.count > 100 { _ = try fixture.clean(mayKeep: { $0 % 80 != 0 }) }
    try fixture.check()
    #expect(fixture.rows.values.count { $0 % 80 == 40 } == 5)
    #expect(fixture.rows.values.count { $0 % 80 == 0 && fixture.evicted.contains($0) } == 0)
    #expect(fixture.evicted.count { $0 % 80 == 0 } >= 3)
  }

  @Test("An aborted transaction changes nothing, and the next one repeats its step")
  func aborted() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    try fixture.store(0..<300, byteCount: Self.byteCount)
    for number in 0..<40 {
      let before = fixture.rows
      if number % 2 == 0 {
        _ = try fixture.clean(aborts: true)
        #expect(fixture.rows == before)
      } else {
        _ = try fixture.clean()
      }
      try fixture.check()
    }
    #expect(fixture.evicted.count > 100)
  }

  @Test("Two processes can free the same segment", arguments: [1, 2, 3] as [UInt64])
  func twoCleaners(seed: UInt64) throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    var random = SeededGenerator(seed: seed)
    var next: UInt64 = 0
    for _ in 0..<60 {
      try fixture.store(next..<(next + 30), byteCount: Self.byteCount)
      next += 30
      while fixture.rows.count > 300 {
        _ = try fixture.clean(by: Int.random(in: 0...1, using: &random), limit: Int.random(in: 1...40, using: &random))
      }
    }
    try fixture.check()
    #expect(fixture.evicted.count + fixture.rows.count == Int(next), "seed \(seed)")
  }

  @Test("Changes by other processes after a step's rows were read are not lost")
  func changedMeanwhile() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    var next: UInt64 = 0
    func store(_ count: UInt64) throws {
      try fixture.store(next..<(next + count), byteCount: Self.byteCount)
      next += count
    }
    try store(200)
    for round in 0..<30 {
      _ = try fixture.clean(
        limit: .max,
        between: {
          // The segment that is being freed may be open.
          try store(3)
          if round % 3 == 0 { _ = try fixture.clean(by: 1, limit: 10) }
        })
    }
    try fixture.check()
    while fixture.rows.count > 0 { _ = try fixture.clean() }
    #expect(Set(fixture.evicted) == Set(0..<next) && fixture.evicted.count == Int(next))
    try fixture.check()
  }

  @Test("Records that the index lacks are evicted")
  func unknown() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    try fixture.store(0..<50, byteCount: { _ in 1000 })
    let unknown = fixture.rows.filter { $0.value < 10 }
    for (rowID, key) in unknown {
      fixture.index.remove(tag: IndexEntry.tag(of: SeededGenerator.mixed(key)), rowID: rowID)
    }
    while fixture.rows.contains(where: { $0.value < 10 }) { _ = try #require(try fixture.clean()) }
    try fixture.check()
  }
}
