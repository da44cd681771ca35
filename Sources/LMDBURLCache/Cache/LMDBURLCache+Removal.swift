import CacheModel
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching

/// Operations that `URLCache` lacks, such as purges by host, URL prefix or cache group.
///
/// When a purge returns, no thread or process can read a purged response, even after a crash. A purge waits for one
/// disk sync, regardless of its size, and scans the memory tier. The disk space is freed later. In-flight fetches do
/// not store responses that it covers.
extension LMDBURLCache {
  /// Removes the responses for a host with any scheme and port, but not for its subdomains.
  ///
  /// - Parameter host: A host, as for `PurgeScope.host(_:)`. For text that is not one host alone, such as a host with a
  ///   port, nothing is removed, and the log receives a line. ``purge(_:mode:timeout:)`` throws instead.
  public func removeCachedResponses(forHost host: String) {
    remove(validating: .host(host))
  }

  /// Removes the responses whose URL starts with `url`: same scheme, host and port, and a path and query with this
  /// prefix.
  ///
  /// `https://example.com/a` matches `/a`, `/a/b` and `/abc`.
  ///
  /// - Parameter url: An absolute URL. For a URL that cannot be cached, such as one without a scheme, nothing is
  ///   removed, and the log receives a line.
  public func removeCachedResponses(withPrefix url: URL) {
    remove(validating: .prefix(url))
  }

  /// Removes the members of a cache group (RFC 9875).
  ///
  /// They are the responses of one origin whose `Cache-Groups` field names the group.
  ///
  /// - Parameters:
  ///   - group: The group's name; case matters.
  ///   - url: Any URL of the group's origin. For a URL that cannot be cached, nothing is removed, and the log receives
  ///     a line.
  public func removeCachedResponses(inGroup group: String, origin url: URL) {
    remove(validating: .group(group, origin: url))
  }

  /// Whether a response to a GET request for a URL is stored in either tier, fresh or stale, with any Vary key.
  ///
  /// Responses to requests with `Authorization` or with a user in the URL do not count, unless a shared cache stored
  /// them for everybody.
  ///
  /// - Complexity: The cost of a lookup.
  public func isCached(_ url: URL) -> Bool { isStored(url) }

  /// Makes everything stored so far durable.
  ///
  /// Does not wait for background revalidation; see ``finishBackgroundWork()``. Without a disk tier it does nothing.
  ///
  /// - Returns: False if a response that the disk tier accepted since this cache's last flush was lost or could not be
  ///   made durable. This includes responses that were lost before the disk recovered or an empty store replaced a
  ///   corrupt one. The log has the reason.
  @discardableResult
  public func flush() -> Bool { storage.flush() }

  /// Waits until no background revalidation (RFC 5861, section 3) is running.
  ///
  /// Call this before ``flush()`` in a process that is about to exit, to keep the revalidated responses.
  public func finishBackgroundWork() async {
    await client.finishBackgroundWork()
  }

  /// Removes the responses that a scope covers. If there can be none, logs why, because the caller expects a removal.
  private func remove(validating scope: PurgeScope) {
    guard let removal = removalScope(of: scope) else {
      return options.log("LMDBURLCache: Nothing was removed: \(scope.mistake)")
    }
    remove(removal)
  }

  /// Removes the responses that a scope covers on all machines.
  func remove(_ scope: RemovalScope) { storage.removeEverywhere(Removal(scope)) }
}
