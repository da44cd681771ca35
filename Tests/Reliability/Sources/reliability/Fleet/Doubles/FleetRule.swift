/// The rules of the fleet's protocol on which its promise rests, and that the series breaks.
///
/// For each rule there is a double that breaks it, in the place of a part of the fleet or around one: ``RedisDouble``
/// between a machine and Redis, ``TierDouble`` around a machine's tier, or a subclass of its cache. The series uses one
/// double on all machines at a time, and must then find a purged response. This shows that the rule is needed, and that
/// the series notices when it is missing.
///
/// The series breaks no rule by which removals are kept, joined or taken over, because the faults that need them are
/// rare there. `UnpostedRemovalTests`, `CoalescingTests`, `TakeoverTests` and the model of the protocol have them. Nor
/// does it break the rule that a majority of the Sentinels is asked, because no double sees into TLS; `SentinelTests`
/// has it.
enum FleetRule: String, CaseIterable, Sendable {
  /// A lookup checks the lease.
  case leaseChecked
  /// A lookup checks the lease before it reads the record.
  case leaseBeforeLookup
  /// A lease counts from the sending of its renewal.
  case leaseFromSending
  /// A purge is acknowledged after its removal is durable.
  case removedBeforeAcknowledged
  /// The position moves after the removals up to it are durable.
  case removedBeforePosition
  /// A machine that leaves ends its lease first.
  case leaseEndsBeforeLeaving
  /// A purge waits for longer than a lease: clocks run at different rates.
  case waitHasMargin
  /// A purge waits from the reply to its post, not from its sending.
  case waitFromReply
  /// After the wait only machines that have not renewed are unregistered.
  case renewedMachineStays
  /// A purge looks whether its post is still in the log before it returns.
  case postChecked
  /// A purge in a young epoch waits for leases of earlier epochs.
  case youngEpochWaits
  /// Another server process begins another epoch.
  case epochEndsWithServer
  /// A machine notices that the log was trimmed past its position.
  case trimmedLogNoticed
  /// A machine that may have missed purges serves nothing of before.
  case missedPurgesCoverAll
  /// A machine with a valid lease applies the purges of a new epoch from its first one on.
  case epochAppliedFromStart
  /// A fetch is not stored after a purge that covers it.
  case fetchRevoked
  /// A shared response is not used after a purge that covers it.
  case objectChecked
  /// A shared response is also checked against purges whose removals are not durable yet.
  case purgesAnnounced
  /// A shared response of another epoch is not used.
  case objectHasEpoch
  /// A shared response has the position of before its request was sent.
  case taggedBeforeRequest
  /// The primary server is the one that a majority of the Sentinels names.
  case primaryByMajority

  /// The scenario that is likely to show that the rule is broken.
  var scenarioName: String {
    switch self {
    case .removedBeforeAcknowledged, .removedBeforePosition, .leaseEndsBeforeLeaving, .purgesAnnounced: "machines"
    case .postChecked, .youngEpochWaits, .objectHasEpoch: "redis"
    case .epochEndsWithServer: "old data"
    case .trimmedLogNoticed, .missedPurgesCoverAll, .epochAppliedFromStart: "trimmed log"
    case .leaseFromSending: "late replies"
    case .waitFromReply: "late posts"
    case .leaseChecked, .leaseBeforeLookup, .waitHasMargin, .renewedMachineStays, .fetchRevoked, .objectChecked,
      .taggedBeforeRequest:
      "network"
    case .primaryByMajority: "failover"
    }
  }
}
