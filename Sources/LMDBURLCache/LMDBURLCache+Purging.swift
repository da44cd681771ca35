import Foundation
import HTTPCaching
import ResponseStore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What `URLCache` has no methods for. Each purge returns when no thread and no process reads what it covers any more, also
/// not after a crash; the disk space comes back behind it. It waits for one commit and one sync of the disk, however much it
/// covers, and passes over the memory tier. What a fetch brings that is under way meanwhile is not stored.
extension LMDBURLCache {
  /// Removes what is stored for a host, whatever scheme and port. Not for its subdomains.
  ///
  /// - Parameter host: As it stands in URLs; case does not matter.
  public func removeCachedResponses(forHost host: String) {
    remove(.host(host))
  }

  /// Removes what is stored for URLs that begin with this one: same scheme, host and port, and a path and query that begin
  /// with these characters. `https://example.com/a` covers `/a`, `/a/b` and `/abc`.
  ///
  /// - Parameter url: An absolute URL; without a scheme, or of HTTP without a host, nothing happens.
  public func removeCachedResponses(withPrefix url: URL) {
    guard let scope = RemovalScope.urlPrefix(url) else { return }
    remove(scope)
  }

  /// Removes the members of a cache group (RFC 9875) of the URL's origin: responses whose `Cache-Groups` field names it.
  ///
  /// - Parameters:
  ///   - group: The group's name, compared character by character.
  ///   - url: Any URL of the origin whose group it is.
  public func removeCachedResponses(inGroup group: String, origin url: URL) {
    guard let scope = RemovalScope.group(group, ofOrigin: url) else { return }
    remove(scope)
  }

  /// Whether a response is stored for GET requests to the URL, in memory or on disk, fresh or not, for whatever request
  /// fields. Costs a lookup.
  public func isCached(_ url: URL) -> Bool {
    guard let key = key(for: URLRequest(url: url)) else { return false }
    return core.find(key) { _ in true } != nil
  }

  /// Returns when all that was stored is safe on disk, also against a power cut. Background revalidations are not waited for;
  /// see ``finishBackgroundWork()``. Without a disk tier it does nothing.
  ///
  /// Answers for everything that the disk tier accepted since this cache's last flush, also if the disk works again by
  /// now or an empty store was begun in the place of a damaged one.
  ///
  /// - Returns: False if any of it was lost or could not be made safe; the log says why.
  @discardableResult
  public func flush() -> Bool {
    do {
      try core.flush()
      return true
    } catch {
      core.options.log("LMDBURLCache: \(error)")
      return false
    }
  }

  /// Returns when no background revalidation is under way any more (RFC 5861, section 3). To be called, before ``flush()``, by
  /// a process that is about to exit and wants to keep what they bring.
  public func finishBackgroundWork() async {
    await engineInUse?.finishBackgroundWork()
  }

  func remove(_ scope: RemovalScope) {
    voidFetches(scope)
    core.remove(scope)
  }

  /// Keeps fetches that are under way from storing what they bring. First this, then the removal.
  func voidFetches(_ scope: RemovalScope?) {
    guard let scope, let engine = engineInUse else { return }
    engine.voidFetches { scope.mayCover($0) }
  }
}

extension RemovalScope {
  /// The URL of a key, whatever method, partition and user.
  static func target(ofKey key: RequestKey) -> RemovalScope? {
    URL(string: key.urlString).flatMap { .target(of: $0) }
  }
}

extension CacheCore {
  func remove(_ scope: RemovalScope) {
    var token = removalToken
    remove(scope, movingPast: &token)
  }

  /// - Parameter token: Of what is not to be covered; it is moved past the removal.
  func remove(_ scope: RemovalScope, movingPast token: inout RemovalToken) {
    remove(
      { record in
        scope.covers(key: record.key.bytes, storedAt: record.storedAt) { CacheGroups.groups(of: record.fields) }
      }, fromStore: { $0.remove(scope, movingPast: &token) })
  }
}
