import CacheActivity
import CacheModel

/// The state that the caching clients of one storage share: the fetches in flight, the counts of requests, and access
/// to what a storage of a program has no need to tell.
package final class ClientState: Sendable {
  let inFlightFetches: InFlightFetches
  let counters: RequestCounters
  let spaces: SpaceRecords
  let failingOrigins = FailingOrigins()
  /// Returns whether the storage has a variant of a cache key.
  let hasVariants: @Sendable (_ key: RequestKey) -> Bool

  /// Creates the state of the clients of a storage.
  ///
  /// - Parameters:
  ///   - activity: The counters of the storage's directory.
  ///   - spaces: The records of key spaces in the storage.
  ///   - hasVariants: Returns whether the storage has a variant of a cache key. The default is false: without it, a
  ///     miss has the same Cache-Status whether there are other variants or not.
  ///   - effectOfRemovals: Returns the effect that removals since a token may have on a response with a key, and
  ///     advances the token. It must not retain the owner of this object.
  package init(
    activity: ActivityReference, spaces: SpaceRecords,
    hasVariants: @escaping @Sendable (_ key: RequestKey) -> Bool = { _ in false },
    effectOfRemovals: @escaping @Sendable (_ key: RequestKey, _ token: inout RemovalToken) -> RemovalEffect
  ) {
    self.spaces = spaces
    self.hasVariants = hasVariants
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
    // Afterwards, because a fetch that fails is recorded before it ends.
    failingOrigins.revokePermits(isSoft: isSoft, where: matches)
  }
}

/// A storage whose caching clients have one state.
package protocol SharesClientState {
  /// The state.
  var clientState: ClientState { get }
}
