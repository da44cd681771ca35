import CacheModel

/// The counters of the store: a value of `meta` that each write transaction reads and writes.
struct PersistentCounters: Sendable, Equatable {
  /// The base of the next record's row ID or the next body's ID, a multiple of ``Band/rowIDStep``. Never used twice.
  var nextRowID = Band.rowIDStep
  /// The number of records, including those that a tombstone hides.
  var entryCount: UInt64 = 0
  /// The number of records that are those of key spaces, and not responses.
  var spaceCount: UInt64 = 0
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
  /// The size in bytes from which a segment takes no more records. Not stored.
  var closingByteCount: Int { Segment.closingByteCount(capacityByteCount: Int(clamping: capacityByteCount)) }
  /// The segments that take new records.
  var openSegments = OpenSegments()

  init() {}

  init?(_ bytes: UnsafeRawBufferPointer) {
    // Eight numbers, and three for each open segment.
    guard let bytes = ChecksummedValue.content(of: bytes), bytes.count >= 64, bytes.count % 24 == 64 % 24 else {
      return nil
    }
    var reader = ByteReader(bytes)
    func next() -> UInt64 { reader.read() ?? 0 }
    nextRowID = next()
    entryCount = next()
    payloadByteCount = next()
    capacityByteCount = next()
    lastAppliedRemoval = next()
    knownRemoval = next()
    lastTombstoneChange = next()
    spaceCount = next()
    while !reader.isAtEnd {
      let (firstRowID, byteCount, recordCount) = (next(), next(), next())
      openSegments.insert(
        Segment(firstRowID: firstRowID, byteCount: Int(clamping: byteCount), recordCount: Int(clamping: recordCount)))
    }
  }

  var encoded: [UInt8] {
    var writer = ByteWriter()
    for number in [
      nextRowID, entryCount, payloadByteCount, capacityByteCount, lastAppliedRemoval, knownRemoval, lastTombstoneChange,
      spaceCount,
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

  /// The number of responses, including those that a tombstone hides.
  var responseCount: Int { Int(clamping: entryCount - min(entryCount, spaceCount)) }

  mutating func add(byteCount: Int, isKeySpace: Bool) {
    entryCount &+= 1
    if isKeySpace { spaceCount &+= 1 }
    payloadByteCount &+= UInt64(byteCount)
  }

  /// Counts the removal of a record. Counters that are wrong because of corruption stop at zero instead of trapping.
  mutating func remove(byteCount: Int, isKeySpace: Bool) {
    entryCount -= min(entryCount, 1)
    if isKeySpace { spaceCount -= min(spaceCount, 1) }
    payloadByteCount -= min(payloadByteCount, UInt64(byteCount))
  }

  mutating func replace(byteCount old: Int, with new: Int) {
    payloadByteCount -= min(payloadByteCount, UInt64(old))
    payloadByteCount &+= UInt64(new)
  }
}
