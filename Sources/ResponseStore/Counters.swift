import LMDB

/// The numbers that the store keeps in `meta`, read and written in each write transaction.
struct Counters: Sendable, Equatable {
  /// From which the row ID of the next record is made, and the ID of the next body: a multiple of ``Band/rowIDStep``. Numbers are
  /// never used twice.
  var nextRowID = Band.rowIDStep
  /// How many records there are, those that a pending purge covers included.
  var entryCount: UInt64 = 0
  /// The bytes of all records and chunks, without LMDB's own.
  var payloadByteCount: UInt64 = 0
  /// The disk capacity in force for all processes.
  var capacityByteCount: UInt64 = 0
  /// Removals up to this number of the log have been taken over from it, as deleted rows or marks.
  var adoptedRemoval: UInt64 = 0
  /// The highest number of a removal that a writer knew of; no record bears a higher one.
  var knownRemoval: UInt64 = 0
  /// The transaction that last added or finished a purge.
  var lastPurgeChange: UInt64 = 0
  /// From this row ID on a record may have an older one of the same key and variant, which no index has found yet: the first
  /// that could be stored while the index is rebuilt. 0 when the index is complete.
  var firstUnindexedRowID: UInt64 = 0
  /// The size from which a segment takes no more records. Not stored.
  var closingByteCount: Int { Segment.closingByteCount(capacityByteCount: Int(clamping: capacityByteCount)) }
  /// The segments that take new records.
  var openSegments = OpenSegments()

  /// How many pages the transaction may still free by removing records; those of a body that is too much for it come free later. Not
  /// stored.
  ///
  /// At the commit LMDB writes down what came free as one value. The numbers of 509 pages fit into one page; more take pages in a
  /// row, which there may be none, however many are free.
  var freeablePageCount = 448
  /// What came free in leaves that are not yet counted as pages. Not stored.
  private var freedByteCount = 0
  /// The pages of bodies that were left for later. Not stored.
  var deferredPageCount = 0
  /// Whether the transaction has freed as much as it should.
  var hasFreedEnough: Bool { freeablePageCount <= 0 || deferredPageCount > 0 }

  init() {}

  init?(_ bytes: UnsafeRawBufferPointer) {
    guard let bytes = Checksummed.content(of: bytes) else { return nil }
    var reader = ByteReader(bytes)
    guard let nextRowID = reader.read(UInt64.self), let entryCount = reader.read(UInt64.self),
      let payloadByteCount = reader.read(UInt64.self), let capacityByteCount = reader.read(UInt64.self),
      let adoptedRemoval = reader.read(UInt64.self), let knownRemoval = reader.read(UInt64.self),
      let lastPurgeChange = reader.read(UInt64.self), let firstUnindexedRowID = reader.read(UInt64.self)
    else { return nil }
    self.nextRowID = nextRowID
    self.entryCount = entryCount
    self.payloadByteCount = payloadByteCount
    self.capacityByteCount = capacityByteCount
    self.adoptedRemoval = adoptedRemoval
    self.knownRemoval = knownRemoval
    self.lastPurgeChange = lastPurgeChange
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
      nextRowID, entryCount, payloadByteCount, capacityByteCount, adoptedRemoval, knownRemoval, lastPurgeChange,
      firstUnindexedRowID,
    ] {
      writer.append(number)
    }
    openSegments.forEach { segment in
      writer.append(segment.firstRowID)
      writer.append(UInt64(segment.byteCount))
      writer.append(UInt64(segment.recordCount))
    }
    return Checksummed.encode(writer.bytes)
  }

  /// The next number, for a record or a body.
  mutating func takeNumber() -> UInt64 {
    defer { nextRowID += Band.rowIDStep }
    return nextRowID
  }

  /// Counts bytes that come free in leaves next to one another.
  mutating func countFreed(byteCount: Int, pageByteCount: Int) {
    freedByteCount += byteCount
    freeablePageCount -= freedByteCount / pageByteCount
    freedByteCount %= pageByteCount
  }

  mutating func add(byteCount: Int) {
    entryCount &+= 1
    payloadByteCount &+= UInt64(byteCount)
  }

  /// What damage made wrong stays at zero rather than trap.
  mutating func remove(byteCount: Int) {
    entryCount -= min(entryCount, 1)
    payloadByteCount -= min(payloadByteCount, UInt64(byteCount))
  }

  mutating func replace(byteCount old: Int, with new: Int) {
    payloadByteCount -= min(payloadByteCount, UInt64(old))
    payloadByteCount &+= UInt64(new)
  }
}

/// Values of `meta` with a checksum of 8 bytes behind them: a flipped bit in them must not bring back what was removed.
enum Checksummed {
  static func encode(_ bytes: [UInt8]) -> [UInt8] {
    var writer = ByteWriter()
    writer.bytes = bytes
    writer.append(bytes.withUnsafeBytes { XXHash.digest64($0) })
    return writer.bytes
  }

  /// The bytes in front of a checksum that they match.
  static func content(of bytes: UnsafeRawBufferPointer) -> UnsafeRawBufferPointer? {
    guard bytes.count >= 8 else { return nil }
    let content = UnsafeRawBufferPointer(rebasing: bytes[..<(bytes.count - 8)])
    let checksum = bytes.loadUnaligned(fromByteOffset: bytes.count - 8, as: UInt64.self)
    return UInt64(littleEndian: checksum) == XXHash.digest64(content) ? content : nil
  }
}

/// What is fixed when a store is created.
struct FormatRecord: Sendable, Equatable {
  var version: UInt32
  var chunkByteCount: UInt32
  /// Makes the digests of credentials this store's own; 192 random bytes.
  var secret: [UInt8]

  static let secretByteCount = 192
  /// Tells this store's files from another's, without giving the secret away.
  var owner: UInt64 { secret.withUnsafeBytes { XXHash.digest64($0) } }

  init(version: UInt32, chunkByteCount: UInt32, secret: [UInt8]) {
    self.version = version
    self.chunkByteCount = chunkByteCount
    self.secret = secret
  }

  /// The version, which stands at the same place in every version.
  static func version(in bytes: UnsafeRawBufferPointer) -> UInt32? {
    var reader = ByteReader(bytes)
    return reader.read(UInt32.self)
  }

  /// Takes a record of this version; nil if it is damaged.
  init?(_ bytes: UnsafeRawBufferPointer) {
    guard let content = Checksummed.content(of: bytes) else { return nil }
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
    return Checksummed.encode(writer.bytes)
  }
}

/// The keys of `meta`.
enum MetaKey {
  static let format = Array("format".utf8)
  static let counters = Array("counters".utf8)
  /// A removal whose entries are hidden already and still to be deleted: `purge`, its number in the log of removals; or the
  /// highest number and the digest of a key that is hidden while the index is rebuilt.
  static let purgePrefix = Array("purge/".utf8)
  /// A body that is being written or removed over several transactions: `partial`, its ID.
  static let partialPrefix = Array("partial/".utf8)

  static func purge(_ sequence: UInt64) -> [UInt8] {
    purgePrefix + bigEndian(sequence)
  }

  static func partial(_ bodyID: UInt64) -> [UInt8] {
    partialPrefix + bigEndian(bodyID)
  }

  /// The number behind a prefix.
  static func number(in key: [UInt8], after prefix: [UInt8]) -> UInt64? {
    guard key.starts(with: prefix), key.count >= prefix.count + 8 else { return nil }
    return key[prefix.count..<(prefix.count + 8)].reduce(0) { $0 << 8 | UInt64($1) }
  }

  private static func bigEndian<T: FixedWidthInteger>(_ value: T) -> [UInt8] {
    withUnsafeBytes(of: value.bigEndian) { Array($0) }
  }
}
