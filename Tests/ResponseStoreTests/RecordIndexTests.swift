import Foundation
import Synchronization
import Testing

@testable import ResponseStore

/// The series `index` of Tests/Reliability runs the same operations in real processes with LMDB.
@Suite("Record index", .serialized)
struct RecordIndexTests {
  private final class Counter: Sendable {
    let value = Atomic(0)
  }

  /// An index file and the records of a simulated database.
  private final class Model {
    let path: String
    let boot: Boot
    let file: IndexFile
    let digest: (UInt64) -> UInt64
    let numberInUse: SharedWord
    /// Row ID → key, and the next row ID.
    var rows: [UInt64: UInt64] = [:]
    var next: UInt64 = 1
    var lastTransactionID: UInt64 = 0
    /// The number of index files that this process has created.
    let createdFileCount = Counter()
    var isDiskFull: Bool {
      get { access(path + ".full", F_OK) == 0 }
      set { if newValue { close(open(path + ".full", O_CREAT, 0o600)) } else { unlink(path + ".full") } }
    }

    init(
      path: String, numberInUse: SharedWord = SharedWord(), boot: Boot = .current,
      digest: @escaping (UInt64) -> UInt64 = { SeededGenerator.mixed($0) }
    ) {
      self.path = path
      self.numberInUse = numberInUse
      self.boot = boot
      self.digest = digest
      let createdFileCount = createdFileCount
      file = IndexFile(
        path: path, owner: 1, numberInUse: numberInUse, boot: boot,
        allocate: {
          createdFileCount.value.add(1, ordering: .relaxed)
          return access(path + ".full", F_OK) == 0 ? ENOSPC : posix_fallocate($0, 0, $1)
        })
    }

    /// Returns the same records as another process sees them.
    func reopened(boot: Boot? = nil) -> Model {
      let other = Model(path: path, numberInUse: numberInUse, boot: boot ?? self.boot, digest: digest)
      (other.rows, other.next, other.lastTransactionID) = (rows, next, lastTransactionID)
      return other
    }

    @discardableResult
    func begin() -> Bool {
      file.begin(transactionID: lastTransactionID + 1, recordCount: rows.count, nextRowID: next)
    }

    /// Writes a new record per transaction. Returns whether the file was replaced.
    func storeNext() -> Bool {
      let cellCount = file.current?.cellCount
      #expect(transaction(adding: 1) { $0.noteStore(1_000_000 + $0.next) })
      return file.current?.cellCount != cellCount
    }

    /// Writes records until the index begins to grow, and `count` more. Returns its number of cells.
    @discardableResult
    func beginGrowth(_ count: Int = 1) -> Int {
      #expect(begin())
      let cellCount = file.current?.cellCount ?? 0
      while rows.count < cellCount * IndexLayout.growthPercent / 100 + count { #expect(!storeNext()) }
      #expect(access(path + ".new", F_OK) == 0)
      return cellCount
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
      guard begin(), file.reserve(count) else { return false }
      body(self)
      lastTransactionID += 1
      return begin()
    }

    func rebuild() -> RebuildProgress {
      guard let index = file.current else { return .full }
      let (progress, olderRows) = index.rebuild(limit: 5) { position in
        guard case .rows(let below) = position else { return nil }
        return rows.filter { $0.key < below }.max { $0.key < $1.key }
          .map { (entry($0.value, $0.key), .rows(below: $0.key)) }
      } areSameResponse: {
        rows[$0] == rows[$1]
      }
      for rowID in olderRows { rows[rowID] = nil }
      if progress == .done { index.setRebuildPosition(nil) }
      return progress
    }

    /// Returns the rows that a lookup finds for a key.
    func find(_ key: UInt64) -> [UInt64] {
      guard var matches = file.current?.matches(of: digest(key)) else { return [] }
      var found: [UInt64] = []
      while let match = matches.next() { if rows[match.rowID] == key { found.append(match.rowID) } }
      return found
    }

    /// Expects each row in exactly one cell, no other cells, and the right sums.
    func expectExact(sourceLocation: SourceLocation = #_sourceLocation) {
      guard let index = file.current else { return #expect(Bool(false), "no index", sourceLocation: sourceLocation) }
      var found: [UInt64] = []
      index.forEachEntry(in: 0..<index.allCellCount) { found.append($0.rowID) }
      #expect(found.sorted() == rows.keys.sorted(), sourceLocation: sourceLocation)
      #expect(index.recordCount == rows.count, sourceLocation: sourceLocation)
      #expect(index.isIntact() == true, sourceLocation: sourceLocation)
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

  @Test("A cell stores the row ID, use count and tags exactly, and size and inflation approximately")
  func cell() {
    for (rowID, byteCount, inflation) in [
      (1, 64, 0), (1 << 44 - 1, 1000, 1e-9), (77, 1 << 40, 0.125), (5, 70_000, 3e6),
    ] {
      let entry = IndexEntry(
        digest: 0xfedc_ba98_7654_3210, hostDigest: 0xabcd << 48, rowID: UInt64(rowID), byteCount: byteCount,
        useCount: 9,
        inflation: inflation)
      let kept = IndexEntry(tagWord: entry.tagWord, rowWord: entry.rowWord)
      #expect((kept.tag, kept.hostTag, kept.useCount) == (0xfe_dcba_9876, 0xabc, 9))
      #expect(kept.rowID == UInt64(rowID))
      #expect(abs(kept.byteCount / Double(min(byteCount, 200 << 30)) - 1) < 0.1 || byteCount > 200 << 30)
      #expect(abs(kept.inflation - inflation) <= inflation / 8000)
      #expect(kept.tagWord == entry.tagWord && kept.rowWord == entry.rowWord)
    }
    #expect(IndexEntry(digest: 0, hostDigest: 0, rowID: 1, byteCount: 0).tagWord != 0, "0 marks a free cell")
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

  @Test("The index grows in steps of a few records, which miss no change in between")
  func growthInSteps() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { for key in 0..<300 as Range<UInt64> { $0.noteStore(key) } }
      let cellCount = model.beginGrowth()
      var random = SeededGenerator(seed: 2)
      var count = 0
      repeat {
        // Before each step, replace, move and remove records, of which a growing part has been copied.
        model.transaction { model in
          let (replaced, moved, removed) = (random.next() % 100, 100 + random.next() % 100, 200 + random.next() % 100)
          model.noteStore(replaced)
          model.noteRemoval(removed)
          if let old = model.row(of: moved) {
            #expect(model.file.note(.move(model.entry(moved, model.next), from: old)))
            model.rows[old] = nil
            model.rows[model.next] = moved
            model.next += 1
          }
        }
        model.expectExact()
        count += 1
      } while !model.storeNext()
      #expect(model.file.current?.cellCount == cellCount * 2)
      #expect(count > cellCount / IndexLayout.homeCountPerNewRecord / 2, "records were copied in \(count) steps")
      #expect(model.createdFileCount.value.load(ordering: .relaxed) == 2, "the copy missed no change")
      #expect(access(path + ".new", F_OK) != 0)
      model.expectExact()
    }
  }

  @Test("Growth keeps the use counts")
  func usesDuringGrowth() throws {
    try withFolder { path in
      let model = Model(path: path)
      for _ in 0..<3 { model.transaction { $0.noteStore(7) } }
      model.beginGrowth()
      while !model.storeNext() {}
      let index = try #require(model.file.current)
      var useCounts: [UInt64] = []
      index.forEachEntry(in: 0..<index.allCellCount) { if $0.useCount > 1 { useCounts.append($0.useCount) } }
      #expect(useCounts == [3])
    }
  }

  @Test("The index is exact if another process changes records, grows the index or ends while it grows")
  func growthInTwoProcesses() throws {
    try withFolder { path in
      let first = Model(path: path)
      first.transaction { for key in 0..<100 as Range<UInt64> { $0.noteStore(key) } }
      var cellCount = first.beginGrowth(15)
      var second = first.reopened()
      func handOver(from one: Model, to other: Model) {
        (other.rows, other.next, other.lastTransactionID) = (one.rows, one.next, one.lastTransactionID)
      }
      // The first process does not know of these changes.
      second.transaction { model in for key in 0..<60 as Range<UInt64> { model.noteRemoval(key) } }
      second.transaction { model in for key in 60..<90 as Range<UInt64> { model.noteStore(key) } }
      handOver(from: second, to: first)
      while !first.storeNext() {}
      #expect(first.file.current?.cellCount == cellCount * 2)
      first.expectExact()
      handOver(from: first, to: second)
      #expect(second.begin())
      second.expectExact()
      // Both begin to grow it; the second finishes.
      cellCount = first.beginGrowth()
      handOver(from: first, to: second)
      while !second.storeNext() {}
      handOver(from: second, to: first)
      #expect(first.begin())
      first.expectExact()
      #expect(first.file.current?.cellCount == cellCount * 2)
      #expect(access(path + ".new", F_OK) != 0)
      // The first begins; the second is closed while it grows it, too, and the first goes on.
      first.beginGrowth()
      handOver(from: first, to: second)
      #expect(!second.storeNext())
      #expect(second.file.markClean(transactionID: second.lastTransactionID + 1))
      #expect(access(path + ".new", F_OK) != 0, "a closed index leaves no file")
      handOver(from: second, to: first)
      first.lastTransactionID += 1
      while !first.storeNext() {}
      first.expectExact()
      // A process ended while it grew the index.
      first.beginGrowth()
      second = first.reopened()
      #expect(second.begin())
      #expect(access(path + ".new", F_OK) != 0)
      while !second.storeNext() {}
      second.expectExact()
    }
  }

  @Test("The index shrinks in steps after the capacity was lowered")
  func shrinking() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { for key in 0..<200 as Range<UInt64> { $0.noteStore(key) } }
      #expect(model.begin() && model.file.reserve(2000))
      let cellCount = try #require(model.file.current?.cellCount)
      model.file.setMaximumByteCount(IndexLayout.byteCount(cellCount: 512))
      var stepCount = 0
      while model.file.advanceReplacement(homeCount: 256) {
        stepCount += 1
        model.transaction { model in
          model.noteStore(UInt64(stepCount))
          model.noteRemoval(UInt64(100 + stepCount))
        }
        model.expectExact()
      }
      #expect(stepCount == cellCount / 256 - 1)
      #expect(model.file.current?.cellCount == 512)
      model.expectExact()
    }
  }

  @Test("The check of an index that is replaced meanwhile has no result")
  func checkOfReplacedIndex() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { for key in 0..<200 as Range<UInt64> { $0.noteStore(key) } }
      let index = try #require(model.file.current)
      #expect(model.file.isIntact(index) == true)
      #expect(model.begin() && model.file.reserve(2000))
      index.releaseCells()
      #expect(model.file.isIntact(index) == nil)
      #expect(model.file.isIntact(try #require(model.file.current)) == true)
    }
  }

  /// The words of the header that describe the journal, the change in progress and the progress of a rebuild.
  private static let stateWords = [
    IndexLayout.Word.transaction, IndexLayout.Word.changeCount, IndexLayout.Word.appliedCount,
    IndexLayout.Word.journalSum, IndexLayout.Word.changingHome, IndexLayout.Word.rebuildStage,
    IndexLayout.Word.rebuildRow, IndexLayout.Word.rebuildTime,
  ]

  @Test(
    "A corrupt word of the header loses no record, neither with changes to apply nor during a rebuild",
    arguments: stateWords, [false, true])
  func corruptWord(word: Int, isRebuilding: Bool) throws {
    var random = SeededGenerator(seed: UInt64(word))
    for value in [0, 1, 2, 3, 7, 20, 1 << 20, 1 << 32, 1 << 63, .max, random.next(), random.next() >> 20] {
      try withFolder { path in
        let model = Model(path: path)
        model.transaction { for key in 0..<40 as Range<UInt64> { $0.noteStore(key) } }
        if isRebuilding {
          model.file.discard()
          #expect(model.begin() && model.rebuild() == .unfinished && model.rebuild() == .unfinished)
        }
        // Committed, but not applied to the cells.
        #expect(model.begin() && model.file.reserve(20))
        for key in 30..<50 as Range<UInt64> { model.noteStore(key) }
        model.lastTransactionID += 1
        let index = try #require(model.file.current)
        index[word] = value
        // Another process continues.
        let other = model.reopened()
        #expect(other.begin())
        while other.rebuild() == .unfinished {}
        other.expectExact()
      }
    }
  }

  @Test("An index whose corruption is found while it grows is replaced")
  func growthOfCorruptIndex() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.beginGrowth()
      let index = try #require(model.file.current)
      // The block of the last home is copied last.
      index.blockSums[(index.cellCount - 1) / IndexLayout.cellsPerBlock].store(1, ordering: .relaxed)
      while model.file.current === index { _ = model.storeNext() }
      #expect(model.file.takeCorruption() && !model.file.takeCorruption())
      #expect(model.file.current?.isComplete == false)
      while model.rebuild() == .unfinished {}
      model.expectExact()
    }
  }

  @Test("A corrupt cell is found by every operation that relies on the absence of a record", arguments: [1, 3, 8])
  func corruptCell(lost: UInt64) throws {
    try withFolder { path in
      // All records have one home, so they are in adjacent cells in the order of their keys.
      let model = Model(path: path) { 0x1234_5678 << 32 | $0 << 24 }
      model.transaction { for key in 0..<10 as Range<UInt64> { $0.noteStore(key) } }
      let index = try #require(model.file.current)
      let cell = try #require(index.cell(of: IndexEntry.tag(of: model.digest(lost)), rowID: lost + 1))
      index.setTagWord(cell, 0)
      #expect(index.isIntact() == false)
      #expect(index.forEachCheckedEntry { _ in } == [cell / IndexLayout.cellsPerBlock])
      #expect(!index.isIntact(aroundHomeOf: IndexEntry.tag(of: model.digest(lost))))
      // Without the check, the cells after the removed record would move up to the lost one.
      model.transaction { $0.noteRemoval(0) }
      #expect(model.file.takeCorruption())
      #expect(model.file.current !== index)
      while model.rebuild() == .unfinished {}
      model.expectExact()
    }
  }

  @Test("Zeros in place of cells and sums, and a corrupt journal, are found")
  func zeros() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { for key in 0..<10 as Range<UInt64> { $0.noteStore(key) } }
      var index = try #require(model.file.current)
      for cell in 0..<index.allCellCount { index.setTagWord(cell, 0) }
      for block in 0..<index.blockCount { index.blockSums[block].store(0, ordering: .relaxed) }
      #expect(index.isIntact() == false)
      #expect(!index.isIntact(aroundHomeOf: IndexEntry.tag(of: model.digest(1))))
      #expect(model.begin() && !model.file.isIntact(aroundHomeOf: IndexEntry.tag(of: model.digest(1))))
      #expect(model.begin())
      while model.rebuild() == .unfinished {}
      model.expectExact()
      index = try #require(model.file.current)
      #expect(model.begin() && model.file.reserve(1))
      model.noteStore(77)
      index.journal[0].store(0, ordering: .relaxed)
      model.lastTransactionID += 1
      #expect(model.begin())
      #expect(model.file.takeCorruption() && model.file.current !== index)
      while model.rebuild() == .unfinished {}
      model.expectExact()
    }
  }

  @Test("A replacement and a hit add to the use count, and a move keeps it")
  func uses() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.transaction { $0.noteStore(1) }
      let index = try #require(model.file.current)
      func entry() -> IndexEntry? {
        var found: IndexEntry?
        index.forEachEntry(in: 0..<index.allCellCount) { found = $0 }
        return found
      }
      index.inflation = 0.5
      var matches = index.matches(of: model.digest(1))
      let found = matches.next()
      let match = try #require(found)
      index.recordUse(of: match)
      #expect(entry()?.useCount == 2)
      #expect(entry()?.inflation == 0.5)
      index.recordUse(of: match)
      #expect(entry()?.useCount == 2, "the cell has changed since it was found")
      model.transaction { $0.noteStore(1) }
      #expect(entry()?.useCount == 3)
      index.inflation = 0.75
      model.transaction { model in
        #expect(model.file.note(.move(model.entry(1, 9), from: 2)))
        model.rows = [9: 1]
        model.next = 10
      }
      #expect(entry()?.useCount == 3)
      #expect(entry()?.inflation == 0.5)
      model.expectExact()
    }
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
        #expect(other.begin())
        #expect(other.file.current?.isComplete == true)
        other.expectExact()
      }
    }
  }

  @Test("After a power failure the index is rebuilt, newest records first, and older records of a key are deleted")
  func rebuilding() throws {
    try withFolder { path in
      let first = Model(path: path)
      first.transaction { for key in 0..<30 as Range<UInt64> { $0.noteStore(key) } }
      let model = first.reopened(boot: Boot(high: 1, low: 1))
      #expect(model.begin())
      #expect(model.file.current?.isComplete == false)
      #expect(model.find(3) == [])
      // The index lacks the older record of this key.
      model.transaction { model in
        #expect(model.file.note(.insert(model.entry(3, model.next))))
        model.rows[model.next] = 3
        model.next += 1
      }
      #expect(model.find(3) == [31])
      var stepCount = 0
      while model.rebuild() != .done {
        stepCount += 1
        #expect(model.find(3) == [31])
        model.lastTransactionID += 1
        #expect(model.begin())
      }
      #expect(stepCount >= 6, "a step adds five records")
      #expect(model.rows.values.filter { $0 == 3 }.count == 1)
      model.expectExact()
    }
  }

  @Test("An index that was closed cleanly is valid after a reboot, unless the data file has changed since")
  func clean() throws {
    try withFolder { path in
      let first = Model(path: path)
      first.transaction { for key in 0..<30 as Range<UInt64> { $0.noteStore(key) } }
      #expect(first.file.markClean(transactionID: first.lastTransactionID + 1))
      let second = first.reopened(boot: Boot(high: 1, low: 1))
      #expect(second.begin())
      #expect(second.file.current?.isComplete == true)
      second.expectExact()
      #expect(second.file.markClean(transactionID: second.lastTransactionID + 1))
      second.lastTransactionID += 1
      let third = second.reopened(boot: Boot(high: 2, low: 2))
      #expect(third.begin())
      #expect(third.file.current?.isComplete == false)
    }
  }

  @Test("Without space for a larger index the old one stays in use and reports when it is full")
  func fullDisk() throws {
    try withFolder { path in
      let model = Model(path: path)
      model.isDiskFull = true
      #expect(!model.begin())
      model.isDiskFull = false
      #expect(model.begin())
      model.isDiskFull = true
      var count = 0
      while model.transaction(adding: 10, { for _ in 0..<10 { $0.noteStore($0.next) } }) { count += 10 }
      #expect(count >= IndexLayout.minimumCellCount * 7 / 10)
      model.expectExact()
      model.isDiskFull = false
      let isStored = model.transaction(adding: 10) { $0.noteStore($0.next) }
      #expect(isStored)
      model.expectExact()
    }
  }

  @Test("A lookup always finds a record while others are inserted and removed")
  func concurrency() async throws {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("index-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(atPath: folder) }
    let file = IndexFile(path: folder + "/index", owner: 1)
    func entry(_ number: UInt64) -> IndexEntry {
      IndexEntry(digest: SeededGenerator.mixed(number) >> 6, hostDigest: 0, rowID: number, byteCount: 1000)
    }
    #expect(file.begin(transactionID: 1, recordCount: 0, nextRowID: 1))
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
