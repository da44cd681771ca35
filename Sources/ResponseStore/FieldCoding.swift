import HTTPCaching

/// Header fields and Vary selections as bytes: counted names and values, one after the other.
enum FieldCoding {
  /// The 32-bit count that stands for "the request had no such field".
  private static let absent = UInt32.max

  static func encode(_ fields: HTTPFields) -> [UInt8] {
    var writer = ByteWriter()
    for field in fields {
      writer.append(counted: field.name)
      writer.append(counted: field.value)
    }
    return writer.bytes
  }

  static func decodeFields(_ bytes: UnsafeRawBufferPointer) -> HTTPFields {
    var fields = HTTPFields()
    // Most lines are longer; a little room too much costs less than to move.
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

  static func encode(_ vary: VarySelection) -> [UInt8] {
    var writer = ByteWriter()
    for item in vary.selectors {
      writer.append(counted: item.name)
      if let value = item.value {
        writer.append(counted: value)
      } else {
        writer.append(absent)
      }
    }
    return writer.bytes
  }

  static func decodeVary(_ bytes: UnsafeRawBufferPointer) -> VarySelection {
    guard !bytes.isEmpty else { return VarySelection(selectors: []) }
    var reader = ByteReader(bytes)
    var items: [VarySelection.Field] = []
    while !reader.isAtEnd, let name = reader.readCountedString(), let count = reader.read(UInt32.self) {
      if count == absent {
        items.append(VarySelection.Field(name: name, value: nil))
      } else if let value = reader.readBytes(Int(count)) {
        items.append(VarySelection.Field(name: name, value: String(decoding: value, as: UTF8.self)))
      }
    }
    return VarySelection(selectors: items)
  }
}
