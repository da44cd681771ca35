import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB

/// The record header of a stored response, a row of a record log.
///
/// A fixed part is followed by key, Vary key, header fields, attachment, and a body that is small enough to share
/// the leaf. Integers are little endian. Times are seconds since 2001-01-01 as IEEE 754 doubles.
///
/// The checksum at the beginning covers all bytes after it. A value of this type holds bytes whose layout was checked,
/// so its members never read out of bounds.
struct RecordHeader: Sendable {
  /// Offsets of the fixed part.
  enum Offset {
    static let checksum = 0
    static let recordVersion = 8
    static let recordFlags = 9
    static let status = 10
    static let freshnessFlags = 12
    static let keyByteCount = 16
    static let varyByteCount = 20
    static let fieldsByteCount = 24
    static let attachmentByteCount = 28
    static let bodyByteCount = 32
    static let bodyChecksum = 40
    static let storedAt = 48
    static let responseTime = 56
    static let initialAge = 64
    static let lifetime = 72
    static let date = 80
    static let staleWhileRevalidate = 88
    static let staleIfError = 96
    static let removalSequence = 104
    static let bodyID = 112
    static let updatedAt = 120
  }

  static let fixedByteCount = 128
  static let recordVersion: UInt8 = 4

  struct Flags: OptionSet {
    let rawValue: UInt8
    /// The body is at the end of the record instead of in `bodies`.
    static let bodyInline = Flags(rawValue: 1)
    /// There is an attachment, which may be empty.
    static let attachment = Flags(rawValue: 2)
    /// Each chunk in `bodies` has one page instead of several contiguous pages.
    static let singlePageChunks = Flags(rawValue: 4)
  }

  let bytes: [UInt8]

  /// Encodes the record header of a new response, with its body if both fit into `inlineByteCount`.
  ///
  /// - Parameters:
  ///   - updatedAt: When a validation last updated the response; nil if none has.
  ///   - removalSequence: The last removal before the response was stored; it does not cover the response.
  ///   - storedBodyByteCount: The size of a body that is in `bodies` already and not in `response`; otherwise nil.
  init(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]?, storedAt: Date, updatedAt: Date? = nil,
    removalSequence: UInt64, inlineByteCount: Int, bodyChecksum: UInt64, storedBodyByteCount: Int? = nil
  ) {
    let key = key.bytes
    let vary = FieldCoding.encode(response.vary)
    let fieldsByteCount = FieldCoding.byteCount(of: response.fields)
    let attachmentByteCount = attachment?.count ?? 0
    let headByteCount = Self.fixedByteCount + key.count + vary.count + fieldsByteCount + attachmentByteCount
    let isInline = storedBodyByteCount == nil && headByteCount + response.body.count <= inlineByteCount
    var flags: Flags = isInline ? .bodyInline : []
    if attachment != nil { flags.insert(.attachment) }

    // Every caller of `store` waits for this, so it does one allocation and copies each part once.
    let byteCount = headByteCount + (isInline ? response.body.count : 0)
    bytes = [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
      let record = UnsafeMutableRawBufferPointer(buffer)
      record[..<Self.fixedByteCount].initializeMemory(as: UInt8.self, repeating: 0)
      func put<T: FixedWidthInteger & BitwiseCopyable>(_ value: T, _ offset: Int) {
        record.storeBytes(of: value.littleEndian, toByteOffset: offset, as: T.self)
      }
      func put(_ value: Double, _ offset: Int) { put(value.bitPattern, offset) }
      put(Self.recordVersion, Offset.recordVersion)
      put(flags.rawValue, Offset.recordFlags)
      put(UInt16(clamping: response.status), Offset.status)
      put(response.freshness.flags.rawValue, Offset.freshnessFlags)
      put(UInt32(key.count), Offset.keyByteCount)
      put(UInt32(vary.count), Offset.varyByteCount)
      put(UInt32(fieldsByteCount), Offset.fieldsByteCount)
      put(UInt32(attachmentByteCount), Offset.attachmentByteCount)
      put(UInt64(storedBodyByteCount ?? response.body.count), Offset.bodyByteCount)
      put(bodyChecksum, Offset.bodyChecksum)
      put(storedAt.timeIntervalSinceReferenceDate, Offset.storedAt)
      put(response.freshness.responseTime.timeIntervalSinceReferenceDate, Offset.responseTime)
      put(response.freshness.initialAge, Offset.initialAge)
      put(response.freshness.lifetime, Offset.lifetime)
      put(response.freshness.date.timeIntervalSinceReferenceDate, Offset.date)
      put(response.freshness.staleWhileRevalidate, Offset.staleWhileRevalidate)
      put(response.freshness.staleIfError, Offset.staleIfError)
      put(removalSequence, Offset.removalSequence)
      put((updatedAt ?? storedAt).timeIntervalSinceReferenceDate, Offset.updatedAt)
      count = Self.fixedByteCount
      func append(_ part: UnsafeRawBufferPointer) {
        UnsafeMutableRawBufferPointer(rebasing: record[count...]).copyMemory(from: part)
        count += part.count
      }
      key.withUnsafeBytes(append)
      vary.withUnsafeBytes(append)
      count = FieldCoding.write(response.fields, at: count, of: record)
      attachment?.withUnsafeBytes(append)
      if isInline { response.body.withUnsafeBytes(append) }
      put(RecordHeaderView.checksum(of: UnsafeRawBufferPointer(record)), Offset.checksum)
    }
  }

  private init(bytes: [UInt8]) {
    self.bytes = bytes
  }

  /// The same record header for a body in single-page chunks.
  var withSinglePageChunks: RecordHeader {
    var bytes = bytes
    bytes[Offset.recordFlags] |= Flags.singlePageChunks.rawValue
    Self.renewChecksum(of: &bytes)
    return RecordHeader(bytes: bytes)
  }

  /// Returns the record header with the ID of a body whose chunks are in `bodies`.
  func withBody(_ bodyID: UInt64) -> RecordHeader {
    var bytes = bytes
    Self.setBodyID(bodyID, of: &bytes)
    return RecordHeader(bytes: bytes)
  }

  /// Sets the body ID of a record and renews its checksum.
  static func setBodyID(_ bodyID: UInt64, of record: inout [UInt8]) {
    withUnsafeBytes(of: bodyID.littleEndian) {
      record.replaceSubrange(Offset.bodyID..<Offset.bodyID + 8, with: $0)
    }
    renewChecksum(of: &record)
  }

  /// Returns the record header with another time of the last update.
  func withUpdate(at date: Date) -> RecordHeader {
    var bytes = bytes
    withUnsafeBytes(of: date.timeIntervalSinceReferenceDate.bitPattern.littleEndian) {
      bytes.replaceSubrange(Offset.updatedAt..<Offset.updatedAt + 8, with: $0)
    }
    Self.renewChecksum(of: &bytes)
    return RecordHeader(bytes: bytes)
  }

  /// Returns the record header of a response whose freshness a soft purge ended.
  func softPurged(at date: Date) -> RecordHeader {
    var bytes = bytes
    Self.setFreshness(freshness.softPurged(at: date), of: &bytes)
    return RecordHeader(bytes: bytes)
  }

  /// Sets the properties of a record that a soft purge changes, and renews its checksum.
  static func setFreshness(_ freshness: FreshnessInfo, of record: inout [UInt8]) {
    record.withUnsafeMutableBytes { putFreshness(freshness, into: $0) }
    renewChecksum(of: &record)
  }

  /// Sets the properties of a record that a soft purge changes: flags and lifetime.
  static func putFreshness(_ freshness: FreshnessInfo, into record: UnsafeMutableRawBufferPointer) {
    record.storeBytes(of: freshness.flags.rawValue.littleEndian, toByteOffset: Offset.freshnessFlags, as: UInt32.self)
    record.storeBytes(of: freshness.lifetime.bitPattern.littleEndian, toByteOffset: Offset.lifetime, as: UInt64.self)
  }

  private static func renewChecksum(of record: inout [UInt8]) {
    let checksum = record.withUnsafeBytes { RecordHeaderView.checksum(of: $0) }
    withUnsafeBytes(of: checksum.littleEndian) { record.replaceSubrange(0..<8, with: $0) }
  }

  /// Whether the body is in the record itself.
  var isBodyInline: Bool { layout { $0.isBodyInline } }
  var storedAt: Date { layout { $0.storedAt } }
  var updatedAt: Date { layout { $0.updatedAt } }
  var freshness: FreshnessInfo { layout { $0.freshness } }
  var key: RequestKey { layout { RequestKey(storedBytes: [UInt8]($0.key)) } }
  var vary: VaryKey { layout { FieldCoding.decodeVary($0.vary) } }
  var fields: HeaderFields { layout { FieldCoding.decodeFields($0.fields) } }
  var varyBytes: [UInt8] { layout { [UInt8]($0.vary) } }
  var bodyChecksum: UInt64 { layout { $0.bodyChecksum } }

  func layout<R>(_ body: (RecordHeaderView) -> R) -> R {
    bytes.withUnsafeBytes { body(RecordHeaderView(checked: $0)) }
  }
}

/// A view of a record header in borrowed bytes, valid only as long as the bytes.
struct RecordHeaderView {
  let raw: UnsafeRawBufferPointer

  /// Returns nil unless every part is within the bytes.
  init?(_ raw: UnsafeRawBufferPointer) {
    guard raw.count >= RecordHeader.fixedByteCount else { return nil }
    self.raw = raw
    guard raw[RecordHeader.Offset.recordVersion] == RecordHeader.recordVersion else { return nil }
    let head = RecordHeader.fixedByteCount + keyByteCount + varyByteCount + fieldsByteCount + attachmentByteCount
    let storedBodyByteCount: UInt64 = load(RecordHeader.Offset.bodyByteCount)
    guard storedBodyByteCount <= UInt64(Int.max / 2) else { return nil }
    guard raw.count == head + (isBodyInline ? bodyByteCount : 0) else { return nil }
  }

  /// Wraps bytes that were checked before.
  init(checked raw: UnsafeRawBufferPointer) {
    self.raw = raw
  }

  static func checksum(of record: UnsafeRawBufferPointer) -> UInt64 {
    XXHash.digest64(UnsafeRawBufferPointer(rebasing: record[8...]))
  }

  private func load<T: FixedWidthInteger & BitwiseCopyable>(_ offset: Int) -> T {
    T(littleEndian: raw.loadUnaligned(fromByteOffset: offset, as: T.self))
  }

  private func double(_ offset: Int) -> Double {
    Double(bitPattern: load(offset))
  }

  private func date(_ offset: Int) -> Date {
    Date(timeIntervalSinceReferenceDate: double(offset))
  }

  private func count(_ offset: Int) -> Int {
    Int(load(offset) as UInt32)
  }

  private func part(_ start: Int, _ count: Int) -> UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(rebasing: raw[start..<(start + count)])
  }

  private var flags: RecordHeader.Flags { RecordHeader.Flags(rawValue: raw[RecordHeader.Offset.recordFlags]) }
  private var keyByteCount: Int { count(RecordHeader.Offset.keyByteCount) }
  private var varyByteCount: Int { count(RecordHeader.Offset.varyByteCount) }
  private var fieldsByteCount: Int { count(RecordHeader.Offset.fieldsByteCount) }
  private var attachmentByteCount: Int { count(RecordHeader.Offset.attachmentByteCount) }

  var checksum: UInt64 { load(RecordHeader.Offset.checksum) }
  var hasRightChecksum: Bool { checksum == Self.checksum(of: raw) }
  var status: Int { Int(load(RecordHeader.Offset.status) as UInt16) }
  var isBodyInline: Bool { flags.contains(.bodyInline) }
  var hasAttachment: Bool { flags.contains(.attachment) }
  var hasSinglePageChunks: Bool { flags.contains(.singlePageChunks) }
  var bodyByteCount: Int { Int(load(RecordHeader.Offset.bodyByteCount) as UInt64) }
  var bodyChecksum: UInt64 { load(RecordHeader.Offset.bodyChecksum) }
  /// The last removal before the response was stored; only later removals cover it.
  var removalSequence: UInt64 { load(RecordHeader.Offset.removalSequence) }
  /// Returns the ID in the keys of the body's chunks, for a body that is not inline.
  ///
  /// It is the row ID, unless the record was moved or the body was written first.
  func bodyID(ofRow rowID: UInt64) -> UInt64 {
    let stored: UInt64 = load(RecordHeader.Offset.bodyID)
    return stored == 0 ? rowID : stored
  }
  var storedAt: Date { date(RecordHeader.Offset.storedAt) }
  /// When a validation last updated the response, or else the time of storing. Removals by date compare this time.
  ///
  /// It never becomes earlier, so that the row of `dates` moves only forward, where a sweep meets it.
  var updatedAt: Date { date(RecordHeader.Offset.updatedAt) }
  var freshness: FreshnessInfo {
    FreshnessInfo(
      responseTime: date(RecordHeader.Offset.responseTime), initialAge: double(RecordHeader.Offset.initialAge),
      lifetime: double(RecordHeader.Offset.lifetime), date: date(RecordHeader.Offset.date),
      staleWhileRevalidate: double(RecordHeader.Offset.staleWhileRevalidate),
      staleIfError: double(RecordHeader.Offset.staleIfError),
      flags: FreshnessInfo.Flags(rawValue: load(RecordHeader.Offset.freshnessFlags)))
  }

  var key: UnsafeRawBufferPointer { part(RecordHeader.fixedByteCount, keyByteCount) }
  var vary: UnsafeRawBufferPointer { part(RecordHeader.fixedByteCount + keyByteCount, varyByteCount) }
  /// A digest of the key and the Vary key, which are adjacent.
  var nameDigest: UInt64 {
    XXHash.digest64(part(RecordHeader.fixedByteCount, keyByteCount + varyByteCount)) &+ UInt64(keyByteCount)
  }
  var fields: UnsafeRawBufferPointer {
    part(RecordHeader.fixedByteCount + keyByteCount + varyByteCount, fieldsByteCount)
  }
  var attachment: UnsafeRawBufferPointer {
    part(RecordHeader.fixedByteCount + keyByteCount + varyByteCount + fieldsByteCount, attachmentByteCount)
  }
  /// The bytes of the record header and of the body, wherever it is.
  var storedByteCount: Int { raw.count + (isBodyInline ? 0 : bodyByteCount) }
  /// The record header without an inline body.
  var head: UnsafeRawBufferPointer { part(0, raw.count - (isBodyInline ? bodyByteCount : 0)) }
  var inlineBody: UnsafeRawBufferPointer {
    part(raw.count - bodyByteCount, bodyByteCount)
  }

  /// Whether this record was stored after another one of its variant, as removals in between or the times show.
  func isNewer(than other: RecordHeader) -> Bool {
    other.layout { removalSequence > $0.removalSequence || storedAt > $0.storedAt }
  }

  /// Whether `head` is the header of this record or of an update of it, which keeps key, Vary key, time and body.
  func isSameRecord(as head: RecordHeader) -> Bool {
    head.layout { head in
      bodyByteCount == head.bodyByteCount && bodyChecksum == head.bodyChecksum && storedAt == head.storedAt
        && hasSameKey(as: head) && hasSameVary(as: head)
    }
  }

  /// Whether the record has this cache key.
  func hasKey(_ key: [UInt8]) -> Bool {
    keyByteCount == key.count
      && key.withUnsafeBytes { memcmp(raw.baseAddress! + RecordHeader.fixedByteCount, $0.baseAddress!, key.count) == 0 }
  }
  func hasSameKey(as other: RecordHeaderView) -> Bool { Self.areEqual(key, other.key) }
  func hasSameVary(as other: RecordHeaderView) -> Bool { Self.areEqual(vary, other.vary) }

  private static func areEqual(_ one: UnsafeRawBufferPointer, _ other: UnsafeRawBufferPointer) -> Bool {
    guard one.count == other.count, let first = one.baseAddress, let second = other.baseAddress else {
      return one.count == other.count
    }
    return memcmp(first, second, one.count) == 0
  }
}
