/// Appends little-endian integers and counted strings.
@usableFromInline  // Otherwise other modules would call the generic code of the methods.
package struct ByteWriter {
  @usableFromInline package var bytes: [UInt8] = []

  package init() {}

  @inlinable
  @inline(__always)  // Each commit encodes and reads the counters, which takes 40 calls.
  package mutating func append<T: FixedWidthInteger>(_ value: T) {
    withUnsafeBytes(of: value.littleEndian) { bytes.append(contentsOf: $0) }
  }

  package mutating func append(_ value: Double) {
    append(value.bitPattern)
  }

  /// Appends a 32-bit count and the UTF-8 bytes.
  package mutating func append(counted string: String) {
    var string = string
    string.withUTF8 {
      append(UInt32($0.count))
      bytes.append(contentsOf: $0)
    }
  }
}

/// Reads the output of ``ByteWriter`` from untrusted bytes: every read past the end returns nil.
@usableFromInline
package struct ByteReader {
  @usableFromInline let bytes: UnsafeRawBufferPointer
  @usableFromInline package private(set) var offset = 0

  package init(_ bytes: UnsafeRawBufferPointer) {
    self.bytes = bytes
  }

  @inlinable
  package var isAtEnd: Bool { offset == bytes.count }

  @inlinable
  @inline(__always)
  package mutating func read<T: FixedWidthInteger & BitwiseCopyable>(_ type: T.Type = T.self) -> T? {
    let size = MemoryLayout<T>.size
    guard bytes.count - offset >= size else { return nil }
    defer { offset += size }
    return T(littleEndian: bytes.loadUnaligned(fromByteOffset: offset, as: T.self))
  }

  package mutating func readDouble() -> Double? {
    read(UInt64.self).map { Double(bitPattern: $0) }
  }

  @inlinable
  @inline(__always)
  package mutating func readBytes(_ count: Int) -> UnsafeRawBufferPointer? {
    guard count >= 0, bytes.count - offset >= count else { return nil }
    defer { offset += count }
    return UnsafeRawBufferPointer(rebasing: bytes[offset..<(offset + count)])
  }

  package mutating func readCountedString() -> String? {
    guard let count = read(UInt32.self), let text = readBytes(Int(count)) else { return nil }
    return String(decoding: text, as: UTF8.self)
  }
}
