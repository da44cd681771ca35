import CacheActivity
import CacheModel
import FoundationEssentials
import LMDB

/// The store as part of a fleet of machines.
extension ResponseStore {
  /// Refuses a directory of a fleet to a store without a fleet, which would serve responses without a lease.
  ///
  /// An inspection is allowed.
  static func checkFleet(directory: String, options: Options) throws(StoreError) {
    guard !options.isInFleet, !options.opensExistingOnly else { return }
    guard StoreDirectory.hasFile(FleetFileLayout.fileName, in: try DirectoryPath.absolute(directory)) else { return }
    throw StoreError(
      .fleetMismatch, directory: directory, reason: "it belongs to a fleet of caches",
      remedy: "Set the fleet in the options, or remove \(FleetFileLayout.fileName) while no process uses the directory")
  }

  /// The error of a cache with a fleet and without a disk tier.
  package static func fleetNeedsDisk(directory: String) -> StoreError {
    StoreError(
      .fleetMismatch, directory: directory, reason: "a cache in a fleet needs a disk tier",
      remedy: "Set a disk capacity of at least \(minimumCapacityByteCount) bytes")
  }

  /// The ID of the store's removal log. A store that is created again has another one.
  package var ownerID: UInt64 { context.removalLog.owner }
}
