import CacheModel
import CachingClient
import FleetRedis

/// Shows and purges a fleet from a program that is not a machine of it, such as the tool.
///
/// It needs neither the fleet's secret nor its lease: they only have to be the same in all machines, and Redis knows
/// the lease. Each call makes its own connection and blocks. Can be used from any thread.
package struct FleetConsole: Sendable {
  private let fleet: FleetAddress

  /// Creates a console. It does not connect yet.
  ///
  /// - Parameters:
  ///   - url: The server, as for `RedisTier`.
  ///   - configuration: The name of the fleet, and how to connect. Other settings are not used.
  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  package init(
    url: String, configuration: RedisTier.Configuration = RedisTier.Configuration()
  ) throws(RedisTierError) {
    fleet = try configuration.fleet(url: url)
  }

  /// The address of the server without user and password.
  package var serverName: String { fleet.server.name }

  /// Whether the URL contains a password.
  package var hasPasswordInURL: Bool { fleet.server.password != nil }

  /// Reads the state of the fleet at one moment. Changes nothing.
  ///
  /// - Throws: `RedisTierError`, with the code `unknownFleet` if Redis knows no fleet of this name.
  package func status() throws(RedisTierError) -> FleetStatus {
    let connection = try fleet.connect()
    let run = try connection.serverRun()
    let reply = try FleetScripts.status.run(
      keys: ["ctl", "log", "acks", "wait"].map { fleet.key($0) }, [], on: connection)
    return try FleetStatus(reply, fleet, run: run)
  }

  /// Posts a purge and waits until all machines obey it, as `LMDBURLCache.purge(_:)` does on a machine.
  ///
  /// - Parameters:
  ///   - removal: The responses to purge, and whether they become stale. The time is that of each machine's receipt.
  ///   - timeout: The maximum time to wait; nil for 1.25 leases and 5.25 seconds.
  ///   - onWait: Called several times a second while it waits.
  /// - Returns: The number of machines that confirmed, and of those whose leases have ended.
  /// - Throws: `RedisTierError`: `notPosted` if no machine obeys it, `unconfirmed` if some may not obey it yet, and
  ///   `unknownFleet`.
  package func purge(
    _ removal: Removal, timeout: Duration? = nil, onWait: (PurgeWait) -> Void = { _ in }
  ) throws(RedisTierError) -> FleetPurgeResult {
    try PurgePoster(settings()).purge(Purge(removal: removal), timeout: timeout, onWait: onWait)
  }

  /// Reads the length of the leases of the fleet, which a machine that joins it needs.
  ///
  /// - Throws: `RedisTierError`, with the code `unknownFleet` if Redis knows no fleet of this name.
  package func lease() throws(RedisTierError) -> Duration { .nanoseconds(try settings().lease) }

  private func settings() throws(RedisTierError) -> FleetSettings {
    let connection = try fleet.connect()
    let epoch = try connection.command([Array("HGET".utf8), fleet.key("ctl"), Array("epoch".utf8)])
    guard epoch != .null else { throw Self.unknownFleet(fleet) }
    return try FleetSettings(fleet, epoch: try epoch.asBytes())
  }

  static func unknownFleet(_ fleet: FleetAddress) -> RedisTierError {
    RedisTierError(.unknownFleet, "Redis knows no fleet with the name '\(fleet.name)'")
  }
}
