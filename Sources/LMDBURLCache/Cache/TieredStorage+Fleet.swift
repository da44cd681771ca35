import CacheModel
import CachingClient
import Foundation
import HTTPCaching

/// The cache as part of a fleet of machines.
extension TieredStorage {
  /// Whether the machine has no valid lease in its fleet. False without a fleet.
  ///
  /// Read this before a lookup: a purge may be applied, and the lease renewed, after the lookup.
  @inline(__always)
  var isCutOff: Bool { lease.map { !$0.isValid } ?? false }

  /// Starts to follow the purges of the fleet.
  func startFleet() {
    fleet?.start(
      FleetNode(
        storeID: { [weak connection = connection] in connection?.storeID },
        remove: { [weak connection = connection] in connection?.applyRemovals($0) ?? false }, log: options.log,
        activity: activity))
  }

  /// Removes on this machine by `body`, and posts the removals to the fleet, if there is one. Waits for at most 100 ms.
  func postingToFleet<Result>(_ removals: [Removal], _ body: () -> Result) -> Result {
    guard let fleet else { return body() }
    let announced = fleet.announce(removals)
    defer { fleet.post(announced) }
    return body()
  }
}

extension FreshnessInfo {
  /// The same freshness for a response that purges may have covered: it must not be used before it was validated, nor
  /// if the validation fails.
  var requiringValidation: FreshnessInfo {
    var freshness = self
    freshness.flags.insert(.suspect)
    return freshness
  }
}

extension LMDBURLCache.Options {
  /// Joins the fleet with a cache's directory; nil without a fleet.
  func joinFleet(directory: String) throws -> (any FleetMembership)? {
    guard let fleet else { return nil }
    guard let tier = fleet as? any JoinableFleetTier else { preconditionFailure("Only RedisTier can be a fleet tier") }
    return try tier.join(directory: directory)
  }
}
