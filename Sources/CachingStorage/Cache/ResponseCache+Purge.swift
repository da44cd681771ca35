import CacheModel
public import CachingClient
import HTTPCaching

/// Removals of many responses.
///
/// When a purge returns, no thread or process can read a purged response, even after a crash. A purge waits for one
/// disk sync, regardless of its size, and scans the memory tier. The disk space is freed later. In-flight fetches do
/// not store responses that it covers.
extension ResponseCache {
  /// Purges responses without blocking a thread that runs Swift tasks.
  ///
  /// The task is suspended until the removal is durable. Cancelling the task does not stop a purge that has begun.
  ///
  ///     try await cache.purge(.host("api.example.com"))
  ///
  /// With a fleet (``Options/fleet``) the purge holds on all machines when it returns. It waits until each machine has
  /// confirmed it, or its lease has ended: usually for milliseconds, and for 1.25 leases and a quarter of a second if a
  /// machine does not respond.
  ///
  /// - Parameters:
  ///   - scope: The responses to purge.
  ///   - mode: Whether they are removed or become stale. Hard by default.
  ///   - timeout: The maximum time to wait for the fleet; nil, the default, for 1.25 leases and 5.25 seconds.
  /// - Returns: The number of machines that confirmed and of those that did not; nil without a fleet.
  /// - Throws: ``PurgeScopeError`` for a URL that cannot be cached, such as one without a scheme, for an empty tag,
  ///   and for text that is not one host alone, such as a host with a port, several hosts, or none. With a fleet, its
  ///   error: this machine obeys the purge, but it could not be posted, or was not confirmed in time. If it could not
  ///   be posted, this machine posts it later. Purge again to know when all machines obey.
  @discardableResult
  public func purge(
    _ scope: PurgeScope, mode: PurgeMode = .hard, timeout: Duration? = nil
  ) async throws -> FleetPurgeResult? {
    guard let removalScope = scope.removalScope(tagFieldNames: tiers.options.caching.tagFieldNames) else {
      throw PurgeScopeError(description: "Nothing was purged: \(scope.mistake)")
    }
    return try await purge(removalScope, mode, timeout: timeout) { self.remove($0) }
  }

  /// Makes a removal that takes effect now, which `body` carries out on this machine, and waits until the other
  /// machines obey.
  package func purge(
    _ scope: RemovalScope, _ mode: PurgeMode, timeout: Duration?, by body: @escaping @Sendable (Removal) -> Void
  ) async throws -> FleetPurgeResult? {
    let removal = Removal(scope, mode.effect(at: tiers.now))
    return try await onBlockingThread { [tiers] in
      Result { try tiers.purgeOnAllMachines(removal, timeout: timeout) { body(removal) } }
    }.get()
  }

  /// Carries out a removal on all machines. Blocks.
  package func removeEverywhere(_ removal: Removal) {
    tiers.onAllMachines([removal]) { remove(removal) }
  }

  /// Carries out a removal on this machine. The caller posts it to the other machines. Blocks.
  package func remove(_ removal: Removal) {
    // First, so that fetches in flight do not store what the removal covers.
    clientState.revokeStorePermits(isSoft: !removal.isHard) { removal.scope.mayCover($0) }
    tiers.remove(removal)
  }

  /// Leaves the fleet, so that purges do not wait for this process when it has ended. Then stored responses are
  /// validated before use. Blocks.
  ///
  /// The end of the cache's lifetime does the same, but a task that has returned may release the cache after the
  /// process has exited.
  package func leaveFleet() { tiers.membership?.leave() }
}
