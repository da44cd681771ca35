import CacheModel

/// Keyed digests of values that are not written themselves.
extension ResponseStore {
  /// Returns a keyed digest of a credential or another secret, for `VaryKey`. Equal values have equal digests only
  /// within this store.
  ///
  /// The value itself is not written. The digest is not cryptographic: a process that can read the directory can test
  /// guesses.
  public func credentialDigest(_ value: String) -> String {
    Self.hexadecimalDigest(of: value, secret: context.database.format.secret)
  }

  /// Returns a keyed digest of 128 bits of the content of a query. Equal bytes have equal digests in all processes.
  public func contentDigest(_ bytes: UnsafeRawBufferPointer) -> String {
    KeyedDigest.hexadecimal(bytes, secret: context.database.format.secret)
  }

  /// Returns the same digest for a cache without a store. Equal bytes have equal digests only within this process.
  public static func contentDigestInProcess(_ bytes: UnsafeRawBufferPointer) -> String {
    KeyedDigest.inProcess(bytes)
  }

  /// Returns a keyed digest of a secret, for a cache without a store. Equal values have equal digests only within
  /// this process.
  public static func credentialDigestInProcess(_ value: String) -> String {
    hexadecimalDigest(of: value, secret: RequestKey.secret)
  }

  private static func hexadecimalDigest(of value: String, secret: [UInt8]) -> String {
    var value = value
    return value.withUTF8 { KeyedDigest.hexadecimal(UnsafeRawBufferPointer($0), secret: secret) }
  }
}
