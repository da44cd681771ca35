/// The counts of a fleet tier, of all processes of the machine that use or used a directory.
public struct FleetActivity: Sendable, Hashable {
  /// Lookups of shared responses in Redis.
  public var lookups: Int { counts[.sharedLookups, default: 0] }
  /// Requests that a response of another machine answered.
  public var sharedHits: Int { counts[.sharedHits, default: 0] }
  /// Requests that found nothing usable, and fetched for the fleet.
  public var sharedMisses: Int { counts[.sharedMisses, default: 0] }
  /// Requests that waited while another machine fetched.
  public var fetchWaits: Int { counts[.fetchWaits, default: 0] }
  /// Lookups that failed, had no reply in time, or were left out after such failures.
  public var failedLookups: Int { counts[.failedSharedLookups, default: 0] }
  /// Responses that were passed to Redis.
  public var sharedStores: Int { counts[.sharedStores, default: 0] }
  /// Shared responses that were corrupt, of another version or key, or covered by a purge.
  public var refusedObjects: Int { counts[.refusedObjects, default: 0] }
  /// Purges that were posted to the other machines.
  public var postedPurges: Int { counts[.postedPurges, default: 0] }
  /// Purges of the fleet's log that were applied.
  public var receivedPurges: Int { counts[.receivedPurges, default: 0] }
  /// Renewals of the machine's lease.
  public var leaseRenewals: Int { counts[.leaseRenewals, default: 0] }
  /// The time without a valid lease in milliseconds, including the present one.
  ///
  /// The time after a machine has left the fleet does not count.
  public var cutOffMilliseconds: Int { counts[.cutOffMilliseconds, default: 0] + (machine?.cutOffMilliseconds ?? 0) }
  /// Whether the machine has a valid lease. Without one it validates each stored response before it is used.
  ///
  /// Nil if the directory is in no fleet, or the lease cannot be read.
  public var isLeaseValid: Bool? { machine?.hasLease }
  /// Times that following the log failed; each time, the process connects again.
  public var reconnects: Int { counts[.reconnects, default: 0] }
  /// Times that everything stored was distrusted, because purges may have been unknown.
  public var lostLogs: Int { counts[.lostLogs, default: 0] }

  /// Whether a process of the directory has been in a fleet.
  public var isUsed: Bool { machine != nil || counts.values.contains { $0 != 0 } }

  /// The machine's state at the time of the counts; nil if the directory is in no fleet, or the state cannot be read.
  package let machine: FleetMachineState?
  private let counts: [CounterWord: Int]

  init(counts: [CounterWord: Int], machine: FleetMachineState?) {
    self.counts = counts.filter { $0.key.isOfFleet }
    self.machine = machine
  }
}
