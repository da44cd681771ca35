import FoundationEssentials
import LMDB

/// The counters of the store: a value of `meta` that each write transaction reads and writes.
///
/// Some members are not stored. They count the work of the current transaction.
struct PersistentCounters: Sendable, Equatable {
  /// The base of the next record's row ID or the next body's ID, a multiple of ``Band/rowIDStep``. Never used twice.
  var nextRowID = Band.rowIDStep
  /// The number of records, including those that a tombstone hides.
  var entryCount: UInt64 = 0
  /// The bytes of all records and chunks, without LMDB's overhead.
  var payloadByteCount: UInt64 = 0
  /// The disk capacity in bytes, in force for all processes.
  var capacityByteCount: UInt64 = 0
  /// The last removal that was applied from the removal log, as deleted rows or a tombstone.
  var lastAppliedRemoval: UInt64 = 0
  /// The highest removal sequence number that a writer knew. No record has a higher one.
  var knownRemoval: UInt64 = 0
  /// The transaction that last added or deleted a tombstone.
  var lastTombstoneChange: UInt64 = 0
  /// The first row ID that could be stored while the index was incomplete; 0 when the index is complete.
  ///
  /// From this row ID on, a record may have an older record of the same key and variant that the index did not contain.
  var firstUnindexedRowID: UInt64 = 0
  /// The size in bytes from which a segment takes no more records. Not stored.
  var closingByteCount: Int { Segment.closingByteCount(capacityByteCount: Int(clamping: capacityByteCount)) }
  /// The segments that take new records.
  var openSegments = OpenSegments()

  /// The number of pages that the transaction may still free by deleting records. Not stored.
  ///
  /// LMDB writes the numbers of the pages that a commit frees as one value. 509 numbers fit into one page. A larger
  /// value needs contiguous pages, which may not exist even if many pages are free. Bodies beyond the limit are deleted
  /// later.
  var freeablePageCount = 448
  /// The bytes freed in leaves that are not yet counted as pages. Not stored.
  private var freedByteCount = 0
  /// The pages of bodies that later transactions delete. Not stored.
  var deferredPageCount = 0
  /// Whether the transaction has freed enough pages.
  var hasFreedEnough: Bool { freeablePageCount <= 0 || deferredPageCount > 0 }

  init() {}

  init?(_ bytes: UnsafeRawBufferPointer) {
    guard let bytes = ChecksummedValue.content(of: bytes) else { return nil }
    var reader = ByteReader(bytes)
    guard let nextRowID = reader.read(UInt64.self), let entryCount = reader.read(UInt64.self),
      let payloadByteCount = reader.read(UInt64.self), let capacityByteCount = reader.read(UInt64.self),
      let lastAppliedRemoval = reader.read(UInt64.self), let knownRemoval = reader.read(UInt64.self),
      let lastTombstoneChange = reader.read(UInt64.self), let firstUnindexedRowID = reader.read(UInt64.self)
    else { return nil }
    self.nextRowID = nextRowID
    self.entryCount = entryCount
    self.payloadByteCount = payloadByteCount
    self.capacityByteCount = capacityByteCount
    self.lastAppliedRemoval = lastAppliedRemoval
    self.knownRemoval = knownRemoval
    self.lastTombstoneChange = lastTombstoneChange
    self.firstUnindexedRowID = firstUnindexedRowID
    while let firstRowID = reader.read(UInt64.self) {
      guard let byteCount = reader.read(UInt64.self), let recordCount = reader.read(UInt64.self) else { return nil }
      openSegments.insert(
        Segment(firstRowID: firstRowID, byteCount: Int(clamping: byteCount), recordCount: Int(clamping: recordCount)))
    }
  }

  var encoded: [UInt8] {
    var writer = ByteWriter()
    for number in [
      nextRowID, entryCount, payloadByteCount, capacityByteCount, lastAppliedRemoval, knownRemoval, lastTombstoneChange,
      firstUnindexedRowID,
    ] {
      writer.append(number)
    }
    openSegments.forEach { segment in
      writer.append(segment.firstRowID)
      writer.append(UInt64(segment.byteCount))
      writer.append(UInt64(segment.recordCount))
    }
    return ChecksummedValue.encode(writer.bytes)
  }

  /// Returns the next number for a record or a body.
  mutating func takeNumber() -> UInt64 {
    defer { nextRowID += Band.rowIDStep }
    return nextRowID
  }

  /// Counts bytes freed in adjacent leaves.
  mutating func countFreed(byteCount: Int, pageByteCount: Int) {
    freedByteCount += byteCount
    freeablePageCount -= freedByteCount / pageByteCount
    freedByteCount %= pageByteCount
  }

  mutating func add(byteCount: Int) {
    entryCount &+= 1
    payloadByteCount &+= UInt64(byteCount)
  }

  /// Counts the removal of a record. Counters that are wrong because of corruption stop at zero instead of trapping.
  mutating func remove(byteCount: Int) {
    entryCount -= min(entryCount, 1)
    payloadByteCount -= min(payloadByteCount, UInt64(byteCount))
  }

  mutating func replace(byteCount old: Int, with new: Int) {
    payloadByteCount -= min(payloadByteCount, UInt64(old))
    payloadByteCount &+= UInt64(new)
  }
}

/// The encoding of values of `meta` with an 8-byte checksum, so that a flipped bit does not make removed responses
/// reappear.
enum ChecksummedValue {
  static func encode(_ bytes: [UInt8]) -> [UInt8] {
    var writer = ByteWriter()
    writer.bytes = bytes
    writer.append(bytes.withUnsafeBytes { XXHash.digest64($0) })
    return writer.bytes
  }

  /// Returns the bytes before the checksum, or nil if they do not match it.
  static func content(of bytes: UnsafeRawBufferPointer) -> UnsafeRawBufferPointer? {
    guard bytes.count >= 8 else { return nil }
    let content = UnsafeRawBufferPointer(rebasing: bytes[..<(bytes.count - 8)])
    let checksum = bytes.loadUnaligned(fromByteOffset: bytes.count - 8, as: UInt64.self)
    return UInt64(littleEndian: checksum) == XXHash.digest64(content) ? content : nil
  }
}

/// The properties that are fixed when a store is created.
struct FormatRecord: Sendable, Equatable {
  var version: UInt32
  var chunkByteCount: UInt32
  /// 192 random bytes that key the digests of this store.
  var secret: [UInt8]

  static let secretByteCount = 192
  /// The store's identity in other files; it does not reveal the secret.
  var owner: UInt64 { secret.withUnsafeBytes { XXHash.digest64($0) } }

  init(version: UInt32, chunkByteCount: UInt32, secret: [UInt8]) {
    self.version = version
    self.chunkByteCount = chunkByteCount
    self.secret = secret
  }

  /// Reads the version, whose position is the same in every version.
  static func version(in bytes: UnsafeRawBufferPointer) -> UInt32? {
    var reader = ByteReader(bytes)
    return reader.read(UInt32.self)
  }

  /// Decodes a record of this version; nil if it is corrupt.
  init?(_ bytes: UnsafeRawBufferPointer) {
    guard let content = ChecksummedValue.content(of: bytes) else { return nil }
    var reader = ByteReader(content)
    guard let version = reader.read(UInt32.self), let chunkByteCount = reader.read(UInt32.self), chunkByteCount > 0,
      let secret = reader.readBytes(Self.secretByteCount)
    else { return nil }
    self.init(version: version, chunkByteCount: chunkByteCount, secret: [UInt8](secret))
  }

  var encoded: [UInt8] {
    var writer = ByteWriter()
    writer.append(version)
    writer.append(chunkByteCount)
    writer.bytes += secret
    return ChecksummedValue.encode(writer.bytes)
  }
}

/// The keys of `meta`.
enum MetaKey {
  static let format = Array("format".utf8)
  static let counters = Array("counters".utf8)
  /// The prefix of tombstones, followed by the sequence number in the removal log, and for a soft removal by its kind
  /// and time.
  ///
  /// A reader that ignores the bytes after the number applies a soft removal as a hard one.
  ///
  /// The tombstone of a key that is hidden while the index is rebuilt has the highest number, then the key's digest.
  static let tombstonePrefix = Array("purge/".utf8)
  /// The prefix of bodies that several transactions write or delete, followed by the body's ID.
  static let partialPrefix = Array("partial/".utf8)

  static func tombstone(_ sequence: UInt64, _ mode: RemovalMode) -> [UInt8] {
    let key = tombstonePrefix + bigEndian(sequence)
    guard case .soft(let date) = mode else { return key }
    return key + [softKind] + bigEndian(date.timeIntervalSinceReferenceDate.bitPattern)
  }

  /// Returns the mode of the removal with this key.
  static func mode(ofTombstone key: [UInt8]) -> RemovalMode {
    let start = tombstonePrefix.count + 8
    guard key.count == start + 9, key[start] == softKind,
      let bits = number(in: Array(key[start...]), after: [softKind])
    else { return .hard }
    return .soft(at: Date(timeIntervalSinceReferenceDate: Double(bitPattern: bits)))
  }

  private static let softKind: UInt8 = 1

  static func partial(_ bodyID: UInt64) -> [UInt8] {
    partialPrefix + bigEndian(bodyID)
  }

  /// Returns the number after a prefix.
  static func number(in key: [UInt8], after prefix: [UInt8]) -> UInt64? {
    guard key.starts(with: prefix), key.count >= prefix.count + 8 else { return nil }
    return key[prefix.count..<(prefix.count + 8)].reduce(0) { $0 << 8 | UInt64($1) }
  }

  private static func bigEndian<T: FixedWidthInteger>(_ value: T) -> [UInt8] {
    withUnsafeBytes(of: value.bigEndian) { Array($0) }
  }
}
