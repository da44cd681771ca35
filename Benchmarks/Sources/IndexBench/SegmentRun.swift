import Glibc
import LMDB

/// Fills a database with records, and then stores as many again while segments are freed: with the store's types for logs,
/// segments and index, and the date of each record, but without its queue, threads and checks.
struct SegmentRun {
  private let environment: Environment
  private let logs: RecordLogs
  private let dates: Table<BigEndianPair, BigEndianUInt64>
  private let file: IndexFile
  private let cleaner = SegmentCleaner(seed: 1)
  private let recordCount: Int
  private let usesPerStore: Int
  private var open = OpenSegments()
  private var nextRowID = Band.rowIDStep
  private var nextKey: UInt64 = 0
  private var liveCount = 0
  private var random = SystemRandomNumberGenerator()
  private var limitPageCount = Int.max
  private var evictedCount = 0
  private var movedCount = 0
  private var longest = 0.0

  private static let batchCount = 2700
  private static let recordByteCount = Rows.recordByteCount

  init(directory: String, recordCount: Int, usesPerStore: Int) throws(LMDBError) {
    self.recordCount = recordCount
    self.usesPerStore = usesPerStore
    let environment = try Environment.open(
      directory: directory, options: .init(mapByteCount: 64 << 20 + recordCount * 2800))
    self.environment = environment
    let opened = try RecordLogs { (name) throws(LMDBError) in
      try environment.table(name, key: BigEndianUInt64.self, value: BytesCodec.self)
    } segments: { (name) throws(LMDBError) in
      try environment.table(name, key: BigEndianUInt64.self, value: BigEndianPair.self)
    }
    guard let opened else { throw LMDBError(code: .corrupted, function: "mdb_dbi_open") }
    logs = opened
    dates = try environment.table("dates", key: BigEndianPair.self, value: BigEndianUInt64.self)
    file = IndexFile(path: directory + "/" + IndexLayout.fileName, owner: 1)
  }

  mutating func run() throws(LMDBError) {
    try phase("filling", recordCount * 4 / 5)
    try phase("the last fifth of filling", recordCount / 5)
    limitPageCount = try livePageCount() + 64
    let full = liveCount
    var fewest = liveCount
    for _ in 0..<10 {
      try phase("full, a tenth of a turnover", recordCount / 10)
      fewest = min(fewest, liveCount)
    }
    print("records at least \(fewest * 1000 / full) per mille of \(full)")
  }

  private mutating func phase(_ name: String, _ count: Int) throws(LMDBError) {
    sync()
    (evictedCount, movedCount, longest) = (0, 0, 0)
    let (start, processor, written) = (now(), processorTime(), Self.writtenByteCount)
    var left = count
    while left > 0 {
      let begun = now()
      let batch = min(left, Self.batchCount, max(file.journalCapacity, 512))
      while try livePageCount() + batch * Self.recordByteCount / 4096 * 3 / 2 > limitPageCount { try evict() }
      try store(batch)
      longest = max(longest, now() - begun)
      left -= batch
    }
    let (seconds, cpu) = (now() - start, processorTime() - processor)
    let stored = Double(count * Self.recordByteCount)
    print(
      "\(name): \(Int(Double(count) / seconds)) stores/s, \(Int(cpu / Double(count) * 1e9)) ns of processor time each, "
        + "\(Int(Double(Self.writtenByteCount - written) / stored * 100)) bytes written for 100 stored, "
        + "\(evictedCount * 1000 / count) evicted and \(movedCount * 1000 / count) moved for 1,000, longest batch "
        + "\(Int(longest * 1000)) ms, \(liveCount) records, file \(environment.information.lastPageNumber >> 8) MiB")
    fflush(nil)
  }

  /// What this process has given to the page cache of files, by the kernel's account.
  private static var writtenByteCount: Int {
    guard let stream = fopen("/proc/self/io", "r") else { return 0 }
    defer { fclose(stream) }
    var line = [CChar](repeating: 0, count: 256)
    while fgets(&line, CInt(line.count), stream) != nil {
      let text = String(decoding: line.prefix { $0 != 0 && $0 != 10 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
      if text.hasPrefix("write_bytes: ") { return Int(text.dropFirst("write_bytes: ".count)) ?? 0 }
    }
    return 0
  }

  private func livePageCount() throws(LMDBError) -> Int {
    try environment.read { (transaction) throws(LMDBError) in try environment.livePageCount(in: transaction) }
  }

  private func begin(_ transaction: borrowing WriteTransaction) {
    precondition(
      file.begin(transactionID: transaction.id, recordCount: liveCount, nextRowID: nextRowID), "No space for the index")
  }

  private func publish() throws(LMDBError) {
    try environment.write { (transaction) throws(LMDBError) in begin(transaction) }
  }

  private mutating func store(_ count: Int) throws(LMDBError) {
    var record = [UInt8](repeating: 7, count: Self.recordByteCount)
    try environment.write { (transaction) throws(LMDBError) in
      begin(transaction)
      precondition(file.reserve(count), "No space for the index")
      guard let index = file.current else { return }
      for _ in 0..<count {
        let key = nextKey
        nextKey += 1
        record.withUnsafeMutableBytes { $0.storeBytes(of: key, toByteOffset: Rows.keyOffset, as: UInt64.self) }
        var entry = IndexEntry(
          digest: IndexFiller.digest(key), hostDigest: key << 52, rowID: 0, byteCount: Self.recordByteCount,
          inflation: index.inflation)
        entry.rowID = entry.band(inflation: index.inflation).rowID(nextRowID)
        nextRowID += Band.rowIDStep
        try logs.append(
          record, entry: entry, closingByteCount: recordCount * Self.recordByteCount / 64, open: &open, in: transaction)
        _ = try dates.put(entry.facts, for: (key, entry.rowID), in: transaction, mode: .append)
        precondition(file.note(.insert(entry)), "The journal is full")
      }
    }
    liveCount += count
    try publish()
    // Records are used at random, whatever their age.
    guard let index = file.current else { return }
    for _ in 0..<(count * usesPerStore) {
      let key = nextKey - 1 - UInt64.random(in: 0..<min(nextKey, UInt64(recordCount)), using: &random)
      var matches = index.matches(of: IndexFiller.digest(key))
      while let match = matches.next() { index.noteUse(of: match) }
    }
  }

  private mutating func evict() throws(LMDBError) {
    let limit = Self.batchCount
    guard let index = file.current else { return }
    _ = try environment.read { (transaction) throws(LMDBError) in
      try cleaner.prepare(logs, open: open, index: index, limit: limit, in: transaction)
    }
    func key(_ record: UnsafeRawBufferPointer) -> UInt64 {
      record.loadUnaligned(fromByteOffset: Rows.keyOffset, as: UInt64.self)
    }
    var removed: [IndexEntry] = []
    let step = try environment.write { (transaction) throws(LMDBError) in
      begin(transaction)
      return try cleaner.clean(
        logs, index: file, limit: limit, byteCount: 4 << 20, closingByteCount: recordCount * Self.recordByteCount / 64,
        open: &open, nextRowID: &nextRowID, in: transaction
      ) {
        IndexFiller.digest(key($0))
      } mayKeep: { _ in
        true
      } evict: { (row) throws(LMDBError) in
        try dates.remove((row.record.withUnsafeBytes(key), row.rowID), in: transaction)
        if let entry = row.entry { removed.append(entry) }
        return true
      } move: { (row, newRowID) throws(LMDBError) in
        let date = row.record.withUnsafeBytes(key)
        try dates.remove((date, row.rowID), in: transaction)
        try dates.put(row.entry?.facts ?? 0, for: (date, newRowID), in: transaction)
      }
    }
    cleaner.finish(step)
    liveCount -= step.evictedCount
    evictedCount += step.evictedCount
    movedCount += step.movedCount
    try publish()
    for entry in removed { index.remove(tag: entry.tag, rowID: entry.rowID) }
  }
}
