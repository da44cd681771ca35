import CacheModel

/// The frames of the removal log: a checksum, the number of a removal, and its encoding.
enum RemovalFrame {
  static let byteCount = 512
  /// A frame that was never used.
  static let empty = [UInt8](repeating: 0, count: byteCount)

  /// Decodes the removal in a frame; nil if the frame is empty or corrupt.
  static func removal(in bytes: UnsafeRawBufferPointer) -> Removal? {
    guard number(in: bytes) != nil else { return nil }
    var reader = ByteReader(UnsafeRawBufferPointer(rebasing: bytes[16...]))
    return reader.read(UInt32.self).flatMap { reader.readBytes(Int($0)) }.flatMap { Removal(encoded: $0) }
  }

  /// Returns the number of the removal in a frame; nil if the frame is empty or corrupt.
  static func number(in bytes: UnsafeRawBufferPointer) -> UInt64? {
    let checksum = bytes.loadUnaligned(as: UInt64.self)
    let rest = UnsafeRawBufferPointer(rebasing: bytes[8...])
    guard UInt64(littleEndian: checksum) == XXHash.digest64(rest) else { return nil }
    return UInt64(littleEndian: rest.loadUnaligned(as: UInt64.self))
  }

  static func encode(_ number: UInt64, _ removal: Removal) -> [UInt8] {
    var writer = ByteWriter()
    writer.append(number)
    let encoded = removal.encoded
    writer.append(UInt32(encoded.count))
    writer.bytes += encoded
    writer.bytes += [UInt8](repeating: 0, count: byteCount - 8 - writer.bytes.count)
    let checksum = writer.bytes.withUnsafeBytes { XXHash.digest64($0) }
    return withUnsafeBytes(of: checksum.littleEndian) { Array($0) } + writer.bytes
  }
}
