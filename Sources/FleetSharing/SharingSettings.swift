/// The settings of shared responses. Those of the tier have the same names.
package protocol SharingSettings: Sendable {
  /// The maximum time for each command that stores or unlocks.
  var commandTimeout: Duration { get }
  /// The maximum time for a lookup in Redis.
  var lookupTimeout: Duration { get }
  /// The number of threads, each with a connection.
  var objectConnectionCount: Int { get }
  /// The maximum size of a shared body in bytes.
  var maximumSharedBodyByteCount: Int { get }
  /// The maximum time for which Redis keeps a shared response.
  var maximumSharedLifetime: Duration { get }
  /// How long a fetch lock lasts without renewal.
  var fetchLockLease: Duration { get }
  /// How long a request waits for the fetches of other machines.
  var maximumFetchWait: Duration { get }
  /// The partitions whose responses are shared.
  var sharedPartitions: Set<String> { get }
}
