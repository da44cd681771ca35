import CacheModel
import FleetRedis
import HTTPCaching

/// The log of purges that a machine follows, as far as shared responses depend on it.
package protocol FleetLog: Sendable {
  /// The position of the machine; nil if responses of other machines must not be used: without a lease, and while
  /// removals of this machine are not in the log. Read this before a request is sent.
  var position: LogPosition? { get }

  /// Whether a purge after a number may cover a response; also if another epoch has begun since a position.
  ///
  /// - Parameters:
  ///   - number: The number at which the response was requested, in the epoch of the position.
  ///   - fields: The fields of the response. With No-Vary-Search it is also one for equivalent URLs.
  func mayCover(_ key: RequestKey, after number: UInt64, since position: LogPosition, fields: HeaderFields) -> Bool

  /// Whether there is a purge after a number; also if another epoch has begun since a position.
  func hasPurge(after number: UInt64, since position: LogPosition) -> Bool
}
