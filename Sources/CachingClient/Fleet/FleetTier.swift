import CacheActivity
import CacheModel

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

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

  /// Announces removals to the processes of this machine. Call this before they are carried out, then ``purge`` or
  /// ``post`` exactly once.
  func announce(_ removals: [Removal]) -> [AnnouncedRemoval]

  /// Posts purges that are in force on this machine, and waits until the other machines obey them. Blocks.
  ///
  /// - Parameters:
  ///   - removals: The announced removals.
  ///   - timeout: The maximum time to wait; nil for the tier's own.
  /// - Throws: An error that says whether the purge was posted.
  func purge(_ removals: [AnnouncedRemoval], timeout: Duration?) throws -> FleetPurgeResult

  /// Posts the removals that a request or a method of `URLCache` has made on this machine. Waits for at most 100 ms;
  /// then the purge is posted in the background. Blocks.
  func post(_ removals: [AnnouncedRemoval])

  /// Ends following, and unregisters the machine if no other process of it is a member. Further calls have no effect. Blocks.
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

  /// Creates a node.
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

/// A removal that all processes of a machine know, and that is to be posted to the fleet.
package struct AnnouncedRemoval: Sendable {
  /// The removal.
  package var removal: Removal
  /// Identifies the purge.
  package var id: [UInt8]
  /// The place of the removal in the table that the processes share, if the table has one for it.
  package var slot: Int?

  /// Creates an announced removal.
  package init(_ removal: Removal, id: [UInt8], slot: Int?) {
    self.removal = removal
    self.id = id
    self.slot = slot
  }
}

/// The machines that a purge has reached.
public struct FleetPurgeResult: Sendable, Hashable {
  /// The number of machines that have confirmed that they obey the purge.
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
