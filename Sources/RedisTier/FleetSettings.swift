import FleetRedis
import FleetSharing

/// The checked settings of a tier, and what follows from them.
struct FleetSettings: Sendable {
  let fleet: FleetAddress
  let configuration: RedisTier.Configuration
  let digest: FleetDigest
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
    fleet = try configuration.fleet(url: url)
    self.configuration = configuration
    guard secret.count >= 32 else { throw invalid("the secret has fewer than 32 bytes") }
    guard configuration.lease >= .milliseconds(200), configuration.lease <= .seconds(3600) else {
      throw invalid("the lease is not from 200 ms to 1 hour")
    }
    guard configuration.objectConnectionCount >= 1, configuration.maximumSharedBodyByteCount >= 0,
      configuration.maximumLogCount >= 1, configuration.clockTolerance >= .zero,
      configuration.commandTimeout > .zero, configuration.lookupTimeout > .zero,
      configuration.fetchLockLease > .zero, configuration.maximumSharedLifetime >= .seconds(1)
    else { throw invalid("a limit or a time is zero or negative") }
    let milliseconds = UInt64(configuration.lease / .milliseconds(1))
    lease = milliseconds * 1_000_000
    wait = Self.wait(lease: lease)
    digest = FleetDigest(secret: secret)
    epochSuffix =
      "@\(milliseconds)-" + String(decoding: digest.digits(Array("lease".utf8)).suffix(8), as: UTF8.self)
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
    configuration = RedisTier.Configuration()
    lease = milliseconds * 1_000_000
    wait = Self.wait(lease: lease)
    digest = FleetDigest(secret: [])
    epochSuffix = String(decoding: epoch[at...], as: UTF8.self)
  }

  private static func wait(lease: UInt64) -> UInt64 { lease / 4 * 5 + 250_000_000 }

  /// The keys of the control scripts, in their order.
  var controlKeys: [[UInt8]] { ["ctl", "log", "acks", "seen", "wait"].map { fleet.key($0) } }

  /// The first arguments of the control scripts.
  func controlArguments(run: [UInt8]) -> [[UInt8]] {
    [run, Array((RandomID().text + epochSuffix).utf8), fleet.key("done:")]
  }

  /// Identifies the fleet and its server in the fleet file.
  var fleetDigest: (high: UInt64, low: UInt64) {
    digest.words(Array((fleet.keyPrefix + "\n" + fleet.server.identity).utf8))
  }
}

extension RedisTier.Configuration: SharingSettings {
  var sharesResponses: Bool { maximumSharedBodyByteCount > 0 }

  /// The address of the fleet.
  ///
  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  func fleet(url: String) throws(RedisTierError) -> FleetAddress {
    guard sentinelUser == nil || sentinelPassword != nil else {
      throw RedisTierError(.invalidConfiguration, "the user for Sentinels has no password")
    }
    return try FleetAddress(
      url: url, name: fleetName, password: password,
      sentinelLogin: sentinelPassword.map { RedisLogin(user: sentinelUser, password: $0) }, tls: tls,
      timeout: commandTimeout)
  }
}
