import CacheModel
public import CachingClient
public import Foundation
import FoundationNetworking
import HTTPCaching

/// The responses that a purge covers.
public enum PurgeScope: Sendable, Hashable {
  /// Everything.
  case all
  /// Responses stored, or updated by a validation, after the date.
  case since(Date)
  /// Responses for a host with any scheme and port, but not for its subdomains.
  ///
  /// The host can have any spelling: the case does not matter, and a name in another script or with percent-encoding is
  /// the host that it reaches. It has no port. An IPv6 address can have brackets.
  case host(String)
  /// Responses whose URL starts with this one: same scheme, host and port, and a path and query with this prefix.
  ///
  /// For this case and `url`, query parameters that the cache's overrides ignore do not count.
  case prefix(URL)
  /// Members of a cache group (RFC 9875) of the URL's origin.
  case group(String, origin: URL)
  /// All variants of a URL, for all methods and in all partitions.
  case url(URL)
}

/// The effect of a purge on the responses that it covers.
public enum PurgeMode: Sendable, Hashable {
  /// When the purge returns, no thread or process can read them, even after a crash.
  case hard
  /// When the purge returns, they are stale in every thread and process, even after a crash.
  ///
  /// A stale response is validated before it is served, with one conditional request. `stale-while-revalidate` and
  /// `stale-if-error`, which then count from the purge, and requests that accept stale responses still permit serving
  /// it. After a successful validation it is fresh again.
  case soft
}

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
  /// - Throws: `URLError.badURL` for a URL that cannot be cached, such as one without a scheme, and for text that is not
  ///   one host alone, such as a host with a port, several hosts, or none. With a fleet, its error: this machine obeys the purge, but it could not be posted, or was not
  ///   confirmed in time. If it could not be posted, this machine posts it later. Purge again to know when all machines
  ///   obey.
  @discardableResult
  public func purge(
    _ scope: PurgeScope, mode: PurgeMode = .hard, timeout: Duration? = nil
  ) async throws -> FleetPurgeResult? {
    guard let removalScope = removalScope(of: scope) else {
      throw URLError(.badURL, "Nothing was purged: \(scope.mistake)")
    }
    let removal = Removal(removalScope, isSoft: mode == .soft)
    return try await onBlockingThread {
      let fleet = self.core.fleet
      let announced = fleet?.announce([removal]) ?? []
      self.removeHere(removal, of: scope)
      return Result { try fleet?.purge(announced, timeout: timeout) }
    }.get()
  }

  /// Carries out the removal of a purge on this machine.
  private func removeHere(_ removal: Removal, of scope: PurgeScope) {
    switch scope {
    // A subclass may store responses elsewhere. These methods also post to the fleet, which has no effect if the purge
    // was posted.
    case .all where isSubclass && removal.effect == .remove: removeAllCachedResponses()
    case .since(let date) where isSubclass && removal.effect == .remove: removeCachedResponses(since: date)
    default: removeHere(removal)
    }
  }
}

extension LMDBURLCache {
  /// Returns the store's scope for a purge; nil for a URL that cannot be cached, or a host that is none.
  func removalScope(of scope: PurgeScope) -> RemovalScope? {
    // Responses are stored under the URLs of their keys.
    func keyURL(_ url: URL) -> URL { overrides(for: URLRequest(url: url)).keyURL(for: url) }
    switch scope {
    case .url(let url): return PurgeScope.url(keyURL(url)).removalScope
    case .prefix(let url): return PurgeScope.prefix(keyURL(url)).removalScope
    default: return scope.removalScope
    }
  }
}

extension PurgeScope {
  /// Why no removal can be made of this scope, and what to write instead. Contains at most a host of the scope.
  var mistake: String {
    guard case .host(let text) = self else {
      return "no response can be stored for the URL. Use an absolute http or https URL, such as https://example.com/."
    }
    // A host with a port is the beginning of a URL.
    let meant = (URL(string: text)?.host ?? URL(string: "//" + text)?.host).flatMap { HostName.canonical($0) }
    return "the text is not one host alone. Write \"\(meant ?? "example.com")\", without a scheme, a port or a path."
  }

  /// The store's scope for this purge; nil for a URL that cannot be cached, or a host that is none.
  package var removalScope: RemovalScope? {
    switch self {
    case .all: .everything
    case .since(let date): .since(date)
    case .host(let host): .host(validating: host)
    case .prefix(let url): .urlPrefix(url)
    case .group(let name, let origin): .group(name, ofOrigin: origin)
    case .url(let url): .target(of: url)
    }
  }
}
