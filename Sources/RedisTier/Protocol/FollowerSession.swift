import CachingClient
import Glibc
import ResponseStore

/// One connection of the follower, from connecting to the first error. Only the follower's thread uses it.
final class FollowerSession {
  let connection: RedisConnection
  private let follower: Follower
  private var settings: FleetSettings { follower.settings }
  private var file: FleetFile { follower.file }
  private let run: [UInt8]
  /// The count of renewals in the last reply; nil if a renewal may have been lost.
  private var lastCount: UInt64?
  /// The epoch of the last reply, and when the first one with it had arrived.
  private var knownEpoch: (id: [UInt8], since: UInt64)?
  /// The purge of everything that this session has posted for removals that had no slot in the fleet file.
  private var postedOverflow: (id: RandomID, count: UInt64)?
  /// The removals of this machine that this session has posted and not received yet.
  private var posted: Set<RandomID> = []
  /// The nodes and their counts of renewals, as they were at a time.
  private var registry: (pairs: [(name: [UInt8], value: [UInt8])], time: UInt64)?

  private static let maximumEntryCount = 256

  /// The name of this machine, for operators.
  private static let hostName: [UInt8] = {
    var bytes = [CChar](repeating: 0, count: 65)
    // Without a name, the machine's ID must do.
    _ = gethostname(&bytes, 64)
    return bytes.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
  }()

  init(_ follower: Follower) throws(RedisTierError) {
    self.follower = follower
    connection = try follower.settings.fleet.connect()
    run = try connection.serverRun()
  }

  /// Renews the lease, applies new purges, and waits for the next ones.
  func followNext() throws(RedisTierError) {
    guard let owner = follower.node.storeID() else {
      throw RedisTierError(.unusableDirectory, "the store is offline")
    }
    try postOverdue()
    let start = BootClock.now
    let position = file.position(ofStore: owner)
    let reply = try renew(position, at: start)
    if reply.isOfCopy { return takeNewID() }
    let cursor = try apply(reply, from: position, ofStore: owner)
    guard cursor >= reply.seq else { return }
    // From the sending of the renewal: every purge posted before it is in the reply.
    countRenewal()
    file.extendLease(to: (FleetRule.leaseFromSending.holds ? start : BootClock.now) + settings.lease)
    try sweep()
    // New purges are acknowledged by the next renewal.
    guard reply.state == .known, reply.entries.isEmpty else { return }
    try waitForPurge(after: cursor)
  }

  /// Counts a renewal, and the time since the lease ended. Call this before the lease is extended.
  private func countRenewal() {
    follower.counters.count(.leaseRenewals)
    let (deadline, now) = (file.deadline, BootClock.now)
    // A deadline of zero is that of a machine that joins, or that revoked its lease.
    guard deadline > 0, now > deadline else { return }
    follower.counters.count(.cutOffMilliseconds, Int(clamping: (now - deadline) / 1_000_000))
  }

  // MARK: Renewing

  private enum State: String {
    /// The position is in this epoch's log.
    case known
    /// The position is of another epoch, whose log is complete.
    case other
    /// Purges after the position may be missing.
    case lost
  }

  private struct Renewal {
    var epoch: [UInt8]
    var seq: UInt64
    var floor: UInt64
    var state: State
    /// The difference of Redis's wall clock from this machine's, in seconds.
    var clockDifference: Double
    var entries: [LogEntry]
    /// Whether another machine has renewed with this one's ID: then one of them was copied while it ran.
    var isOfCopy: Bool
  }

  private func renew(_ position: FleetFile.Position?, at start: UInt64) throws(RedisTierError) -> Renewal {
    let cursor = position?.cursor ?? 0
    let purge = cursor > 0 ? file.purgeID(cursor) : nil
    let isMature = knownEpoch.map { $0.id == position?.epoch && start > $0.since + settings.wait } ?? false
    let arguments: [[UInt8]] = [
      Array(file.node.text.utf8), position?.epoch ?? [], Array(String(cursor).utf8),
      purge.map { Array($0.text.utf8) } ?? [], Array(String(Self.maximumEntryCount).utf8),
      [UInt8(ascii: isMature ? "1" : "0")], Self.hostName,
    ]
    // If the reply is lost, so is the order of the counts.
    let last = lastCount
    lastCount = nil
    let reply = try FleetScripts.renew.run(
      keys: settings.controlKeys, settings.controlArguments(run: run) + arguments, on: connection
    ).asElements(atLeast: 7)
    guard let state = State(rawValue: try reply[3].asText()) else {
      throw RedisTierError(.badReply, "a renewal was answered by an unknown state")
    }
    let count = try reply[6].asCount()
    let renewal = Renewal(
      epoch: try reply[0].asBytes(), seq: try reply[1].asCount(), floor: try reply[2].asCount(), state: state,
      clockDifference: try reply[4].asTime() - settings.configuration.wallClock(), entries: try LogEntry.list(reply[5]),
      // A count of 1 is a new registration: of a new epoch, or after a time without renewals.
      isOfCopy: last.map { count != $0 + 1 && count != 1 } ?? false)
    lastCount = count
    // Use the time of the reply. The epoch may have begun after the request was sent, and until then machines could
    // renew leases of the earlier epoch.
    if knownEpoch?.id != renewal.epoch { knownEpoch = (renewal.epoch, BootClock.now) }
    return renewal
  }

  private func takeNewID() {
    file.revokeLease()
    file.makeNodeID()
    lastCount = nil
    follower.node.log("LMDBURLCache: Another machine uses this machine's ID in the fleet, so it takes a new one")
  }

  // MARK: Applying

  /// Applies a reply to the store and the position. Returns the new cursor.
  private func apply(
    _ reply: Renewal, from position: FleetFile.Position?, ofStore owner: UInt64
  ) throws(RedisTierError) -> UInt64 {
    switch reply.state {
    case .known:
      guard let position else { throw RedisTierError(.badReply, "Redis knows a position that this machine lacks") }
      return try apply(reply.entries, after: position.cursor, reply)
    case .other where file.isLeaseValid:
      // What was posted may be in the earlier epoch only.
      (posted, postedOverflow) = ([], nil)
      // All purges of earlier epochs that bind this machine are in its removal log; this epoch's follow.
      try begin(reply.epoch, cursor: 0, ofStore: owner)
      return try apply(reply.entries, after: 0, reply)
    case .lost where file.isLeaseValid && !FleetRule.epochAppliedFromStart.holds:
      try begin(reply.epoch, cursor: reply.seq, ofStore: owner)
      return reply.seq
    case .other, .lost:
      return try distrustAll(reply, from: position, ofStore: owner)
    }
  }

  private func apply(_ entries: [LogEntry], after cursor: UInt64, _ reply: Renewal) throws(RedisTierError) -> UInt64 {
    guard !entries.isEmpty else { return cursor }
    var expected = cursor
    for entry in entries {
      expected += 1
      if !FleetRule.trimmedLogNoticed.holds { expected = entry.number }
      guard entry.number == expected else { throw RedisTierError(.badReply, "the log of purges has a gap") }
    }
    let tolerance = settings.configuration.clockTolerance / .seconds(1)
    let removals = entries.map { $0.removal(isClockOff: abs(reply.clockDifference) > tolerance) }
    #if DEBUG || FLEET_MUTATIONS
      try advanceEarly(entries, to: expected)
    #endif
    for entry in entries { try file.keep(entry) }
    if FleetRule.purgesAnnounced.holds { file.announce(upTo: expected) }
    guard follower.node.remove(removals) else {
      throw RedisTierError(.unusableDirectory, "purges of the fleet could not be made durable")
    }
    #if DEBUG || FLEET_MUTATIONS
      // Between its removal and its position a purge is announced only. That is short.
      if !FleetRule.purgesAnnounced.holds { usleep(50_000) }
    #endif
    file.advance(to: expected)
    noteReceived(entries)
    follower.counters.count(.receivedPurges, entries.count)
    return expected
  }

  // MARK: Removals of this machine

  /// Posts the removals of this machine that the processes that made them have not posted.
  private func postOverdue() throws(RedisTierError) {
    guard !file.unposted.isEmpty else { return }
    do throws(RedisTierError) {
      for removal in file.unposted.overdue() where !posted.contains(RandomID(bytes: removal.id)) {
        try post(removal.removal, id: RandomID(bytes: removal.id))
      }
      guard postedOverflow == nil, let count = file.unposted.overflowCount else { return }
      let id = RandomID()
      try post(FleetRemoval(.everything), id: id)
      postedOverflow = (id, count)
    } catch {
      // A server that refuses purges, for example because its memory is full, may still renew the lease.
      if connection.isDead { throw error }
    }
  }

  private func post(_ removal: FleetRemoval, id: RandomID) throws(RedisTierError) {
    _ = try follower.poster.post(removal, id: id, run: run, on: connection)
    posted.insert(id)
    follower.counters.count(.postedPurges)
  }

  /// Permits the use of shared responses again, if these purges are the removals of this machine that prevented it.
  private func noteReceived(_ entries: [LogEntry]) {
    let ids = Set(entries.map(\.id))
    let overflow = postedOverflow.flatMap { ids.contains($0.id) ? $0.count : nil }
    file.unposted.forget(ids, overflow: overflow)
    if overflow != nil { postedOverflow = nil }
    posted.subtract(ids)
  }

  #if DEBUG || FLEET_MUTATIONS
    /// Moves the position, and acknowledges the purges, before they are applied, if the rule that forbids it is taken out.
    private func advanceEarly(_ entries: [LogEntry], to cursor: UInt64) throws(RedisTierError) {
      guard !FleetRule.removedBeforePosition.holds || !FleetRule.removedBeforeAcknowledged.holds else { return }
      for entry in entries { try file.keep(entry) }
      file.advance(to: cursor)
      if !FleetRule.removedBeforeAcknowledged.holds, let owner = follower.node.storeID() {
        _ = try renew(file.position(ofStore: owner), at: BootClock.now)
      }
      usleep(50_000)
    }
  #endif

  /// Goes on from the reply, although purges up to there may be unknown: everything stored is suspect, or removed.
  private func distrustAll(
    _ reply: Renewal, from position: FleetFile.Position?, ofStore owner: UInt64
  ) throws(RedisTierError) -> UInt64 {
    (posted, postedOverflow) = ([], nil)
    // The lease is over, except if the log was trimmed past the cursor of a machine that has one.
    var last: LogEntry?
    if reply.seq > reply.floor {
      let id = Array("\(reply.seq)-0".utf8)
      let log = settings.key("log")
      last = try LogEntry.list(connection.command([Array("XRANGE".utf8), log, id, id])).first
      // The log has been trimmed or replaced meanwhile.
      guard last?.number == reply.seq else { return 0 }
    }
    // From here on no request uses a response of another machine, until the removal counts in the store.
    if file.isLeaseValid { file.revokeLease() }
    let validates = settings.configuration.onLostLog == .validate
    let distrust = FleetRemoval(.everything, effect: validates ? .suspect : .remove)
    guard !FleetRule.missedPurgesCoverAll.holds || follower.node.remove([distrust]) else {
      throw RedisTierError(.unusableDirectory, "a removal could not be made durable")
    }
    try begin(reply.epoch, cursor: reply.seq, ofStore: owner)
    if let last { try file.keep(last) }
    // A directory that joins has lost nothing.
    guard position != nil else { return reply.seq }
    follower.counters.count(.lostLogs)
    follower.node.log(
      "LMDBURLCache: Purges of the fleet may be unknown to this machine, so everything stored "
        + (validates ? "is validated before it is used" : "was removed"))
    return reply.seq
  }

  private func begin(_ epoch: [UInt8], cursor: UInt64, ofStore owner: UInt64) throws(RedisTierError) {
    guard file.begin(epoch: epoch, cursor: cursor, ofStore: owner) else {
      throw RedisTierError(.badReply, "the fleet's epoch is malformed")
    }
  }

  // MARK: Waiting

  /// Waits until there is a purge, or the lease is to be renewed.
  private func waitForPurge(after cursor: UInt64) throws(RedisTierError) {
    let milliseconds = max(1, settings.lease / 4 / 1_000_000)
    // The next renewal returns the purges, with the epoch that they are of.
    try connection.command(
      [
        Array("XREAD".utf8), Array("BLOCK".utf8), Array(String(milliseconds).utf8), Array("STREAMS".utf8),
        settings.key("log"), Array("\(cursor)-0".utf8),
      ], timeout: .milliseconds(milliseconds) + .seconds(1))
  }

  /// Once a minute, unregisters nodes that have not renewed since.
  private func sweep() throws(RedisTierError) {
    let now = BootClock.now
    let interval = max(60_000_000_000, settings.wait + 1_000_000_000)
    if let registry, now < registry.time + interval { return }
    let known = registry?.pairs ?? []
    let reply = try FleetScripts.sweep.run(
      keys: settings.controlKeys,
      settings.controlArguments(run: run) + known.flatMap { [$0.name, $0.value] }, on: connection)
    registry = (try reply.asPairs(), now)
  }

  func leave() throws(RedisTierError) {
    _ = try FleetScripts.leave.run(
      keys: settings.controlKeys, settings.controlArguments(run: run) + [Array(file.node.text.utf8)], on: connection)
  }
}

extension RedisConnection {
  /// The ID of the server's process, from `INFO`.
  ///
  /// - Throws: `RedisTierError` if the server is a replica or still loads its data.
  func serverRun(timeout: Duration? = nil) throws(RedisTierError) -> [UInt8] {
    let text = try command(["INFO"], timeout: timeout).asText()
    var run: [UInt8]?
    for line in text.split(whereSeparator: \.isNewline) {
      switch line {
      case "role:slave", "loading:1":
        throw RedisTierError(.wrongRole, "the Redis server is a replica, or still loads its data")
      default:
        if line.hasPrefix("run_id:") { run = Array(line.dropFirst(7).utf8) }
      }
    }
    guard let run, !run.isEmpty else { throw RedisTierError(.badReply, "the server does not tell its run_id") }
    return run
  }
}
