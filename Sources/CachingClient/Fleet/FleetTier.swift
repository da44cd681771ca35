import CacheActivity
import CacheModel
import FoundationEssentials

/// A tier that the caches of several machines share, so that purges hold on all of them.
///
/// `RedisTier` of the product RedisTier is the only implementation.
public protocol FleetTier: Sendable {}

/// A tier that caches can join.
package protocol JoinableFleetTier: FleetTier {
  /// Joins with a cache's directory, and follows the purges of the fleet until the membership ends.
  ///
  /// - Throws: An error with a remedy if the fleet's files cannot be used, or belong to another fleet.
  func join(directory: String, node: FleetNode) throws -> any FleetMembership
}

/// A cache's membership in a fleet.
///
/// All members can be called from any thread. The membership ends when it is released.
package protocol FleetMembership: AnyObject, Sendable {
  /// The lease of the machine. Check it before each lookup.
  var lease: MachineLease { get }

  /// Serves requests with responses of other machines; nil if the machines share none.
  var sharedResponses: (any TransportLayer)? { get }

  /// Announces a purge to the processes of this machine, carries it out here, posts it, and waits until the other
  /// machines obey it. Blocks.
  ///
  /// - Parameters:
  ///   - timeout: The maximum time to wait for the machines; nil for the tier's own.
  ///   - removeHere: Carries it out on this machine.
  /// - Throws: An error that says whether the purge was posted. It is in force on this machine.
  func purge(_ removal: Removal, timeout: Duration?, _ removeHere: () -> Void) throws -> FleetPurgeResult

  /// Like ``purge(_:timeout:_:)``, for the removals of a request or a method of `URLCache`. Waits for at most 100 ms;
  /// then they are posted in the background. Blocks.
  func post(_ removals: [Removal], _ removeHere: () -> Void)

  /// Ends following, and unregisters the machine if no other process of it is a member. Further calls have no effect.
  /// Blocks.
  ///
  /// The end of the lifetime does the same.
  func leave()
}

/// The part of a cache that a fleet needs.
package struct FleetNode: Sendable {
  /// Identifies the data of the store; nil while the store is unusable.
  package var storeID: @Sendable () -> UInt64?
  /// Carries out removals on this machine. Returns whether they are durable.
  package var remove: @Sendable (_ removals: [Removal]) -> Bool
  /// Receives one line per kind of error.
  package var log: @Sendable (String) -> Void
  /// The counters of the cache's directory.
  package var activity: ActivityReference

  package init(
    storeID: @escaping @Sendable () -> UInt64?, remove: @escaping @Sendable ([Removal]) -> Bool,
    log: @escaping @Sendable (String) -> Void, activity: ActivityReference
  ) {
    self.storeID = storeID
    self.remove = remove
    self.log = log
    self.activity = activity
  }
}

/// The machines that a purge has reached.
public struct FleetPurgeResult: Sendable, Hashable {
  /// The number of machines that have confirmed that they obey the purge, with the one that purges.
  public var confirmedCount: Int
  /// The number of machines whose leases ended without a confirmation: they serve nothing without validation until they
  /// have applied the purge.
  public var expiredLeaseCount: Int

  /// Creates a result.
  public init(confirmedCount: Int, expiredLeaseCount: Int) {
    self.confirmedCount = confirmedCount
    self.expiredLeaseCount = expiredLeaseCount
  }
}
