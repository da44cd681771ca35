import Glibc
import LMDB

/// Records in LMDB like the store's: a row ID in `keys` and the record in `heads`, or the record alone with an index.
struct Rows {
  let environment: LMDBEnvironment
  let keys: Table<BorrowedKeyCodec, BytesCodec>
  let heads: Table<BigEndianUInt64Codec, BytesCodec>
  let file: IndexFile

  /// The offset of the key in a record, as in a store.
  static let keyOffset = 120
  /// The record header, the response's fields and a body of 1 KB.
  static let recordByteCount = keyOffset + 200 + 1024

  init(directory: String, mapByteCount: Int) throws(LMDBError) {
    mkdir(directory, 0o700)
    environment = try LMDBEnvironment.open(
      directory: directory, options: .init(mapByteCount: mapByteCount))
    keys = try environment.table("keys", key: BorrowedKeyCodec.self, value: BytesCodec.self)
    heads = try environment.table("heads", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    _ = try environment.table("bodies", key: BytesCodec.self, value: BytesCodec.self)
    file = IndexFile(path: directory + "/" + IndexLayout.fileName, owner: 1)
  }

  static func key(_ rowID: UInt64) -> [UInt8] {
    let number = IndexFiller.digest(rowID)
    return Array(
      "www.host\(number % 1000).example\0https:443\0/articles/2026/\(number)/\(rowID)/index.html\0GET\0"
        .utf8)
  }

  /// Returns the digest of a key under a secret of this process.
  static func digest(_ key: UnsafeRawBufferPointer) -> UInt64 {
    var hasher = Hasher()
    hasher.combine(bytes: key)
    return UInt64(bitPattern: Int64(hasher.finalize()))
  }

  /// Stores the rows in transactions of 2,700 and returns the seconds.
  func fill(_ rowIDs: Range<UInt64>, withKeys: Bool, withIndex: Bool) throws(LMDBError) -> Double {
    let start = now()
    var next = rowIDs.lowerBound
    var record = [UInt8](repeating: 7, count: Self.recordByteCount)
    // The body is in the record.
    record[9] = 1
    func begin(_ transaction: borrowing WriteTransaction) {
      guard withIndex else { return }
      precondition(
        file.begin(transactionID: transaction.id, recordCount: Int(next - 1), nextRowID: next)
          && file.reserve(IndexFiller.batchCount), "No space for the index")
    }
    while next < rowIDs.upperBound {
      let end = min(next + UInt64(IndexFiller.batchCount), rowIDs.upperBound)
      try environment.write { (transaction) throws(LMDBError) in
        begin(transaction)
        let batch = withIndex ? min(end, next + UInt64(file.journalCapacity)) : end
        while next < batch {
          let key = Self.key(next)
          for (offset, byte) in key.enumerated() { record[Self.keyOffset + offset] = byte }
          _ = try heads.put(record, for: next, in: transaction, mode: .append)
          if withKeys {
            let row = withUnsafeBytes(of: next) { Array($0) }
            try BytesCodec.withEncoded(key) { (key) throws(LMDBError) in
              _ = try keys.put(row, for: key, in: transaction)
            }
          }
          if withIndex {
            let digest = key.withUnsafeBytes { Self.digest($0) }
            let entry = IndexEntry(
              digest: digest, hostDigest: next << 52, rowID: next, byteCount: Self.recordByteCount)
            precondition(file.note(.insert(entry)), "The journal is full")
          }
          next += 1
        }
      }
    }
    if withIndex { try environment.write { (transaction) throws(LMDBError) in begin(transaction) } }
    return now() - start
  }

  /// Finds a row by two searches, as in format 4, and copies the record. Returns false on a miss.
  @inline(__always)
  func lookUpByKeys(_ key: UnsafeRawBufferPointer, into memory: UnsafeMutableRawPointer)
    throws(LMDBError) -> Bool
  {
    try environment.read { (transaction) throws(LMDBError) in
      let rowID = try keys.withValue(for: key, in: transaction) { (row) throws(LMDBError) in
        row.unsafeLoadUnaligned(as: UInt64.self)
      }
      guard let rowID else { return false }
      return try copy(rowID, key, into: memory, in: transaction)
    }
  }

  /// Finds a row by the index and one search, and copies the record. Returns false on a miss.
  @inline(__always)
  func lookUpByIndex(_ key: UnsafeRawBufferPointer, into memory: UnsafeMutableRawPointer)
    throws(LMDBError) -> Bool
  {
    let digest = Self.digest(key)
    return try environment.read { (transaction) throws(LMDBError) in
      guard let index = file.current else { return false }
      var matches = index.matches(of: digest)
      while let match = matches.next() {
        guard try copy(match.rowID, key, into: memory, in: transaction) else { continue }
        index.recordUse(of: match)
        return true
      }
      return false
    }
  }

  @inline(__always)
  private func copy(
    _ rowID: UInt64, _ key: UnsafeRawBufferPointer, into memory: UnsafeMutableRawPointer,
    in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> Bool {
    try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record in
        guard memcmp(record.baseAddress! + Self.keyOffset, key.baseAddress!, key.count) == 0 else {
          return false
        }
        memory.copyMemory(from: record.baseAddress!, byteCount: record.count)
        return true
      }
    } ?? false
  }
}

/// Keys whose bytes are in memory.
enum BorrowedKeyCodec: KeyCodec {
  @inlinable
  static func withEncoded<R>(
    _ key: UnsafeRawBufferPointer, _ body: (UnsafeRawBufferPointer) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    try body(key)
  }

  static func decode(_ bytes: RawSpan) -> UnsafeRawBufferPointer? { nil }
}
