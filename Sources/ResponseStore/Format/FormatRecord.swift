import CacheModel

/// The properties that are fixed when a store is created.
struct FormatRecord: Sendable, Equatable {
  var version: UInt32
  var chunkByteCount: UInt32
  /// Random bytes that key the digests of this store; see ``XXHash/randomSecret()``.
  var secret: [UInt8]

  /// The store's identity in other files; it does not reveal the secret.
  var owner: UInt64 { secret.withUnsafeBytes { XXHash.digest64($0) } }
}

extension FormatRecord {
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
      let secret = reader.readBytes(XXHash.secretByteCount)
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
