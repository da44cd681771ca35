#if DEBUG || FLEET_MUTATIONS
  import Glibc
#endif

/// The rules of the fleet's protocol on which its promise rests.
///
/// A debug build, or one with the compilation condition `FLEET_MUTATIONS`, takes out the rule that the environment
/// variable of that name names. `Scripts/reliability fleet --mutations` does so to show that each rule is needed, and
/// that the series notices when one is missing. In release builds of the package all rules hold.
package enum FleetRule: String {
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
  /// A fetch is neither stored nor joined after a purge that covers it.
  case fetchRevoked
  /// A shared response is not used after a purge that covers it.
  case objectChecked
  /// A shared response is also checked against purges whose removals are not durable yet.
  case purgesAnnounced
  /// A shared response of another epoch is not used.
  case objectHasEpoch
  /// A shared response has the position of before its request was sent.
  case taggedBeforeRequest
  // The series does not check the rules below, because the faults that need them are rare there. Without them
  // `CoalescingTests`, `UnpostedRemovalTests` and `TakeoverTests` fail, and the model of the protocol finds a wrong
  // response without the first three.
  /// Without a lease, a request joins no fetch that began before it.
  case joinsLaterFetchOnly
  /// A machine keeps a removal that it has posted until all machines obey it.
  case removalKept
  /// In a young epoch that takes until no machine can have a lease of an earlier epoch.
  case removalKeptInYoungEpoch
  /// Another process of the machine follows when the one that did does not go on.
  case followerReplaced

  #if DEBUG || FLEET_MUTATIONS
    private static let takenOut = getenv("FLEET_MUTATIONS").flatMap { FleetRule(rawValue: String(cString: $0)) }
  #endif

  /// Whether the rule holds.
  package var holds: Bool {
    #if DEBUG || FLEET_MUTATIONS
      return Self.takenOut != self
    #else
      return true
    #endif
  }
}
