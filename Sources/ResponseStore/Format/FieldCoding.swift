import CacheModel
import HTTPCaching

/// Header fields and Vary keys as bytes: counted names and values, one after the other.
enum FieldCoding {
  /// The 32-bit count that means "the request had no such field".
  private static let absent = UInt32.max

  /// Returns the number of bytes that ``write(_:at:of:)`` writes.
  static func byteCount(of fields: HeaderFields) -> Int {
    fields.reduce(0) { $0 + $1.name.utf8.count + $1.value.utf8.count + 8 }
  }

  /// Writes fields into memory, and returns the offset of their end.
  static func write(_ fields: HeaderFields, at start: Int, of bytes: UnsafeMutableRawBufferPointer) -> Int {
    var end = start
    for field in fields {
      end = write(counted: field.name, at: end, of: bytes)
      end = write(counted: field.value, at: end, of: bytes)
    }
    return end
  }

  /// Writes like ``ByteWriter/append(counted:)``, and returns the offset of the text's end.
  private static func write(counted text: String, at start: Int, of bytes: UnsafeMutableRawBufferPointer) -> Int {
    let utf8 = text.utf8
    bytes.storeBytes(of: UInt32(utf8.count).littleEndian, toByteOffset: start, as: UInt32.self)
    let place = UnsafeMutableRawBufferPointer(rebasing: bytes[(start + 4)..<(start + 4 + utf8.count)])
    // Only bridged strings are not contiguous.
    if utf8.withContiguousStorageIfAvailable({ place.copyMemory(from: UnsafeRawBufferPointer($0)) }) == nil {
      place.copyBytes(from: utf8)
    }
    return start + 4 + utf8.count
  }

  static func decodeFields(_ bytes: UnsafeRawBufferPointer) -> HeaderFields {
    var fields = HeaderFields()
    // Most fields are longer than 32 bytes. Spare capacity costs less than growing the array.
    fields.reserveCapacity(bytes.count / 32)
    forEachField(bytes) { fields.append(name: $0, value: $1) }
    return fields
  }

  static func forEachField(_ bytes: UnsafeRawBufferPointer, _ body: (_ name: String, _ value: String) -> Void) {
    var reader = ByteReader(bytes)
    while !reader.isAtEnd, let name = reader.readCountedString(), let value = reader.readCountedString() {
      body(name, value)
    }
  }

  /// Returns the first value of a field, without creating the other lines; nil if there is none.
  ///
  /// - Parameter name: The name in lower case.
  static func firstValue(of name: StaticString, in bytes: UnsafeRawBufferPointer) -> String? {
    let wanted = UnsafeBufferPointer(start: name.utf8Start, count: name.utf8CodeUnitCount)
    var reader = ByteReader(bytes)
    while !reader.isAtEnd, let nameByteCount = reader.read(UInt32.self),
      let found = reader.readBytes(Int(nameByteCount)), let byteCount = reader.read(UInt32.self),
      let value = reader.readBytes(Int(byteCount))
    {
      // The bit distinguishes the two cases of a letter.
      guard found.count == wanted.count, zip(found, wanted).allSatisfy({ $0 | 0x20 == $1 }) else { continue }
      return String(decoding: value, as: UTF8.self)
    }
    return nil
  }

  static func encode(_ vary: VaryKey) -> [UInt8] {
    var writer = ByteWriter()
    for item in vary.fields {
      writer.append(counted: item.name)
      if let value = item.value {
        writer.append(counted: value)
      } else {
        writer.append(absent)
      }
    }
    return writer.bytes
  }

  static func decodeVary(_ bytes: UnsafeRawBufferPointer) -> VaryKey {
    guard !bytes.isEmpty else { return VaryKey(fields: []) }
    var reader = ByteReader(bytes)
    var items: [VaryKey.Field] = []
    while !reader.isAtEnd, let name = reader.readCountedString(), let count = reader.read(UInt32.self) {
      if count == absent {
        items.append(VaryKey.Field(name: name, value: nil))
      } else if let value = reader.readBytes(Int(count)) {
        items.append(VaryKey.Field(name: name, value: String(decoding: value, as: UTF8.self)))
      }
    }
    return VaryKey(fields: items)
  }
}
