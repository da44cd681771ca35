import Foundation
import LMDB

// The inside of a store that no public surface shows, for the other tests, which see no more of it: ways to break it,
// and to bring it into states that otherwise take a race or a crash.
@testable import ResponseStore

extension ResponseStore {
  var environment: LMDBEnvironment { context.database.environment }
  /// Whether the writer thread is within a commit, such as one that waits for another process.
  var isWriting: Bool { context.queue.withLock { $0.isWriting } }
  var hasPendingWrites: Bool { !context.pendingWrites.isEmpty }
  /// The number of removals that fit the removal log.
  var removalFrameCount: Int { context.removalLog.frameCount }
  var indexCellCount: Int? { context.database.index.current?.cellCount }
  var indexRecordCount: Int? { context.database.index.current?.recordCount }
  /// The bytes to which the capacity limits the data file.
  var maximumDataByteCount: Int { space.budget.maximumFilePageCount * context.database.pageByteCount }
  var allocatedDataByteCount: Int { context.storeDirectory.allocatedDataByteCount }

  func livePageCount() throws -> Int { try space.livePageCount() }

  func fail() { context.fail("a test said so") }

  func failIfDirectoryMoved() { context.failIfDirectoryMoved() }

  /// Passes a minute of service.
  func serveForAMinute() { maintainer.noteService(until: .now + .seconds(61)) }

  func discardAbandonedRemovals() { context.removalLog.discardAbandoned() }

  /// Logs a removal like another process, or like one that is killed then: this process's writer does not apply it.
  func logOnly(_ removal: Removal) throws { try context.removalLog.append([removal], timeout: .seconds(10)) {} }

  /// Deletes the chunks of dead writers, as a process does that finds itself alone.
  func noteUnfinishedBodies() throws { try context.database.noteUnfinishedBodies(isAlone: false) }

  /// Keeps the index from growing.
  func stopIndexGrowth() {
    guard let cellCount = indexCellCount else { return }
    context.database.index.setMaximumByteCount(IndexLayout.byteCount(cellCount: cellCount))
  }

  /// Writes a value of `meta`.
  func putMetadata(_ value: [UInt8], named name: String) throws {
    try context.database.write { [meta = context.database.meta] (transaction) throws(LMDBError) in
      _ = try meta.put(value, for: Array(name.utf8), in: transaction)
    }
  }

  /// Writes a count of entries that matches no records, which violates an invariant.
  func miscountEntries() throws {
    let database = context.database
    try database.write { (transaction) throws(LMDBError) in
      try database.change(in: transaction) { $0.counters.entryCount = 7 }
    }
  }

  /// Appends records again, as eviction does; returns how many.
  func move(_ keys: [RequestKey]) throws -> Int {
    let database = context.database
    return try database.write { (transaction) throws(LMDBError) in
      let tombstones = try context.removals.tombstones(in: transaction)
      return try database.change(in: transaction) { (changes) throws(LMDBError) in
        var count = 0
        for key in keys {
          let tag = IndexEntry.tag(of: database.keyDigest(of: key.bytes))
          guard let index = database.index.current, let rowID = database.indexedRows(ofTag: tag).first,
            let cell = index.cell(of: tag, rowID: rowID)
          else { continue }
          let entry = index.entry(in: cell)
          let band = entry.band(inflation: index.inflation)
          if try database.move(entry, to: band, unlessHiddenBy: tombstones, changes: &changes, in: transaction) {
            count += 1
          }
        }
        return count
      }
    }
  }

  /// Changes a bit at the end of each record header.
  func corruptRecords() throws {
    let database = context.database
    try database.write { (transaction) throws(LMDBError) in
      var rows: [(UInt64, [UInt8])] = []
      try database.heads.forEachRow(from: 0, in: transaction) { (rowID, record) in
        rows.append((rowID, [UInt8](record)))
        return true
      }
      for (rowID, var record) in rows {
        record[record.count - 1] ^= 1
        try database.heads.put(record, for: rowID, in: transaction)
      }
    }
  }

  /// The addresses of the chunks in the map. A page that is written gets another one.
  func chunkAddresses() throws -> [UnsafeRawPointer?] {
    let database = context.database
    return try database.environment.read { (transaction) throws(LMDBError) in
      var addresses: [UnsafeRawPointer?] = []
      try database.bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        while try cursor.next() {
          addresses.append(try cursor.withValue { chunk in chunk.withUnsafeBytes { $0.baseAddress } })
        }
      }
      return addresses
    }
  }

  /// Whether a body has chunks of one page each, for lack of runs of free pages.
  func hasSinglePageChunks() throws -> Bool {
    try environment.read { (transaction) throws(LMDBError) in
      var isFound = false
      try context.database.heads.forEachRow(from: 0, in: transaction) { (_, record) in
        isFound = isFound || RecordHeaderView(record)?.hasSinglePageChunks == true
        return true
      }
      return isFound
    }
  }

  func evictSegment() throws -> Int { try evictor.evict(pageCount: 1) }

  /// Occupies all free pages except isolated ones, with rows in `meta` that the store ignores.
  func scatterFreePages() throws {
    let file = context.database
    let mapPageCount = file.environment.information.mapByteCount / file.pageByteCount
    var numbers = 0..<0
    func key(_ number: Int) -> [UInt8] { Array("test/\(number)".utf8) }
    func put(_ count: Int, byteCount: Int) throws(LMDBError) {
      let new = numbers.upperBound..<numbers.upperBound + count
      try file.write { (transaction) throws(LMDBError) in
        for number in new {
          try file.meta.put([UInt8](repeating: 0, count: byteCount), for: key(number), in: transaction)
        }
      }
      numbers = numbers.lowerBound..<new.upperBound
    }
    // One page per row, in the order of the file; some pages stay free for transactions.
    while file.environment.information.lastPageNumber < mapPageCount - 128 { try put(32, byteCount: 4000) }
    for start in stride(from: 0, to: numbers.upperBound, by: 16) {
      try file.write { (transaction) throws(LMDBError) in
        for number in stride(from: start, to: min(start + 16, numbers.upperBound), by: 2) {
          try file.meta.remove(key(number), in: transaction)
        }
      }
    }
    do throws(LMDBError) {
      while true { try put(1, byteCount: 8000) }
    } catch {
      guard error.code == .mapFull else { throw error }
    }
  }

  /// Frees the pages that ``scatterFreePages()`` has occupied.
  func removeScatteredPages() throws {
    let database = context.database
    var isLeft = true
    while isLeft {
      isLeft = try database.write { (transaction) throws(LMDBError) in
        let prefix = Array("test/".utf8)
        var keys: [[UInt8]] = []
        try database.meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
          var more = try cursor.seek(atOrAfter: prefix)
          while more, keys.count < 64, case let key = try cursor.checkedKey(), key.starts(with: prefix) {
            keys.append(key)
            more = try cursor.next()
          }
        }
        for key in keys { try database.meta.remove(key, in: transaction) }
        return !keys.isEmpty
      }
    }
  }
}

extension RecordDatabase {
  /// Returns a copy of the record header in a row, or nil if the row is missing.
  func head(_ rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> [UInt8]? {
    try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { [UInt8]($0) }
    }
  }
}

/// The status page of a directory, with the words of the article StorageFormat by their offsets.
struct StatusPage {
  let directory: String

  static let (processNamespace, boot, crashCount, hasCrashed, format) = (192, 200, 216, 224, 248)

  subscript(offset: Int) -> UInt64 {
    get {
      var word: UInt64 = 0
      withFile { _ = pread($0, &word, 8, off_t(offset)) }
      return word
    }
    nonmutating set {
      withUnsafeBytes(of: newValue) { bytes in withFile { _ = pwrite($0, bytes.baseAddress, 8, off_t(offset)) } }
    }
  }

  private func withFile(_ body: (CInt) -> Void) {
    let descriptor = open(directory + "/users.lock", O_RDWR | O_CLOEXEC)
    precondition(descriptor >= 0, "no users.lock")
    body(descriptor)
    close(descriptor)
  }
}
