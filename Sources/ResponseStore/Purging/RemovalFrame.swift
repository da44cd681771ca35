import CacheModel
import FoundationEssentials

/// The frames of the removal log: a removal with its number, and a checksum.
enum RemovalFrame {
  static let byteCount = 512
  /// A frame that was never used.
  static let empty = [UInt8](repeating: 0, count: byteCount)
  private static let softKind: UInt8 = 1

  /// Decodes a frame as the tombstone of any row; nil if it is empty or corrupt.
  static func decode(_ bytes: UnsafeRawBufferPointer) -> Tombstone? {
    guard let number = number(in: bytes) else { return nil }
    var reader = ByteReader(bytes)
    _ = reader.readBytes(16)
    guard let byteCount = reader.read(UInt32.self), let encoded = reader.readBytes(Int(byteCount)),
      let scope = RemovalScope(encoded: encoded)
    else { return nil }
    var tombstone = Tombstone(sequence: number, scope: scope, lastRowID: .max)
    if reader.read(UInt8.self) == softKind, let seconds = reader.readDouble() {
      tombstone.mode = .soft(at: Date(timeIntervalSinceReferenceDate: seconds))
    }
    return tombstone
  }

  /// Returns the number of the removal in a frame; nil if the frame is empty or corrupt.
  static func number(in bytes: UnsafeRawBufferPointer) -> UInt64? {
    let checksum = bytes.loadUnaligned(as: UInt64.self)
    let rest = UnsafeRawBufferPointer(rebasing: bytes[8...])
    guard UInt64(littleEndian: checksum) == XXHash.digest64(rest) else { return nil }
    return UInt64(littleEndian: rest.loadUnaligned(as: UInt64.self))
  }

  static func encode(_ number: UInt64, _ scope: RemovalScope, _ mode: RemovalMode) -> [UInt8] {
    var writer = ByteWriter()
    writer.append(number)
    let encodedScope = scope.encoded
    writer.append(UInt32(encodedScope.count))
    writer.bytes += encodedScope
    if case .soft(let date) = mode {
      writer.append(softKind)
      writer.append(date.timeIntervalSinceReferenceDate)
    }
    writer.bytes += [UInt8](repeating: 0, count: byteCount - 8 - writer.bytes.count)
    let checksum = writer.bytes.withUnsafeBytes { XXHash.digest64($0) }
    return withUnsafeBytes(of: checksum.littleEndian) { Array($0) } + writer.bytes
  }
}
