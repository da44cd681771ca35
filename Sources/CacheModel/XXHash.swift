import CXXHash

/// The checksums and digests of the store: XXH3 of libxxhash.
package enum XXHash {
  /// Returns `XXH3_64bits` of the bytes.
  package static func digest64(_ bytes: UnsafeRawBufferPointer) -> UInt64 {
    XXH3_64bits(bytes.baseAddress, bytes.count)
  }

  /// Returns `XXH3_64bits` under a secret of at least 136 bytes (`XXH3_SECRET_SIZE_MIN`).
  package static func digest64(_ bytes: UnsafeRawBufferPointer, secret: [UInt8]) -> UInt64 {
    secret.withUnsafeBytes { digest64(bytes, secret: $0) }
  }

  /// The same under a secret in memory that its owner keeps.
  package static func digest64(_ bytes: UnsafeRawBufferPointer, secret: UnsafeRawBufferPointer) -> UInt64 {
    XXH3_64bits_withSecret(bytes.baseAddress, bytes.count, secret.baseAddress, secret.count)
  }

  /// Returns `XXH3_128bits` of the bytes, high word first.
  package static func digest128(_ bytes: UnsafeRawBufferPointer) -> (high: UInt64, low: UInt64) {
    let hash = XXH3_128bits(bytes.baseAddress, bytes.count)
    return (hash.high64, hash.low64)
  }

  /// Returns `XXH3_128bits` under a secret of at least 136 bytes (`XXH3_SECRET_SIZE_MIN`), high word first.
  package static func digest128(_ bytes: UnsafeRawBufferPointer, secret: [UInt8]) -> (high: UInt64, low: UInt64) {
    secret.withUnsafeBytes { secret in
      let hash = XXH3_128bits_withSecret(bytes.baseAddress, bytes.count, secret.baseAddress, secret.count)
      return (hash.high64, hash.low64)
    }
  }

  /// The size of a secret of the store or of this process.
  package static let secretByteCount = 192

  /// Returns a new random secret of ``secretByteCount`` bytes.
  package static func randomSecret() -> [UInt8] {
    var generator = SystemRandomNumberGenerator()
    return (0..<secretByteCount).map { _ in UInt8.random(in: 0...255, using: &generator) }
  }

  /// `XXH3_64bits` of bytes that arrive in parts.
  package struct Stream: ~Copyable {
    private let state: OpaquePointer

    package init() {
      guard let state = XXH3_createState() else { fatalError("libxxhash has no memory for a state") }
      self.state = state
      XXH3_64bits_reset(state)
    }

    deinit { XXH3_freeState(state) }

    package func append(_ bytes: UnsafeRawBufferPointer) {
      XXH3_64bits_update(state, bytes.baseAddress, bytes.count)
    }

    package var digest: UInt64 { XXH3_64bits_digest(state) }

    /// Begins again, as if nothing had been appended.
    package func reset() { XXH3_64bits_reset(state) }
  }
}
