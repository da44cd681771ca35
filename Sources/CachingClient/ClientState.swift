import CacheActivity
import CacheModel
import HTTPCaching
import Synchronization

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// The state that the caching clients of one storage share: the fetches in flight, the counts of requests, and the lock for
/// changes of key spaces.
package final class ClientState: Sendable {
  let inFlightFetches: InFlightFetches
  let counters: RequestCounters
  let failingOrigins = FailingOrigins()
  /// Held while the record of a key space is made or changed.
  let spaceChanges = Mutex(())

  /// Creates the state of the clients of a storage.
  ///
  /// - Parameters:
  ///   - activity: The counters of the storage's directory.
  ///   - effectOfRemovals: Returns the effect that removals since a token may have on a response with a key, and advances
  ///     the token. It must not retain the owner of this object.
  package init(
    activity: ActivityReference,
    effectOfRemovals: @escaping @Sendable (_ key: RequestKey, _ token: inout RemovalToken) -> RemovalEffect
  ) {
    counters = RequestCounters(activity: activity)
    inFlightFetches = InFlightFetches { key, token in
      StorePermit(token: token) { effectOfRemovals(key, &$0) }
    }
  }

  /// The counts since the state was created.
  package var statistics: ClientStatistics { counters.snapshot() }

  /// Keeps fetches in flight from storing their responses; see ``CachingClient/revokeStorePermits(isSoft:where:)``.
  package func revokeStorePermits(isSoft: Bool = false, where matches: (RequestKey) -> Bool) {
    inFlightFetches.revokePermits(isSoft: isSoft, where: matches)
  }
}

/// A storage whose caching clients have one state.
package protocol SharesClientState {
  /// The state.
  var clientState: ClientState { get }
}
