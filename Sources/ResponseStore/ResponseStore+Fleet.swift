import CacheActivity
import CacheModel
import FoundationEssentials
import LMDB

/// The store on one of several machines.
extension ResponseStore {
  /// Refuses a directory of a fleet to a store without a fleet, which would serve responses without a lease.
  ///
  /// An inspection is allowed.
  static func checkFleet(directory: String, options: Options) throws(StoreError) {
    guard !options.checksLease, !options.opensExistingOnly else { return }
    guard StoreDirectory.hasFile(FleetFileLayout.fileName, in: try DirectoryPath.absolute(directory)) else { return }
    throw StoreError(
      .fleetMismatch, directory: directory, reason: "it belongs to a fleet of caches",
      remedy: "Set the fleet in the options, or remove \(FleetFileLayout.fileName) while no process uses the directory")
  }

  /// The ID of the store's removal log. A store that is created again has another one.
  package var ownerID: UInt64 { context.removalLog.owner }
}
