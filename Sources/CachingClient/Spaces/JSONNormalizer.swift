import FoundationEssentials

/// Checks JSON (RFC 8259) and writes its normal form, which ``QueryNormalForm/json`` describes.
struct JSONNormalizer {
  /// The maximum number of arrays and objects around a value: 128. It bounds the recursion.
  static let maximumDepth = 128

  private let input: UnsafeRawBufferPointer
  private var at = 0
  private var output: [UInt8] = []

  private init(_ input: UnsafeRawBufferPointer) {
    self.input = input
    output.reserveCapacity(input.count)
  }

  /// Returns the normal form; nil if the content has none.
  static func normalized(_ content: Data) -> Data? {
    content.withUnsafeBytes { bytes in
      // Decoding replaces what is malformed.
      guard String(decoding: bytes, as: UTF8.self).utf8.elementsEqual(bytes) else { return nil }
      var normalizer = JSONNormalizer(bytes)
      guard normalizer.value(depth: 0) else { return nil }
      normalizer.skipSpace()
      return normalizer.at == bytes.count ? Data(normalizer.output) : nil
    }
  }

  private var current: UInt8? { at < input.count ? input[at] : nil }

  private mutating func skipSpace() {
    while let byte = current, byte == 0x20 || byte == 0x0A || byte == 0x0D || byte == 0x09 { at += 1 }
  }

  /// Skips a byte if it is the next one. Returns whether it is.
  private mutating func skip(_ byte: UInt8) -> Bool {
    guard current == byte else { return false }
    at += 1
    return true
  }

  /// Copies a byte if it is the next one. Returns whether it is.
  private mutating func copy(_ byte: UInt8) -> Bool {
    guard skip(byte) else { return false }
    output.append(byte)
    return true
  }

  /// Copies a value and the space before it, without the space. Returns false if it has no normal form.
  private mutating func value(depth: Int) -> Bool {
    skipSpace()
    switch current {
    case UInt8(ascii: "{"): return depth < Self.maximumDepth && object(depth: depth + 1)
    case UInt8(ascii: "["): return depth < Self.maximumDepth && array(depth: depth + 1)
    case UInt8(ascii: "\""): return string()
    case UInt8(ascii: "t"): return literal("true")
    case UInt8(ascii: "f"): return literal("false")
    case UInt8(ascii: "n"): return literal("null")
    default: return number()
    }
  }

  private mutating func literal(_ text: StaticString) -> Bool {
    text.withUTF8Buffer { letters in letters.allSatisfy { copy($0) } }
  }

  private mutating func number() -> Bool {
    _ = copy(UInt8(ascii: "-"))
    // Other digits do not follow a leading zero.
    guard copy(UInt8(ascii: "0")) || digits() else { return false }
    if copy(UInt8(ascii: ".")), !digits() { return false }
    guard copy(UInt8(ascii: "e")) || copy(UInt8(ascii: "E")) else { return true }
    if !copy(UInt8(ascii: "-")) { _ = copy(UInt8(ascii: "+")) }
    return digits()
  }

  /// Copies digits. Returns whether there is one.
  private mutating func digits() -> Bool {
    let start = at
    while let byte = current, byte >= UInt8(ascii: "0"), byte <= UInt8(ascii: "9") { at += 1 }
    output += input[start..<at]
    return at > start
  }

  private mutating func string() -> Bool {
    let start = at
    guard skip(UInt8(ascii: "\"")) else { return false }
    while let byte = current {
      at += 1
      switch byte {
      case UInt8(ascii: "\""):
        output += input[start..<at]
        return true
      case UInt8(ascii: "\\"): guard escape() else { return false }
      case 0..<0x20: return false
      default: continue
      }
    }
    return false
  }

  /// Skips the rest of an escape. Returns whether it is valid.
  private mutating func escape() -> Bool {
    guard let byte = current else { return false }
    at += 1
    switch byte {
    case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"), UInt8(ascii: "b"), UInt8(ascii: "f"),
      UInt8(ascii: "n"), UInt8(ascii: "r"), UInt8(ascii: "t"):
      return true
    case UInt8(ascii: "u"):
      for _ in 0..<4 {
        guard let digit = current, Character(UnicodeScalar(digit)).isHexDigit else { return false }
        at += 1
      }
      return true
    default: return false
    }
  }

  private mutating func array(depth: Int) -> Bool {
    guard copy(UInt8(ascii: "[")) else { return false }
    skipSpace()
    if copy(UInt8(ascii: "]")) { return true }
    repeat {
      guard value(depth: depth) else { return false }
      skipSpace()
    } while copy(UInt8(ascii: ","))
    return copy(UInt8(ascii: "]"))
  }

  private mutating func object(depth: Int) -> Bool {
    guard copy(UInt8(ascii: "{")) else { return false }
    skipSpace()
    if copy(UInt8(ascii: "}")) { return true }
    let start = output.count
    var members: [Member] = []
    repeat {
      skipSpace()
      let memberStart = output.count
      guard string() else { return false }
      let nameEnd = output.count
      skipSpace()
      guard copy(UInt8(ascii: ":")), value(depth: depth) else { return false }
      output.append(UInt8(ascii: ","))
      members.append(Member(start: memberStart, nameEnd: nameEnd, end: output.count))
      skipSpace()
    } while skip(UInt8(ascii: ","))
    guard skip(UInt8(ascii: "}")), areDistinct(members) else { return false }
    sort(members, from: start)
    output[output.count - 1] = UInt8(ascii: "}")
    return true
  }

  /// A member of an object in the output: where it and its name begin, the end of its name, and the end of its comma.
  private struct Member {
    var start: Int
    var nameEnd: Int
    var end: Int

    var name: Range<Int> { start..<nameEnd }
  }

  /// Whether every program tells the names of members apart.
  private func areDistinct(_ members: [Member]) -> Bool {
    var names: Set<String> = []
    return members.allSatisfy { member in
      let name = output[member.name]
      // Equality of strings disregards how characters are composed. Both steps are needed: the case of some letters
      // changes in one direction only.
      return !name.contains(UInt8(ascii: "\\"))
        && names.insert(String(decoding: name, as: UTF8.self).uppercased().lowercased()).inserted
    }
  }

  /// Sorts the members that end the output by the bytes of their names.
  private mutating func sort(_ members: [Member], from start: Int) {
    let sorted = members.sorted { output[$0.name].lexicographicallyPrecedes(output[$1.name]) }
    guard !zip(members, sorted).allSatisfy({ $0.start == $1.start }) else { return }
    let unsorted = Array(output[start...])
    output.removeSubrange(start...)
    for member in sorted { output += unsorted[(member.start - start)..<(member.end - start)] }
  }
}
