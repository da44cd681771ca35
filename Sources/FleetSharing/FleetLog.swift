import CacheModel
import FleetRedis

/// The log of purges that a machine follows, as far as shared responses depend on it.
package protocol FleetLog: Sendable {
  /// The position of the machine; nil if responses of other machines must not be used: without a lease, and while
  /// removals of this machine are not in the log. Read this before a request is sent.
  var position: LogPosition? { get }

  /// Whether a purge after a number may cover a response; also if another epoch has begun since a position.
  ///
  /// - Parameters:
  ///   - number: The number at which the response was requested, in the epoch of the position.
  ///   - isEquivalent: Whether the response is also one for equivalent URLs (No-Vary-Search).
  ///   - groups: Returns the cache groups of the response. Called only if there are purges of groups.
  func mayCover(
    _ key: RequestKey, after number: UInt64, since position: LogPosition, isEquivalent: Bool, groups: () -> [String]
  ) -> Bool

  /// Whether there is a purge after a number; also if another epoch has begun since a position.
  func hasPurge(after number: UInt64, since position: LogPosition) -> Bool
}
