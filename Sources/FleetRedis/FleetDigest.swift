import CXXHash

/// Digests under the secret of a fleet's machines, so that Redis cannot tell what they are of.
package struct FleetDigest: Sendable {
  /// XXH3 takes a secret of at least 136 bytes with high entropy.
  private let secret: [UInt8]

  /// - Parameter secret: The secret of the machines.
  package init(secret: [UInt8]) {
    var expanded: [UInt8] = []
    for counter in UInt8(0)..<12 {
      let bytes = secret + [counter]
      let hash = XXH3_128bits(bytes, bytes.count)
      for word in [hash.high64, hash.low64] { withUnsafeBytes(of: word.littleEndian) { expanded += $0 } }
    }
    self.secret = expanded
  }

  package func words(_ bytes: [UInt8]) -> (high: UInt64, low: UInt64) {
    let hash = secret.withUnsafeBytes { XXH3_128bits_withSecret(bytes, bytes.count, $0.baseAddress, $0.count) }
    return (hash.high64, hash.low64)
  }

  /// The digest of bytes as hexadecimal digits.
  package func digits(_ bytes: [UInt8]) -> [UInt8] {
    let digest = words(bytes)
    return withUnsafeBytes(of: (digest.high.bigEndian, digest.low.bigEndian)) { Hexadecimal.digits(of: $0) }
  }
}
