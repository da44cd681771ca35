import CacheModel
import CachingClient
import HTTPCaching

/// The cache as part of a fleet of machines.
extension TieredStorage {
  /// Whether the machine has no valid lease in its fleet. False without a fleet.
  ///
  /// Read this before a lookup: a purge may be applied, and the lease renewed, after the lookup.
  package var isCutOff: Bool { lease.map { !$0.isValid } ?? false }

  /// Starts to follow the purges of the fleet.
  func startFleet() {
    fleet?.start(
      FleetNode(
        storeID: { [weak connection = connection] in connection?.storeID },
        remove: { [weak connection = connection] in connection?.applyRemovals($0) ?? false }, log: options.log,
        activity: activity))
  }

  /// Removes on this machine by `body`, and posts the removals to the fleet, if there is one. Waits for at most 100 ms.
  package func postingToFleet(_ removals: [Removal], _ body: () -> Void) {
    if let fleet { fleet.post(removals, body) } else { body() }
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
