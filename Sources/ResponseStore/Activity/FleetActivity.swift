/// The counts of a fleet tier, of all processes of the machine that use or used a directory.
public struct FleetActivity: Sendable, Hashable {
  /// Lookups of shared responses in Redis.
  public var lookups = 0
  /// Requests that a response of another machine answered.
  public var sharedHits = 0
  /// Requests that found nothing usable, and fetched for the fleet.
  public var sharedMisses = 0
  /// Requests that waited while another machine fetched.
  public var fetchWaits = 0
  /// Lookups that failed, had no reply in time, or were left out after such failures.
  public var failedLookups = 0
  /// Responses that were passed to Redis.
  public var sharedStores = 0
  /// Shared responses that were corrupt, of another version or key, or covered by a purge.
  public var refusedObjects = 0
  /// Purges that were posted to the other machines.
  public var postedPurges = 0
  /// Purges of the fleet's log that were applied.
  public var receivedPurges = 0
  /// Renewals of the machine's lease.
  public var leaseRenewals = 0
  /// The time without a valid lease in milliseconds, up to the last renewal.
  public var cutOffMilliseconds = 0
  /// Times that following the log failed; each time, the process connects again.
  public var reconnects = 0
  /// Times that everything stored was distrusted, because purges may have been unknown.
  public var lostLogs = 0

  init() {}

  /// Whether a process of the directory has been in a fleet.
  public var isUsed: Bool { self != FleetActivity() }
}

extension FleetActivity {
  /// - Parameter count: Returns the value of a counter.
  init(_ count: (CounterWord) -> Int) {
    lookups = count(.sharedLookups)
    sharedHits = count(.sharedHits)
    sharedMisses = count(.sharedMisses)
    fetchWaits = count(.fetchWaits)
    failedLookups = count(.failedSharedLookups)
    sharedStores = count(.sharedStores)
    refusedObjects = count(.refusedObjects)
    postedPurges = count(.postedPurges)
    receivedPurges = count(.receivedPurges)
    leaseRenewals = count(.leaseRenewals)
    cutOffMilliseconds = count(.cutOffMilliseconds)
    reconnects = count(.reconnects)
    lostLogs = count(.lostLogs)
  }
}
