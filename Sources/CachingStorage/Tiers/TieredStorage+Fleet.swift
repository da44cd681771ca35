import CacheModel
import CachingClient
import HTTPCaching
import ResponseStore

/// The cache on one of several machines, the fleet.
extension TieredStorage {
  /// Whether other machines store responses, too.
  package var hasOtherMachines: Bool { membership != nil }

  /// Whether the machine has no valid lease. False without other machines.
  ///
  /// Read this before a lookup: a purge may be applied, and the lease renewed, after the lookup.
  package var isCutOff: Bool { lease.map { !$0.isValid } ?? false }

  /// Removes on this machine by `body`, and posts the removals to the other machines, if there are any. Waits for at
  /// most 100 ms.
  package func onAllMachines(_ removals: [Removal], _ body: () -> Void) {
    if let membership { membership.post(removals, body) } else { body() }
  }

  /// Removes on this machine by `body`, and waits until the other machines obey. Blocks.
  ///
  /// - Returns: The machines that obey; nil without other machines.
  func purgeOnAllMachines(_ removal: Removal, timeout: Duration?, _ body: () -> Void) throws -> FleetPurgeResult? {
    if let membership { return try membership.purge(removal, timeout: timeout, body) }
    body()
    return nil
  }
}

extension ResponseCache.Options {
  /// Throws if the cache of a fleet would have no disk tier.
  func checkFleet(directory: String, usesDisk: Bool) throws(StoreError) {
    guard fleet != nil, !usesDisk else { return }
    throw StoreError(
      .fleetMismatch, directory: directory, reason: "a cache in a fleet needs a disk tier",
      remedy: "Set a disk capacity of at least \(ResponseCache.minimumDiskCapacity) bytes")
  }

  /// Joins the fleet with a cache's directory; nil without a fleet.
  func joinFleet(_ connection: StoreConnection) throws -> (any FleetMembership)? {
    guard let fleet else { return nil }
    guard let tier = fleet as? any JoinableFleetTier else {
      preconditionFailure("Only RedisTier can be a fleet tier")
    }
    return try tier.join(
      directory: connection.directory,
      node: FleetNode(
        storeID: { [weak connection] in connection?.storeID },
        remove: { [weak connection] in connection?.applyRemovals($0) ?? false }, log: log,
        activity: connection.activity))
  }
}

extension FreshnessInfo {
  /// The same freshness for a response that purges may have covered: it must not be used before it was validated, nor
  /// if the validation fails.
  package var requiringValidation: FreshnessInfo {
    var freshness = self
    freshness.flags.insert(.suspect)
    return freshness
  }
}
