import CXXHash
import FleetRedis
import FoundationEssentials
import HTTPCaching

/// A shared response as Redis keeps it, the marker of a URL whose responses vary, or the head of a 304.
struct SharedObject: Sendable {
  /// The cache key; for a variant with a digest of the selecting values.
  var key: [UInt8]
  /// The position in the log of purges before the request was sent.
  var epoch: [UInt8]
  var seq: UInt64
  var status: Int
  var fields: HeaderFields
  var body: Data
  /// Whether the body lacks the coding that `Content-Encoding` names.
  var isDecoded = false
  /// Whether this is a marker: its `Vary` field names the selecting fields.
  var isMarker = false
  /// Whether this is only the head of a 304, for machines that have the representation which its validators name.
  var isNotModified = false
  /// The wall clock when the object was stored, in seconds since 1970.
  var storedAt: Double
  /// The age in seconds when the object was stored.
  var ageAtStoring: Double
  /// The freshness lifetime for shared caches, in seconds.
  var lifetime: Double
  /// For how long Redis keeps the object, in milliseconds.
  var milliseconds: Int64

  private static let version: UInt8 = 2
  private static let fixedByteCount = 64

  private struct Flags: OptionSet {
    let rawValue: UInt8
    static let marker = Flags(rawValue: 1)
    static let decoded = Flags(rawValue: 2)
    static let notModified = Flags(rawValue: 4)
  }

  // MARK: Encoding

  var encodedHead: [UInt8] {
    var bytes: [UInt8] = []
    for (name, value) in fields {
      for text in [name, value] {
        let utf8 = Array(text.utf8)
        withUnsafeBytes(of: UInt32(utf8.count).littleEndian) { bytes += $0 }
        bytes += utf8
      }
    }
    return bytes
  }

  /// The encoded freshness: version, flags, status, times, and the checksums of everything.
  func encodedFreshness(head: [UInt8]) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: Self.fixedByteCount)
    var flags: Flags = isMarker ? .marker : []
    if isDecoded { flags.insert(.decoded) }
    if isNotModified { flags.insert(.notModified) }
    bytes[0] = Self.version
    bytes[1] = flags.rawValue
    bytes.withUnsafeMutableBytes { bytes in
      bytes.storeBytes(of: UInt16(clamping: status).littleEndian, toByteOffset: 2, as: UInt16.self)
      bytes.storeBytes(of: storedAt.bitPattern.littleEndian, toByteOffset: 8, as: UInt64.self)
      bytes.storeBytes(of: ageAtStoring.bitPattern.littleEndian, toByteOffset: 16, as: UInt64.self)
      bytes.storeBytes(of: lifetime.bitPattern.littleEndian, toByteOffset: 24, as: UInt64.self)
      bytes.storeBytes(of: milliseconds.littleEndian, toByteOffset: 32, as: Int64.self)
      bytes.storeBytes(of: UInt64(body.count).littleEndian, toByteOffset: 40, as: UInt64.self)
      bytes.storeBytes(of: Self.checksum(body).littleEndian, toByteOffset: 48, as: UInt64.self)
    }
    let checksum = Self.checksum(key: key, epoch: epoch, seq: seq, freshness: bytes, head: head)
    bytes.withUnsafeMutableBytes {
      $0.storeBytes(of: checksum.littleEndian, toByteOffset: 56, as: UInt64.self)
    }
    return bytes
  }

  /// Decodes the fields of an object; nil if it is corrupt, of another version, or of another key.
  init?(_ reply: [RedisReply], key: [UInt8]) throws(RedisTierError) {
    guard reply.count >= 6, try reply[0].asBytes() == key else { return nil }
    let (freshness, head) = (try reply[3].asBytes(), try reply[4].asBytes())
    guard freshness.count == Self.fixedByteCount, freshness[0] == Self.version else { return nil }
    func word(_ offset: Int) -> UInt64 {
      freshness.withUnsafeBytes { UInt64(littleEndian: $0.loadUnaligned(fromByteOffset: offset, as: UInt64.self)) }
    }
    let body = try reply[5].asData()
    // The position is in the checksum, because a later one would hide the object from purges.
    let epoch = try reply[1].asBytes()
    let seq = try reply[2].asCount()
    guard word(56) == Self.checksum(key: key, epoch: epoch, seq: seq, freshness: freshness, head: head),
      word(40) == UInt64(body.count), word(48) == Self.checksum(body), let fields = Self.fields(head)
    else { return nil }
    let flags = Flags(rawValue: freshness[1])
    self.key = key
    self.epoch = epoch
    self.seq = seq
    status = Int(freshness[2]) | Int(freshness[3]) << 8
    self.fields = fields
    self.body = body
    isDecoded = flags.contains(.decoded)
    isMarker = flags.contains(.marker)
    isNotModified = flags.contains(.notModified)
    storedAt = Double(bitPattern: word(8))
    ageAtStoring = Double(bitPattern: word(16))
    lifetime = Double(bitPattern: word(24))
    milliseconds = Int64(bitPattern: word(32))
    guard storedAt.isFinite, ageAtStoring.isFinite, lifetime.isFinite, (200..<600).contains(status) || isMarker else {
      return nil
    }
  }

  init(
    key: [UInt8], position: LogPosition, status: Int, fields: HeaderFields, body: Data, ageAtStoring: Double,
    lifetime: Double, milliseconds: Int64
  ) {
    self.key = key
    epoch = position.epoch
    seq = position.cursor
    self.status = status
    self.fields = fields
    self.body = body
    self.ageAtStoring = ageAtStoring
    self.lifetime = lifetime
    self.milliseconds = milliseconds
    storedAt = Date().timeIntervalSince1970
  }

  private static func fields(_ bytes: [UInt8]) -> HeaderFields? {
    var fields = HeaderFields()
    var offset = 0
    func text() -> String? {
      guard bytes.count - offset >= 4 else { return nil }
      let count = Int(
        bytes.withUnsafeBytes { UInt32(littleEndian: $0.loadUnaligned(fromByteOffset: offset, as: UInt32.self)) })
      offset += 4
      guard bytes.count - offset >= count else { return nil }
      defer { offset += count }
      return String(decoding: bytes[offset..<offset + count], as: UTF8.self)
    }
    while offset < bytes.count {
      guard let name = text(), let value = text() else { return nil }
      fields.append(name: name, value: value)
    }
    return fields.isStorable && fields.isWellFormed ? fields : nil
  }

  /// The checksum of everything but the body, whose own checksum is in `freshness`.
  private static func checksum(
    key: [UInt8], epoch: [UInt8], seq: UInt64, freshness: [UInt8], head: [UInt8]
  ) -> UInt64 {
    var bytes: [UInt8] = []
    bytes.reserveCapacity(key.count + epoch.count + 8 + 56 + head.count)
    bytes += key
    bytes += epoch
    withUnsafeBytes(of: seq.littleEndian) { bytes += $0 }
    bytes += freshness[..<56]
    bytes += head
    return XXH3_64bits(bytes, bytes.count)
  }

  private static func checksum(_ body: Data) -> UInt64 {
    body.withUnsafeBytes { XXH3_64bits($0.baseAddress, $0.count) }
  }

  // MARK: Age

  /// The age in seconds, when Redis will keep the object for this many more milliseconds.
  ///
  /// The larger of two measures, because wall clocks may differ and Redis's may be changed.
  func age(timeToLive: Int64) -> Double {
    ageAtStoring + max(Double(milliseconds - timeToLive) / 1000, Date().timeIntervalSince1970 - storedAt, 0)
  }

  // MARK: Use

  /// The object as a shared cache has stored it, for the decisions of RFC 9111.
  struct Stored: StoredResponseMetadata {
    let status: Int
    let freshness: FreshnessInfo
    let fields: HeaderFields
    let bodyByteCount: Int
  }

  /// Returns the object as stored for a request.
  ///
  /// - Parameters:
  ///   - age: The present age in seconds.
  ///   - now: The present time.
  func stored(for request: RequestHead, age: Double, now: Date) -> Stored {
    var freshness = Storability.freshness(
      of: ResponseHead(status: status, fields: fields), to: request, receivedAt: now, options: .sharedResponses)
    // Machines exchange ages, because their clocks can differ.
    (freshness.initialAge, freshness.lifetime) = (age, lifetime)
    return Stored(status: status, freshness: freshness, fields: fields, bodyByteCount: body.count)
  }

  /// Whether the conditions of a request show that its machine has this representation.
  func isHeld(by request: RequestHead) -> Bool {
    if let tag = fields["ETag"] { return request.fields["If-None-Match"] == tag }
    guard let date = fields["Last-Modified"], !request.fields.contains("If-None-Match") else { return false }
    return request.fields["If-Modified-Since"] == date
  }
}
