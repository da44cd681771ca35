import Glibc
import LMDB

/// The check of the pages that lead to records. They have no checksums: liblmdb could end the process on one that is damaged, or store
/// what is not found again.
///
/// A small file is checked at once. A large one is checked piece by piece while the store serves, and until that is done every lookup
/// and every store checks the pages that it goes through itself.
extension ResponseStore {
  /// The most pages of a file that is checked as a whole: before it is opened, or while writers wait.
  static let pageCountCheckedAtOnce = 2048
  /// The pages that one step reads.
  private static let stepPageCount = 64

  /// For a store that is being opened: looks whether a check is under way, and at the outermost pages of each table.
  func beginCheckedReads() throws(LMDBError) {
    followStructureCheck()
    guard isStructureUnchecked.load(ordering: .relaxed) else { return }
    let names =
      Band.all.map(RecordLogs.table) + [
        RecordLogs.segmentsTable, StorageFormat.bodiesTable, StorageFormat.datesTable, StorageFormat.expiriesTable,
        StorageFormat.metaTable,
      ]
    for name in names {
      for byte in [UInt8.min, .max] {
        try withBytes(of: [UInt8](repeating: byte, count: 32)) { (key) throws(LMDBError) in
          try inOneSnapshot { (transaction) throws(LMDBError) in
            let reason = try file.environment.findBrokenPath(to: key, inTable: name, transaction)
            if reason != nil { throw LMDBError(code: .corrupted, function: "mdb_get") }
          }
        }
      }
    }
  }

  /// Takes part in a check that another process has begun, or takes it over if that is no more.
  func followStructureCheck() {
    guard storeDirectory.reasonToCheck != nil else {
      // One that this process wants for itself goes on.
      if maintenance.withLock({ $0.structurePosition == nil }) { isStructureUnchecked.store(false, ordering: .relaxed) }
      return
    }
    isStructureUnchecked.store(true, ordering: .relaxed)
    guard !options.opensExistingOnly, storeDirectory.claimCheck() else { return }
    maintenance.withLock { if $0.structurePosition == nil { $0.structurePosition = .start } }
  }

  /// A step of the check, where one is to be made; true if there are more. What it finds broken gives the store up.
  func checkStructure() throws(LMDBError) -> Bool {
    guard let position = maintenance.withLock({ $0.structurePosition }) else { return false }
    let start = MonotonicTime.now
    var finding = DataFile.StructureFinding.unfinished(position)
    if position == .start {
      finding = try file.environment.findBrokenStructure(maximumPageCount: Self.pageCountCheckedAtOnce)
    }
    if case .unfinished = finding {
      finding = try file.environment.findBrokenStructure(from: position, pageCount: Self.stepPageCount)
    }
    switch finding {
    case .broken(let reason):
      condemn(reason)
      return false
    case .sound:
      maintenance.withLock { $0.structurePosition = nil }
      storeDirectory.endCheck()
      isStructureUnchecked.store(false, ordering: .relaxed)
      return false
    case .unfinished(let next):
      maintenance.withLock { $0.structurePosition = next }
      // A quarter of the disk's time at most.
      let elapsed = MonotonicTime.now.nanoseconds - start.nanoseconds
      if options.runsInBackground { usleep(UInt32(min(elapsed / 1000 * 3, 50_000))) }
      return true
    }
  }

  // MARK: While it is under way

  /// Whether the pages that lead to dates have been checked, from which the index is rebuilt. Checks some of them if not.
  func checkDates() throws(LMDBError) -> Bool {
    guard isStructureUnchecked.load(ordering: .relaxed) else { return true }
    let (position, isDone) = maintenance.withLock { ($0.datesPosition ?? .start, $0.areDatesChecked) }
    if isDone { return true }
    switch try file.environment.findBrokenStructure(
      from: position, pageCount: 8 * Self.stepPageCount, inTable: StorageFormat.datesTable)
    {
    case .broken(let reason): condemn(reason)
    case .sound: maintenance.withLock { $0.areDatesChecked = true }
    case .unfinished(let next): maintenance.withLock { $0.datesPosition = next }
    }
    return false
  }

  /// Checks the pages that lead to all that is stored for a key.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/corrupted`` if one is broken.
  func checkPaths(to key: [UInt8], in transaction: borrowing ReadTransaction) throws(LMDBError) {
    for rowID in file.indexedRows(of: file.keyDigest(of: key)) {
      guard let band = Band(rowID: rowID) else { continue }
      try BigEndianUInt64.withEncoded(rowID) { (key) throws(LMDBError) in
        try checkPath(to: key, inTable: RecordLogs.table(of: band), transaction)
      }
      let body = try file.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record -> (id: UInt64, chunkCount: Int)? in
          guard let head = HeadLayout(record), head.hasRightChecksum else { return nil }
          return (head.bodyID(ofRow: rowID), file.chunks(of: head).count)
        }
      }
      guard case .some(.some(let body)) = body else { continue }
      for chunk in 0..<body.chunkCount {
        let key = ChunkKey(bodyID: body.id, index: UInt32(truncatingIfNeeded: chunk))
        try ChunkKeyCodec.withEncoded(key) { (key) throws(LMDBError) in
          try checkPath(to: key, inTable: StorageFormat.bodiesTable, transaction)
        }
      }
    }
  }

  /// Checks the pages that lead to what a group of stores replaces, and to where they go.
  func checkPaths(of batch: Batch) throws(LMDBError) {
    for staged in batch.stores {
      try inOneSnapshot { (transaction) throws(LMDBError) in try checkPaths(to: staged.key.bytes, in: transaction) }
    }
  }

  /// Runs a check of a few pages, and begins anew while other commits replace the snapshot that it looks at.
  private func inOneSnapshot(
    _ check: (borrowing ReadTransaction) throws(LMDBError) -> Void
  ) throws(LMDBError) {
    var tryCount = 1
    while true {
      do throws(LMDBError) {
        return try file.environment.read(check)
      } catch {
        guard error.isOutdatedSnapshot, tryCount < 1000 else { throw error }
      }
      tryCount += 1
    }
  }

  private func checkPath(
    to key: UnsafeRawBufferPointer, inTable table: String, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard let reason = try file.environment.findBrokenPath(to: key, inTable: table, transaction) else { return }
    condemn(reason)
    throw LMDBError(code: .corrupted, function: "mdb_get")
  }
}
