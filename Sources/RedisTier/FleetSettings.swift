import CXXHash
import CacheModel
import Glibc

/// The checked settings of a tier, and what follows from them.
struct FleetSettings: Sendable {
  let fleet: FleetAddress
  var configuration: RedisTier.Configuration { fleet.configuration }
  /// Names all keys of the fleet.
  private let keyPrefix: String
  /// The secret of the names of objects, as XXH3 takes it.
  let hashSecret: [UInt8]
  /// The end of each epoch's ID: the lease, and a digest of the secret.
  private let epochSuffix: String

  /// *L* in nanoseconds of the boot clock.
  let lease: UInt64
  /// *W* in nanoseconds: longer than a lease lasts by any machine's clock.
  let wait: UInt64

  /// How long the process that follows may not report that it does, in nanoseconds, before another one takes over: less
  /// than a lease, and longer than it waits for Redis.
  var takeoverTime: UInt64 { max(lease / 4 * 3, lease / 4 + 2 * configuration.commandTimeout.nanoseconds) }

  init(url: String, secret: [UInt8], _ configuration: RedisTier.Configuration) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    fleet = try FleetAddress(url: url, configuration)
    guard secret.count >= 32 else { throw invalid("the secret has fewer than 32 bytes") }
    guard configuration.lease >= .milliseconds(200), configuration.lease <= .seconds(3600) else {
      throw invalid("the lease is not from 200 ms to 1 hour")
    }
    guard configuration.objectConnectionCount >= 1, configuration.maximumSharedBodyByteCount >= 0,
      configuration.maximumLogCount >= 1, configuration.clockTolerance >= .zero,
      configuration.commandTimeout > .zero, configuration.lookupTimeout > .zero,
      configuration.fetchLockLease > .zero, configuration.maximumSharedLifetime >= .seconds(1)
    else { throw invalid("a limit or a time is zero or negative") }
    keyPrefix = fleet.keyPrefix
    let milliseconds = UInt64(configuration.lease / .milliseconds(1))
    lease = milliseconds * 1_000_000
    wait = Self.wait(lease: lease)
    hashSecret = Self.expand(secret)
    let tag = Self.digest(Array("lease".utf8), secret: hashSecret).low
    let digits = withUnsafeBytes(of: tag.bigEndian) { Hexadecimal.digits(of: $0) }
    epochSuffix = "@\(milliseconds)-" + String(decoding: digits.suffix(8), as: UTF8.self)
  }

  /// The settings of a fleet for a program that is not a machine of it, as the fleet's epoch tells them.
  ///
  /// They name no shared responses, because the secret is not known.
  init(_ fleet: FleetAddress, epoch: [UInt8]) throws(RedisTierError) {
    guard let at = epoch.lastIndex(of: UInt8(ascii: "@")), let dash = epoch[at...].firstIndex(of: UInt8(ascii: "-")),
      let milliseconds = UInt64(String(decoding: epoch[(at + 1)..<dash], as: UTF8.self)),
      (1...3_600_000).contains(milliseconds)
    else { throw RedisTierError(.badReply, "the epoch of the fleet is malformed") }
    self.fleet = fleet
    keyPrefix = fleet.keyPrefix
    lease = milliseconds * 1_000_000
    wait = Self.wait(lease: lease)
    hashSecret = Self.expand([])
    epochSuffix = String(decoding: epoch[at...], as: UTF8.self)
  }

  private static func wait(lease: UInt64) -> UInt64 { lease / 4 * 5 + 250_000_000 }

  // MARK: Keys

  func key(_ name: String, _ digits: [UInt8] = []) -> [UInt8] {
    var key: [UInt8] = []
    key.reserveCapacity(keyPrefix.utf8.count + name.utf8.count + digits.count)
    key += keyPrefix.utf8
    key += name.utf8
    key += digits
    return key
  }

  /// The keys of the control scripts, in their order.
  var controlKeys: [[UInt8]] { ["ctl", "log", "acks", "seen", "wait"].map { key($0) } }

  /// The first arguments of the control scripts.
  func controlArguments(run: [UInt8]) -> [[UInt8]] {
    [run, Array((RandomID().text + epochSuffix).utf8), key("done:")]
  }

  /// The digest of a name under the fleet's secret, as hexadecimal digits.
  func digest(_ bytes: [UInt8]) -> [UInt8] {
    let digest = Self.digest(bytes, secret: hashSecret)
    return withUnsafeBytes(of: (digest.high.bigEndian, digest.low.bigEndian)) { Hexadecimal.digits(of: $0) }
  }

  /// Identifies the fleet and its server in the fleet file.
  var fleetDigest: (high: UInt64, low: UInt64) {
    Self.digest(Array((keyPrefix + "\n" + fleet.server.name).utf8), secret: hashSecret)
  }

  // MARK: Digests

  private static func digest(_ bytes: [UInt8], secret: [UInt8]) -> (high: UInt64, low: UInt64) {
    let hash = secret.withUnsafeBytes { XXH3_128bits_withSecret(bytes, bytes.count, $0.baseAddress, $0.count) }
    return (hash.high64, hash.low64)
  }

  /// XXH3 takes a secret of at least 136 bytes with high entropy.
  private static func expand(_ secret: [UInt8]) -> [UInt8] {
    var expanded: [UInt8] = []
    for counter in UInt8(0)..<12 {
      let bytes = secret + [counter]
      let hash = XXH3_128bits(bytes, bytes.count)
      for word in [hash.high64, hash.low64] { withUnsafeBytes(of: word.littleEndian) { expanded += $0 } }
    }
    return expanded
  }
}
