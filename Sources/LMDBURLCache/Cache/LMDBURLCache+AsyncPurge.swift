import CacheModel
public import CachingClient
public import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching

extension LMDBURLCache {
  /// Purges responses without blocking a thread that runs Swift tasks.
  ///
  /// The task is suspended until the removal is durable. Callers that may block can use
  /// ``removeCachedResponses(since:)`` and similar methods, which have the same effect. Cancelling the task does not
  /// stop a purge that has begun.
  ///
  ///     try await cache.purge(.host("api.example.com"))
  ///
  /// A soft purge does not reach responses that a subclass stores elsewhere.
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
  /// - Throws: `URLError.badURL` for a URL that cannot be cached, such as one without a scheme, for an empty tag,
  ///   and for text that is not one host alone, such as a host with a port, several hosts, or none. With a fleet, its
  ///   error: this machine obeys the purge, but it could not be posted, or was not confirmed in time. If it could not
  ///   be posted, this machine posts it later. Purge again to know when all machines obey.
  @discardableResult
  public func purge(
    _ scope: PurgeScope, mode: PurgeMode = .hard, timeout: Duration? = nil
  ) async throws -> FleetPurgeResult? {
    guard let removalScope = removalScope(of: scope) else {
      throw URLError(.badURL, "Nothing was purged: \(scope.mistake)")
    }
    return try await storage.purge(removalScope, mode, timeout: timeout) { self.removeHere($0, of: scope) }
  }

  /// Carries out the removal of a purge on this machine.
  private func removeHere(_ removal: Removal, of scope: PurgeScope) {
    switch scope {
    // A subclass may store responses elsewhere. These methods also post to the fleet, which has no effect if the purge
    // was posted.
    case .all where isSubclass && removal.isHard: removeAllCachedResponses()
    case .since(let date) where isSubclass && removal.isHard: removeCachedResponses(since: date)
    default: storage.remove(removal)
    }
  }
}

extension LMDBURLCache {
  /// Returns the store's scope for a purge; nil if it can cover no response.
  func removalScope(of scope: PurgeScope) -> RemovalScope? {
    // Responses are stored under the URLs of their keys.
    func keyURL(_ url: URL) -> URL { overrides(for: URLRequest(url: url)).keyURL(for: url) }
    switch scope {
    case .url(let url): return PurgeScope.url(keyURL(url)).removalScope()
    case .prefix(let url): return PurgeScope.prefix(keyURL(url)).removalScope()
    default: return scope.removalScope(tagFieldNames: options.caching.tagFieldNames)
    }
  }
}
