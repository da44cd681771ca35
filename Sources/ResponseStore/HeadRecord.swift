import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB

/// A record of `heads`: a fixed part, then key, Vary selection, header fields, attachment, and a body that is small
/// enough to share the leaf. Integers are little endian, times are seconds since 2001-01-01 as IEEE 754 doubles.
///
/// The checksum in front covers everything behind it. Values of this type hold bytes whose layout was checked: reading
/// a member never leaves them.
struct HeadRecord: Sendable {
  /// Offsets of the fixed part.
  enum Offset {
    static let checksum = 0
    static let recordVersion = 8
    static let recordFlags = 9
    static let status = 10
    static let factsFlags = 12
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
  }

  static let fixedByteCount = 120
  static let recordVersion: UInt8 = 3

  struct Flags: OptionSet {
    let rawValue: UInt8
    /// The body stands at the end of the record instead of in `bodies`.
    static let bodyInline = Flags(rawValue: 1)
    /// There is an attachment, maybe an empty one.
    static let attachment = Flags(rawValue: 2)
    /// Each chunk in `bodies` fills one page, and not several in a row.
    static let singlePageChunks = Flags(rawValue: 4)
  }

  let bytes: [UInt8]

  /// Lays out the head of a new response; with its body when that fits into `inlineByteCount` together.
  /// `removalSequence` is the last removal that does not cover it, as it came later.
  init(
    _ response: NewResponse, storedAt: Date, removalSequence: UInt64, inlineByteCount: Int, bodyChecksum: UInt64
  ) {
    let key = response.key.bytes
    let vary = FieldCoding.encode(response.vary)
    let fieldsByteCount = FieldCoding.byteCount(of: response.fields)
    let attachment = response.attachment ?? []
    let headByteCount = Self.fixedByteCount + key.count + vary.count + fieldsByteCount + attachment.count
    let isInline = headByteCount + response.body.count <= inlineByteCount
    var flags: Flags = isInline ? .bodyInline : []
    if response.attachment != nil { flags.insert(.attachment) }

    // Every store's caller pays for this: one piece of memory, and one copy of each part.
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
      put(response.facts.flags.rawValue, Offset.factsFlags)
      put(UInt32(key.count), Offset.keyByteCount)
      put(UInt32(vary.count), Offset.varyByteCount)
      put(UInt32(fieldsByteCount), Offset.fieldsByteCount)
      put(UInt32(attachment.count), Offset.attachmentByteCount)
      put(UInt64(response.body.count), Offset.bodyByteCount)
      put(bodyChecksum, Offset.bodyChecksum)
      put(storedAt.timeIntervalSinceReferenceDate, Offset.storedAt)
      put(response.facts.responseTime.timeIntervalSinceReferenceDate, Offset.responseTime)
      put(response.facts.initialAge, Offset.initialAge)
      put(response.facts.lifetime, Offset.lifetime)
      put(response.facts.date.timeIntervalSinceReferenceDate, Offset.date)
      put(response.facts.staleWhileRevalidate, Offset.staleWhileRevalidate)
      put(response.facts.staleIfError, Offset.staleIfError)
      put(removalSequence, Offset.removalSequence)
      count = Self.fixedByteCount
      func append(_ part: UnsafeRawBufferPointer) {
        UnsafeMutableRawBufferPointer(rebasing: record[count...]).copyMemory(from: part)
        count += part.count
      }
      key.withUnsafeBytes(append)
      vary.withUnsafeBytes(append)
      count = FieldCoding.write(response.fields, at: count, of: record)
      attachment.withUnsafeBytes(append)
      if isInline { response.body.withUnsafeBytes(append) }
      put(HeadLayout.checksum(of: UnsafeRawBufferPointer(record)), Offset.checksum)
    }
  }

  private init(bytes: [UInt8]) {
    self.bytes = bytes
  }

  /// The same head for a body in single pages.
  var inSinglePages: HeadRecord {
    var bytes = bytes
    bytes[Offset.recordFlags] |= Flags.singlePageChunks.rawValue
    Self.renewChecksum(of: &bytes)
    return HeadRecord(bytes: bytes)
  }

  /// The same head with the ID of a body whose chunks stand in `bodies`.
  func withBody(_ bodyID: UInt64) -> HeadRecord {
    var bytes = bytes
    Self.setBodyID(bodyID, of: &bytes)
    return HeadRecord(bytes: bytes)
  }

  /// Names the body of a record whose checksum is right.
  static func setBodyID(_ bodyID: UInt64, of record: inout [UInt8]) {
    withUnsafeBytes(of: bodyID.littleEndian) {
      record.replaceSubrange(Offset.bodyID..<Offset.bodyID + 8, with: $0)
    }
    renewChecksum(of: &record)
  }

  private static func renewChecksum(of record: inout [UInt8]) {
    let checksum = record.withUnsafeBytes { HeadLayout.checksum(of: $0) }
    withUnsafeBytes(of: checksum.littleEndian) { record.replaceSubrange(0..<8, with: $0) }
  }

  /// Whether the body stands in the record itself.
  var isBodyInline: Bool { layout { $0.isBodyInline } }
  var bodyByteCount: Int { layout { $0.bodyByteCount } }
  var storedAt: Date { layout { $0.storedAt } }
  var facts: FreshnessFacts { layout { $0.facts } }
  var status: Int { layout { $0.status } }
  var key: RequestKey { layout { RequestKey(storedBytes: [UInt8]($0.key)) } }
  var vary: VarySelection { layout { FieldCoding.decodeVary($0.vary) } }
  var fields: HTTPFields { layout { FieldCoding.decodeFields($0.fields) } }
  var attachment: [UInt8]? { layout { $0.hasAttachment ? [UInt8]($0.attachment) : nil } }
  var varyBytes: [UInt8] { layout { [UInt8]($0.vary) } }
  var expiry: Date? { layout { $0.expiry } }
  /// The head's own checksum, the body's, and how many bytes that one covers.
  var checksums: (head: UInt64, body: UInt64, bodyByteCount: Int) {
    layout { ($0.checksum, $0.bodyChecksum, $0.bodyByteCount) }
  }
  var hasRightChecksum: Bool { layout { $0.hasRightChecksum } }

  func layout<R>(_ body: (HeadLayout) -> R) -> R {
    bytes.withUnsafeBytes { body(HeadLayout(checked: $0)) }
  }
}

/// The parts of a head record in borrowed bytes. Valid only as long as they are.
struct HeadLayout {
  let raw: UnsafeRawBufferPointer

  /// Checks that every part lies within the bytes.
  init?(_ raw: UnsafeRawBufferPointer) {
    guard raw.count >= HeadRecord.fixedByteCount else { return nil }
    self.raw = raw
    guard raw[HeadRecord.Offset.recordVersion] == HeadRecord.recordVersion else { return nil }
    let head = HeadRecord.fixedByteCount + keyByteCount + varyByteCount + fieldsByteCount + attachmentByteCount
    let storedBodyByteCount: UInt64 = load(HeadRecord.Offset.bodyByteCount)
    guard storedBodyByteCount <= UInt64(Int.max / 2) else { return nil }
    guard raw.count == head + (isBodyInline ? bodyByteCount : 0) else { return nil }
  }

  /// Takes bytes that were checked before.
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

  private var flags: HeadRecord.Flags { HeadRecord.Flags(rawValue: raw[HeadRecord.Offset.recordFlags]) }
  private var keyByteCount: Int { count(HeadRecord.Offset.keyByteCount) }
  private var varyByteCount: Int { count(HeadRecord.Offset.varyByteCount) }
  private var fieldsByteCount: Int { count(HeadRecord.Offset.fieldsByteCount) }
  private var attachmentByteCount: Int { count(HeadRecord.Offset.attachmentByteCount) }

  var checksum: UInt64 { load(HeadRecord.Offset.checksum) }
  var hasRightChecksum: Bool { checksum == Self.checksum(of: raw) }
  var status: Int { Int(load(HeadRecord.Offset.status) as UInt16) }
  var isBodyInline: Bool { flags.contains(.bodyInline) }
  var hasAttachment: Bool { flags.contains(.attachment) }
  var hasSinglePageChunks: Bool { flags.contains(.singlePageChunks) }
  var bodyByteCount: Int { Int(load(HeadRecord.Offset.bodyByteCount) as UInt64) }
  var bodyChecksum: UInt64 { load(HeadRecord.Offset.bodyChecksum) }
  /// The last removal before it was stored; only later ones cover it.
  var removalSequence: UInt64 { load(HeadRecord.Offset.removalSequence) }
  /// What the keys of the body's chunks begin with, where the body is not inline: the ID of the record, or another one if the record
  /// has been moved or the body was written first.
  func bodyID(ofRow rowID: UInt64) -> UInt64 {
    let stored: UInt64 = load(HeadRecord.Offset.bodyID)
    return stored == 0 ? rowID : stored
  }
  var storedAt: Date { date(HeadRecord.Offset.storedAt) }
  var facts: FreshnessFacts {
    FreshnessFacts(
      responseTime: date(HeadRecord.Offset.responseTime), initialAge: double(HeadRecord.Offset.initialAge),
      lifetime: double(HeadRecord.Offset.lifetime), date: date(HeadRecord.Offset.date),
      staleWhileRevalidate: double(HeadRecord.Offset.staleWhileRevalidate),
      staleIfError: double(HeadRecord.Offset.staleIfError),
      flags: FreshnessFacts.Flags(rawValue: load(HeadRecord.Offset.factsFlags)))
  }

  var key: UnsafeRawBufferPointer { part(HeadRecord.fixedByteCount, keyByteCount) }
  var vary: UnsafeRawBufferPointer { part(HeadRecord.fixedByteCount + keyByteCount, varyByteCount) }
  /// Stands for key and variant, which are stored side by side.
  var nameDigest: UInt64 {
    XXHash.digest64(part(HeadRecord.fixedByteCount, keyByteCount + varyByteCount)) &+ UInt64(keyByteCount)
  }
  var fields: UnsafeRawBufferPointer {
    part(HeadRecord.fixedByteCount + keyByteCount + varyByteCount, fieldsByteCount)
  }
  var attachment: UnsafeRawBufferPointer {
    part(HeadRecord.fixedByteCount + keyByteCount + varyByteCount + fieldsByteCount, attachmentByteCount)
  }
  /// The head without an inline body.
  var head: UnsafeRawBufferPointer { part(0, raw.count - (isBodyInline ? bodyByteCount : 0)) }
  var inlineBody: UnsafeRawBufferPointer {
    part(raw.count - bodyByteCount, bodyByteCount)
  }

  /// Whether `head` is this record's, or one to take its place: an update keeps key, time, variant and body.
  func isSameRecord(as head: HeadRecord) -> Bool {
    head.layout { head in
      bodyByteCount == head.bodyByteCount && bodyChecksum == head.bodyChecksum && storedAt == head.storedAt
        && hasSameKey(as: head) && hasSameVary(as: head)
    }
  }

  /// Whether the record answers the request with this key.
  func hasKey(_ key: [UInt8]) -> Bool {
    keyByteCount == key.count
      && key.withUnsafeBytes { memcmp(raw.baseAddress! + HeadRecord.fixedByteCount, $0.baseAddress!, key.count) == 0 }
  }
  func hasSameKey(as other: HeadLayout) -> Bool { Self.areEqual(key, other.key) }
  func hasSameVary(as other: HeadLayout) -> Bool { Self.areEqual(vary, other.vary) }

  private static func areEqual(_ one: UnsafeRawBufferPointer, _ other: UnsafeRawBufferPointer) -> Bool {
    guard one.count == other.count, let first = one.baseAddress, let second = other.baseAddress else {
      return one.count == other.count
    }
    return memcmp(first, second, one.count) == 0
  }
}
