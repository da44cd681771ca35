import Glibc
import LMDB
import Synchronization

/// A minimal store that tests the index: rows in LMDB that are found through the index.
///
/// A key is a number. Its row has a version and some bytes.
struct IndexPrototype {
  let environment: LMDBEnvironment
  /// Row ID → key, version and padding.
  let rows: Table<BigEndianUInt64Codec, BytesCodec>
  /// "next" → the next row ID.
  let meta: Table<UTF8Codec, BigEndianUInt64Codec>
  let file: IndexFile
  let digest: @Sendable (UInt64) -> UInt64
  /// The size of a row in bytes.
  static let rowByteCount = 120

  /// Opens the store in a directory.
  ///
  /// - Parameters:
  ///   - boot: The boot of the system; another value simulates a reboot.
  ///   - digest: Returns the digest that represents a key in the index.
  ///   - allocate: Allocates disk space, as for ``IndexFile``.
  init(
    directory: String, boot: Boot = .current, digest: @escaping @Sendable (UInt64) -> UInt64 = Self.spread,
    allocate: @escaping @Sendable (CInt, Int) -> CInt = { posix_fallocate($0, 0, $1) }
  ) throws(LMDBError) {
    environment = try LMDBEnvironment.open(directory: directory, options: .init(mapByteCount: 256 << 20))
    rows = try environment.table("rows", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    meta = try environment.table("meta", key: UTF8Codec.self, value: BigEndianUInt64Codec.self)
    file = IndexFile(
      path: directory + "/" + IndexLayout.fileName, owner: 4711, numberInUse: Self.sharedWord(directory + "/shared"),
      boot: boot, allocate: allocate)
    self.digest = digest
  }

  /// Maps the first word of a file, which is created if it is missing.
  private static func sharedWord(_ path: String) -> SharedWord {
    final class Mapping: Sendable {}
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CREAT | O_CLOEXEC, mode: 0o600)
    defer { close(descriptor) }
    let byteCount = IndexLayout.pageByteCount
    guard descriptor >= 0, ftruncate(descriptor, off_t(byteCount)) == 0,
      let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), memory != MAP_FAILED
    else { fatalError("\(path) cannot be mapped: errno \(errno)") }
    // It stays mapped until the process ends.
    return SharedWord(memory.bindMemory(to: Atomic<UInt64>.self, capacity: 1), in: Mapping())
  }

  /// Returns a digest of a key that is distributed as well as a keyed one.
  @Sendable static func spread(_ key: UInt64) -> UInt64 { SeededRandom.mixed(key) }

  private func entry(_ key: UInt64, rowID: UInt64) -> IndexEntry {
    IndexEntry(digest: digest(key), hostDigest: key << 60, rowID: rowID, byteCount: Self.rowByteCount)
  }

  // MARK: Writing

  /// Runs a write transaction, and afterwards applies the index changes that it recorded.
  ///
  /// Returns false, without any change, if the index has no space for them.
  func write(
    adding count: Int, _ body: (borrowing WriteTransaction, inout UInt64) throws(LMDBError) -> Void
  ) throws(LMDBError) -> Bool {
    let isDone = try environment.write { (transaction) throws(LMDBError) -> Bool in
      var next = try meta.value(for: "next", in: transaction) ?? 1
      let first = next
      let isReady = try begin(transaction, next)
      guard isReady, count == 0 || file.reserve(count) else { return false }
      try body(transaction, &next)
      if next != first { try meta.put(next, for: "next", in: transaction) }
      reachedIndexStep()
      return true
    }
    reachedIndexStep()
    guard isDone else { return false }
    return try settle()
  }

  /// Makes the index ready, as every process does first; returns whether that succeeded.
  func settle() throws(LMDBError) -> Bool {
    try environment.write { (transaction) throws(LMDBError) in
      try begin(transaction, try meta.value(for: "next", in: transaction) ?? 1)
    }
  }

  /// Marks the index as clean.
  func markClean() throws(LMDBError) -> Bool {
    try environment.write { (transaction) throws(LMDBError) in file.markClean(transactionID: transaction.id) }
  }

  private func begin(_ transaction: borrowing WriteTransaction, _ next: UInt64) throws(LMDBError) -> Bool {
    file.begin(
      transactionID: transaction.id, recordCount: try rows.statistics(in: transaction).entryCount, nextRowID: next)
  }

  /// Stores versions, which replace the present versions of their keys.
  func store(_ versions: [(key: UInt64, version: UInt64)]) throws(LMDBError) -> Bool {
    try write(adding: versions.count) { (transaction, next) throws(LMDBError) in
      var added: [UInt64: UInt64] = [:]
      for (key, version) in versions {
        var old = added[key]
        if old == nil { old = try row(of: key, in: transaction)?.rowID }
        if let old { try rows.remove(old, in: transaction) }
        var bytes = [UInt8](repeating: 7, count: Self.rowByteCount)
        bytes.withUnsafeMutableBytes {
          $0.storeBytes(of: key, toByteOffset: 0, as: UInt64.self)
          $0.storeBytes(of: version, toByteOffset: 8, as: UInt64.self)
        }
        _ = try rows.put(bytes, for: next, in: transaction, mode: .append)
        guard file.note(.insert(entry(key, rowID: next), replacing: old)) else { fail("the journal is full") }
        added[key] = next
        next += 1
      }
    }
  }

  /// Removes keys.
  ///
  /// Returns false, without any change, while the index is being rebuilt: a key may have an older row that is not in
  /// the index yet. (A store keeps such a removal as a tombstone until then.)
  func remove(_ keys: [UInt64]) throws(LMDBError) -> Bool {
    var isDone = false
    let isReady = try write(adding: 0) { (transaction, _) throws(LMDBError) in
      guard file.current?.isComplete == true else { return }
      isDone = true
      for key in keys {
        guard let old = try row(of: key, in: transaction)?.rowID else { continue }
        try rows.remove(old, in: transaction)
        guard file.note(.remove(tag: IndexEntry.tag(of: digest(key)), rowID: old)) else { fail("the journal is full") }
      }
    }
    return isReady && isDone
  }

  /// Runs one step of a rebuild and returns whether there are more.
  func rebuild(limit: Int) throws(LMDBError) -> Bool {
    var progress = RebuildProgress.done
    let isReady = try write(adding: 0) { (transaction, _) throws(LMDBError) in
      guard let index = file.current else { return }
      let step = try rows.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        try index.rebuild(limit: limit) {
          (position) throws(LMDBError) -> (entry: IndexEntry, next: RebuildPosition)? in
          guard case .rows(let rowID) = position else { return nil }
          _ = try cursor.seek(atOrAfter: rowID)
          guard try cursor.previous(), let rowID = cursor.key else { return nil }
          let key = try cursor.withValue { (row) throws(LMDBError) in Self.decode(row).key }
          return (entry(key, rowID: rowID), .rows(below: rowID))
        } areSameResponse: { (rowID, other) throws(LMDBError) -> Bool in
          let keys = try (decoded(rowID, in: transaction)?.key, decoded(other, in: transaction)?.key)
          return keys.0 != nil && keys.0 == keys.1
        }
      }
      for rowID in step.olderRows { try rows.remove(rowID, in: transaction) }
      progress = step.progress
      if progress == .done { index.setRebuildPosition(nil) }
    }
    return isReady && progress != .done
  }

  // MARK: Reading

  /// Returns the version of a key, or nil on a miss; never waits for a writer.
  func lookup(_ key: UInt64) throws(LMDBError) -> UInt64? {
    try environment.read { (transaction) throws(LMDBError) in
      try row(of: key, in: transaction)?.version
    }
  }

  private func row<T: Transaction & ~Copyable>(
    of key: UInt64, in transaction: borrowing T
  ) throws(LMDBError) -> (rowID: UInt64, version: UInt64)? {
    while let index = file.current {
      var matches = index.matches(of: digest(key))
      while let match = matches.next() {
        guard let row = try decoded(match.rowID, in: transaction), row.key == key else { continue }
        index.recordUse(of: match)
        return (match.rowID, row.version)
      }
      // Another thread may have replaced this index by a larger one.
      if file.current === index { break }
    }
    return nil
  }

  private func decoded<T: Transaction & ~Copyable>(
    _ rowID: UInt64, in transaction: borrowing T
  ) throws(LMDBError) -> (key: UInt64, version: UInt64)? {
    try rows.withValue(for: rowID, in: transaction) { (row) throws(LMDBError) in Self.decode(row) }
  }

  private static func decode(_ row: RawSpan) -> (key: UInt64, version: UInt64) {
    (row.unsafeLoadUnaligned(as: UInt64.self), row.unsafeLoadUnaligned(fromByteOffset: 8, as: UInt64.self))
  }

  // MARK: Checking

  /// Returns the keys and versions of all rows.
  func allRows() throws(LMDBError) -> [UInt64: (key: UInt64, version: UInt64)] {
    try environment.read { (transaction) throws(LMDBError) in
      var all: [UInt64: (key: UInt64, version: UInt64)] = [:]
      try rows.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        while try cursor.next() {
          all[cursor.key ?? 0] = try cursor.withValue { (row) throws(LMDBError) in Self.decode(row) }
        }
      }
      return all
    }
  }

  /// Compares lookups with a scan of all rows and returns the first difference, or nil.
  ///
  /// - Parameter mayMiss: Whether misses are correct.
  func findWrongLookup(keyCount: UInt64, mayMiss: Bool) throws(LMDBError) -> String? {
    var newest: [UInt64: UInt64] = [:]
    for row in try allRows().values { newest[row.key] = max(newest[row.key] ?? 0, row.version) }
    for key in 0..<keyCount {
      let found = try lookup(key)
      if found == newest[key] || (found == nil && mayMiss) { continue }
      return "key \(key) has version \(newest[key] ?? 0), but a lookup finds \(found ?? 0)"
    }
    return nil
  }

  /// Compares a complete index with the rows and returns the first difference, or nil.
  ///
  /// Each row must have one cell, and no key may have two rows.
  func findDifference() throws(LMDBError) -> String? {
    guard let index = file.current, index.isComplete else { return "the index is not complete" }
    let all = try allRows()
    var entries: [UInt64: IndexEntry] = [:]
    var cellCount = 0
    index.forEachEntry(in: 0..<index.allCellCount) {
      entries[$0.rowID] = $0
      cellCount += 1
    }
    if cellCount != entries.count { return "\(cellCount) cells name \(entries.count) rows" }
    if cellCount != index.recordCount { return "\(cellCount) cells, and a count of \(index.recordCount)" }
    if Set(entries.keys) != Set(all.keys) { return "\(entries.count) rows in the index, \(all.count) in the database" }
    for (rowID, row) in all where entries[rowID]?.tag != IndexEntry.tag(of: digest(row.key)) {
      return "row \(rowID) has the tag of another key"
    }
    if Set(all.values.map(\.key)).count != all.count { return "a key has two rows" }
    return nil
  }
}
