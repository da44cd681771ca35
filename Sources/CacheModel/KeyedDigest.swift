/// Keyed digests of values that are not written themselves.
package enum KeyedDigest {
  /// Returns a digest of 128 bits in 32 hexadecimal digits.
  package static func hexadecimal(_ bytes: UnsafeRawBufferPointer, secret: [UInt8]) -> String {
    let digest = XXHash.digest128(bytes, secret: secret)
    return String(unsafeUninitializedCapacity: 32) { text in
      for index in 0..<32 {
        let word = index < 16 ? digest.high : digest.low
        let nibble = UInt8(truncatingIfNeeded: word >> UInt64(60 - 4 * (index & 15))) & 15
        text[index] = nibble < 10 ? UInt8(ascii: "0") + nibble : UInt8(ascii: "a") - 10 + nibble
      }
      return 32
    }
  }

  /// Returns a digest that only this process makes.
  package static func inProcess(_ bytes: UnsafeRawBufferPointer) -> String {
    hexadecimal(bytes, secret: RequestKey.secret)
  }
}
