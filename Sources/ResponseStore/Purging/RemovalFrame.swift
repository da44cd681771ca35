import CacheModel
import FoundationEssentials

/// A frame of the removal log: a removal with its number, and a checksum.
struct RemovalFrame {
  var number: UInt64
  var scope: RemovalScope
  var mode: RemovalMode

  static let byteCount = 512
  /// A frame that was never used.
  static let empty = [UInt8](repeating: 0, count: byteCount)
  private static let softKind: UInt8 = 1

  init(number: UInt64, scope: RemovalScope, mode: RemovalMode) {
    (self.number, self.scope, self.mode) = (number, scope, mode)
  }

  /// Decodes a frame; nil if it is empty or corrupt.
  init?(_ bytes: UnsafeRawBufferPointer) {
    guard let number = Self.number(in: bytes) else { return nil }
    var reader = ByteReader(bytes)
    _ = reader.readBytes(16)
    guard let byteCount = reader.read(UInt32.self), let encoded = reader.readBytes(Int(byteCount)),
      let scope = RemovalScope(encoded: encoded)
    else { return nil }
    var mode = RemovalMode.hard
    if reader.read(UInt8.self) == Self.softKind, let seconds = reader.readDouble() {
      mode = .soft(at: Date(timeIntervalSinceReferenceDate: seconds))
    }
    self.init(number: number, scope: scope, mode: mode)
  }

  /// Returns the number of the removal in a frame; nil if the frame is empty or corrupt.
  static func number(in bytes: UnsafeRawBufferPointer) -> UInt64? {
    let checksum = bytes.loadUnaligned(as: UInt64.self)
    let rest = UnsafeRawBufferPointer(rebasing: bytes[8...])
    guard UInt64(littleEndian: checksum) == XXHash.digest64(rest) else { return nil }
    return UInt64(littleEndian: rest.loadUnaligned(as: UInt64.self))
  }

  var encoded: [UInt8] {
    var writer = ByteWriter()
    writer.append(number)
    let encodedScope = scope.encoded
    writer.append(UInt32(encodedScope.count))
    writer.bytes += encodedScope
    if case .soft(let date) = mode {
      writer.append(Self.softKind)
      writer.append(date.timeIntervalSinceReferenceDate)
    }
    writer.bytes += [UInt8](repeating: 0, count: Self.byteCount - 8 - writer.bytes.count)
    let checksum = writer.bytes.withUnsafeBytes { XXHash.digest64($0) }
    return withUnsafeBytes(of: checksum.littleEndian) { Array($0) } + writer.bytes
  }
}
