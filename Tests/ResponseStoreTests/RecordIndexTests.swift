import Foundation
import LMDB
import Synchronization
import Testing

// The index without a store: cells, journal, and a process that dies at each step.
@testable import ResponseStore

/// The series `index` of Tests/Reliability runs the same operations in real processes with LMDB.
@Suite("Record index", .serialized)
struct RecordIndexTests {
  /// An index file and the records of a simulated database.
  private final class Model {
    let path: String
    let file: IndexFile
    let digest: (UInt64) -> UInt64
    let numberInUse: SharedWord
    /// Row ID → key, and the next row ID.
    var rows: [UInt64: UInt64] = [:]
    var next: UInt64 = 1
    var lastTransactionID: UInt64 = 0
    /// Whether no new file can be created, because its name is that of a folder.
    var isDiskFull: Bool {
      get { access(path + ".new/.", F_OK) == 0 }
      set {
        // A killed process may have left a file.
        if newValue { unlink(path + ".new") }
        if newValue { mkdir(path + ".new", 0o700) } else { rmdir(path + ".new") }
      }
    }

    init(
      path: String, numberInUse: SharedWord = .zero,
      digest: @escaping (UInt64) -> UInt64 = { SeededGenerator.mixed($0) }
    ) {
      self.path = path
      self.numberInUse = numberInUse
      self.digest = digest
      file = IndexFile(path: path, owner: 1, numberInUse: numberInUse)
    }

    /// Returns the same records as another process sees them.
    func reopened() -> Model {
      let other = Model(path: path, numberInUse: numberInUse, digest: digest)
      other.takeOver(from: self)
      return other
    }

    func takeOver(from other: Model) {
      (rows, next, lastTransactionID) = (other.rows, other.next, other.lastTransactionID)
    }

    /// Begins a write transaction. Builds the index first if it is absent.
    @discardableResult
    func begin() -> Bool {
      do throws(LMDBError) {
        if file.isAbsent { guard try build() else { return false } }
        try file.begin(transactionID: lastTransactionID + 1)
        return true
      } catch {
        return false
      }
    }

    private func build() throws(LMDBError) -> Bool {
      let new = try file.create(recordCount: rows.count)
      guard new.index.add(rows.map { (entry($0.value, $0.key).tagWord, $0.key) }) else { return false }
      new.index.occupancy = (rows.count, nil)
      return file.use(new, transactionID: lastTransactionID + 1)
    }

    /// Replaces the index if `count` more records need a larger one, or if it is too large.
    func resize(adding count: Int = 0) {
      guard begin(), let cellCount = file.wantedCellCount(adding: count) else { return }
      do throws(LMDBError) {
        let new = try file.create(cellCount: cellCount)
        #expect(file.replace(with: new, transactionID: lastTransactionID + 1))
      } catch {
        #expect(isDiskFull)
      }
    }

    func entry(_ key: UInt64, _ rowID: UInt64) -> IndexEntry {
      IndexEntry(digest: digest(key), hostDigest: key << 52, rowID: rowID, byteCount: 1000)
    }

    func row(of key: UInt64) -> UInt64? { rows.first { $0.value == key }?.key }

    /// Records the first write or the replacement of a key's record, as part of a transaction.
    func noteStore(_ key: UInt64) {
      let old = row(of: key)
      #expect(file.note(.insert(entry(key, next), replacing: old)))
      if let old { rows[old] = nil }
      rows[next] = key
      next += 1
    }

    func noteRemoval(_ key: UInt64) {
      guard let old = row(of: key) else { return }
      #expect(file.note(.remove(tag: IndexEntry.tag(of: digest(key)), rowID: old)))
      rows[old] = nil
    }

    /// Runs a write transaction and the publication after its commit.
    @discardableResult
    func transaction(adding count: Int = 0, _ body: (Model) -> Void) -> Bool {
      resize(adding: count)
      guard begin(), file.hasSpace(for: count) else { return false }
      body(self)
      lastTransactionID += 1
      return begin()
    }

    /// Returns the rows that a lookup finds for a key.
    func find(_ key: UInt64) -> [UInt64] {
      guard var matches = file.current?.matches(of: digest(key)) else { return [] }
      var found: [UInt64] = []
      while let match = matches.next() { if rows[match.rowID] == key { found.append(match.rowID) } }
      return found
    }

    /// Expects each row in exactly one cell, and no other cells.
    func expectExact(sourceLocation: SourceLocation = #_sourceLocation) {
      guard let index = file.current else { return #expect(Bool(false), "no index", sourceLocation: sourceLocation) }
      var found: [UInt64] = []
      index.forEachEntry(in: 0..<index.allCellCount) { found.append($0.rowID) }
      #expect(found.sorted() == rows.keys.sorted(), sourceLocation: sourceLocation)
      #expect(index.recordCount == rows.count, sourceLocation: sourceLocation)
      for (rowID, key) in rows { #expect(find(key).contains(rowID), sourceLocation: sourceLocation) }
    }
  }

  private func withFolder(_ body: (String) throws -> Void) throws {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("index-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(atPath: folder) }
    try body(folder + "/index")
  }

  @Test("Writes, replacements and removals keep the index exact while it grows", arguments: [1, 40])
  func changes(keysPerDigest: UInt64) throws {
    try withFolder { path in
      let model = Model(path: path) { SeededGenerator.mixed($0 / keysPerDigest) }
      var random = SeededGenerator(seed: 1)
      for round in 0..<120 {
        model.transaction(adding: 12) { model in
          for _ in 0..<12 {
            let key = random.next() % 700
            if random.next() % 4 == 0 { model.noteRemoval(key) } else { model.noteStore(key) }
          }
        }
        if round % 20 == 19 { model.expectExact() }
      }
      #expect(model.file.current?.cellCount ?? 0 > IndexLayout.minimumCellCount)
      for key in 0..<700 as Range<UInt64> { #expect(model.find(key).count == (model.row(of: key) == nil ? 0 : 1)) }
    }
  }

  @Test("Growth keeps the records with their use counts, and the other process uses the new file")
  func growth() throws {
    try withFolder { path in
      let model = Model(path: path)
      for _ in 0..<3 { model.transaction { $0.noteStore(7) } }
      let other = model.reopened()
      #expect(other.begin())
      let cellCount = try #require(model.file.current?.cellCount)
      while model.file.current?.cellCount == cellCount {
        #expect(model.transaction(adding: 10) { model in for _ in 0..<10 { model.noteStore(100 + model.next) } })
      }
      #expect(model.file.current?.cellCount == 2 * cellCount)
      #expect(access(path + ".new", F_OK) != 0)
      model.expectExact()
      other.takeOver(from: model)
      #expect(other.file.current?.cellCount == 2 * cellCount, "a lookup maps the new file")
      #expect(other.transaction { $0.noteRemoval(7) })
      other.expectExact()
      model.takeOver(from: other)
      #expect(model.begin())
      model.expectExact()
      let index = try #require(model.file.current)
      #expect(index.ghost(tag: IndexEntry.tag(of: model.digest(7))) == 0)
    }
  }

  @Test("An index that does not fit the last commit is absent for all processes until it is built again")
  func foreign() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { for key in 0..<20 as Range<UInt64> { $0.noteStore(key) } }
      let other = model.reopened()
      // A commit that the index has missed.
      model.rows[21] = 21
      (model.next, model.lastTransactionID) = (22, model.lastTransactionID + 2)
      #expect(throws: LMDBError.self) { try model.file.begin(transactionID: model.lastTransactionID + 1) }
      #expect(model.file.isAbsent && model.file.current == nil && other.file.current == nil)
      #expect(model.begin())
      model.expectExact()
      other.takeOver(from: model)
      #expect(other.begin())
      other.expectExact()
    }
  }

  @Test(
    "A process that is killed while the index grows or is built leaves an index that others complete",
    arguments: [true, false])
  func killsWithNewFile(isGrowth: Bool) throws {
    /// Returns the number of steps, or `step` if the process was killed at it.
    func run(killedAt step: Int) throws -> Int {
      var result = 0
      try withFolder { path in
        let model = Model(path: path)
        model.transaction { for key in 0..<340 as Range<UInt64> { $0.noteStore(key) } }
        let cellCount = try #require(model.file.current?.cellCount)
        if !isGrowth { model.file.discard() }
        let other = model.reopened()
        #expect(other.file.current != nil || !isGrowth)
        result = Self.run(killedAt: step) { if isGrowth { model.resize() } else { model.begin() } }
        for key in 0..<340 as Range<UInt64> { #expect(other.find(key).count == 1 || (!isGrowth && result == step)) }
        #expect(other.begin())
        other.expectExact()
        other.transaction(adding: 10) { model in for key in 0..<10 as Range<UInt64> { model.noteStore(400 + key) } }
        other.expectExact()
        #expect(try #require(other.file.current?.cellCount) > cellCount || !isGrowth)
      }
      return result
    }
    let stepCount = try run(killedAt: .max)
    #expect(stepCount > 300)
    for step in Set(1...12).union(stride(from: 13, to: stepCount, by: 61)).union(stepCount - 14...stepCount) {
      #expect(try run(killedAt: step) == step)
    }
  }

  /// Runs `body` on a thread, which never continues after a step of the index, like the thread of a killed process.
  /// Returns the number of steps.
  private static func run(killedAt step: Int, _ body: @escaping () -> Void) -> Int {
    let stepCount = Monitor(0)
    let isDone = Monitor(false)
    onIndexStep = {
      stepCount.withLock { $0 += 1 }
      guard stepCount.withLock({ $0 }) == step else { return }
      isDone.update { $0 = true }
      while true { pause() }
    }
    defer { onIndexStep = nil }
    nonisolated(unsafe) let work = body
    let thread = BackgroundThread {
      work()
      isDone.update { $0 = true }
    }
    guard let thread else { return 0 }
    _ = isDone.wait { $0 ? true : nil }
    _ = thread.join { _ in stepCount.withLock { $0 } != step }
    return stepCount.withLock { $0 }
  }

  @Test("Journaled changes apply if and only if their transaction was committed")
  func journal() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { for key in 0..<20 as Range<UInt64> { $0.noteStore(key) } }
      let other = model.reopened()
      other.begin()
      // Journaled, and never committed.
      model.begin()
      #expect(model.file.note(.remove(tag: IndexEntry.tag(of: model.digest(3)), rowID: 4)))
      #expect(model.file.note(.insert(model.entry(99, 21))))
      #expect(other.begin())
      other.expectExact()
      // Committed by a process that ended before publishing.
      model.begin()
      model.noteStore(3)
      model.noteRemoval(4)
      (other.rows, other.next, other.lastTransactionID) = (model.rows, model.next, model.lastTransactionID + 1)
      #expect(other.begin())
      other.expectExact()
    }
  }

  @Test("The index is exact after a process was killed at any word that it writes")
  func kills() throws {
    try withFolder { path in
      // Home cells are adjacent, so that a removal moves many entries.
      let model = Model(path: path) { SeededGenerator.mixed($0 / 2) >> 5 }
      model.transaction { for key in 0..<24 as Range<UInt64> { $0.noteStore(key) } }
      let before = (model.rows, model.next, model.lastTransactionID)
      nonisolated(unsafe) var images: [(isCommitted: Bool, bytes: Data)] = []
      nonisolated(unsafe) var isCommitted = false
      onIndexStep = {
        if let bytes = FileManager.default.contents(atPath: path) { images.append((isCommitted, bytes)) }
      }
      defer { onIndexStep = nil }
      model.begin()
      for key in [3, 41, 3] as [UInt64] { model.noteStore(key) }
      for key in [0, 17, 22] as [UInt64] { model.noteRemoval(key) }
      isCommitted = true
      model.lastTransactionID += 1
      model.begin()
      onIndexStep = nil
      #expect(images.count > 50)
      for image in images {
        try image.bytes.write(to: URL(fileURLWithPath: path))
        let other = model.reopened()
        if !image.isCommitted { (other.rows, other.next, other.lastTransactionID) = before }
        #expect(throws: Never.self) { try other.file.begin(transactionID: other.lastTransactionID + 1) }
        other.expectExact()
      }
    }
  }

  @Test("A lookup always finds a record while others are inserted and removed")
  func concurrency() async throws {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("index-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(atPath: folder) }
    let file = IndexFile(path: folder + "/index", owner: 1, numberInUse: .zero)
    func entry(_ number: UInt64) -> IndexEntry {
      IndexEntry(digest: SeededGenerator.mixed(number) >> 6, hostDigest: 0, rowID: number, byteCount: 1000)
    }
    #expect(file.use(try file.create(recordCount: 0), transactionID: 1))
    let index = try #require(file.current)
    for number in 1...20 as ClosedRange<UInt64> { #expect(index.insert(entry(number))) }
    let missed = await withTaskGroup(of: Int.self) { group in
      let isDone = Monitor(false)
      for _ in 0..<2 {
        group.addTask {
          var missed = 0
          while !isDone.withLock({ $0 }) {
            for number in 1...20 as ClosedRange<UInt64> {
              var matches = index.matches(of: SeededGenerator.mixed(number) >> 6)
              var isFound = false
              while let match = matches.next() { if match.rowID == number { isFound = true } }
              if !isFound { missed += 1 }
            }
          }
          return missed
        }
      }
      for round in 0..<200 as Range<UInt64> {
        let added = (0..<20 as Range<UInt64>).map { 100 + round * 20 + $0 }
        for number in added { _ = index.insert(entry(number)) }
        for number in added { index.remove(tag: entry(number).tag, rowID: number) }
      }
      isDone.withLock { $0 = true }
      return await group.reduce(0, +)
    }
    #expect(missed == 0)
    #expect(index.recordCount == 20)
  }
}

extension SeededGenerator {
  static func mixed(_ value: UInt64) -> UInt64 {
    var generator = SeededGenerator(seed: value)
    return generator.next()
  }
}

extension SharedWord {
  /// A zero that this process shares with its forked children.
  fileprivate static var zero: SharedWord {
    final class Page: Sendable {}
    let page = mmap(nil, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
    guard let page, page != MAP_FAILED else { fatalError("no memory for a shared number") }
    return SharedWord(page.bindMemory(to: Atomic<UInt64>.self, capacity: 1), in: Page())
  }
}
