import CacheModel
import CachingClient
import FleetRedis
import Glibc

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
    file.noteFollowing()
    try postOverdue()
    let start = BootClock.now
    let tag = file.tag
    let position = file.position(ofTag: tag, ofStore: owner)
    let reply = try renew(position, at: start)
    if reply.isOfCopy { return takeNewID() }
    let new = try apply(reply, from: position, tag, ofStore: owner)
    guard new.cursor >= reply.seq else { return }
    file.unposted.settle(
      inEpoch: new.epochNumber, confirmedUpTo: reply.confirmed, renewedAt: start, wait: settings.wait)
    // From the sending of the renewal: every purge posted before it is in the reply.
    let timeCutOff = countRenewal()
    guard file.extendLease(to: start + settings.lease) else { throw Self.isReplaced }
    follower.noteRenewal(timeCutOff: timeCutOff)
    try sweep()
    // New purges are acknowledged by the next renewal.
    guard reply.state == .known, reply.purges.isEmpty else { return }
    try waitForPurge(after: new.cursor)
  }

  /// Counts a renewal, and the time since the lease ended. Call this before the lease is extended.
  ///
  /// - Returns: That time in nanoseconds; nil if the lease is valid, or there was none.
  private func countRenewal() -> UInt64? {
    follower.node.activity.add(1, .leaseRenewals)
    let (deadline, now) = (file.deadline, BootClock.now)
    // A deadline of zero is that of a machine that joins, or that revoked its lease.
    guard deadline > 0, now > deadline else { return nil }
    follower.node.activity.add(Int(clamping: (now - deadline) / 1_000_000), .cutOffMilliseconds)
    return now - deadline
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
    var purges: [Purge]
    /// The number of the last purge that all registered machines have confirmed; 0 if another machine may have a lease
    /// of an earlier epoch.
    var confirmed: UInt64
    /// Whether another machine has renewed with this one's ID: then one of them was copied while it ran.
    var isOfCopy: Bool
  }

  private func renew(_ position: LogPosition?, at start: UInt64) throws(RedisTierError) -> Renewal {
    let cursor = position?.cursor ?? 0
    let purge = position.flatMap { file.purgeID($0.cursor, inEpoch: $0.epochNumber) }
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
    ).asElements(atLeast: 9)
    try connection.checkPrimary(timeout: settings.configuration.commandTimeout)
    guard let state = State(rawValue: try reply[3].asText()) else {
      throw RedisTierError(.badReply, "a renewal was answered by an unknown state")
    }
    let count = try reply[6].asCount()
    let isMatureEpoch = try reply[7].asInteger() == 1
    let renewal = Renewal(
      epoch: try reply[0].asBytes(), seq: try reply[1].asCount(), floor: try reply[2].asCount(), state: state,
      clockDifference: try reply[4].asTime() - settings.configuration.wallClock(),
      purges: try Purge.list(reply[5], after: state == .known ? cursor : 0),
      confirmed: isMatureEpoch ? try reply[8].asCount() : 0,
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

  /// Applies a reply to the store and the position.
  ///
  /// - Parameter tag: That of the position.
  /// - Returns: The new position; one before the last purge of the reply if the reply could not be applied.
  private func apply(
    _ reply: Renewal, from position: LogPosition?, _ tag: UInt64, ofStore owner: UInt64
  ) throws(RedisTierError) -> LogPosition {
    switch reply.state {
    case .known:
      guard let position else { throw RedisTierError(.badReply, "Redis knows a position that this machine lacks") }
      return try apply(reply.purges, after: position, reply)
    case .other where file.isLeaseValid:
      // What was posted may be in the earlier epoch only.
      posted = []
      // All purges of earlier epochs that bind this machine are in its removal log; this epoch's follow.
      return try apply(reply.purges, after: begin(reply.epoch, cursor: 0, ofStore: owner, replacing: tag), reply)
    case .other, .lost:
      return try distrustAll(reply, from: position, tag, ofStore: owner)
    }
  }

  private func apply(
    _ purges: [Purge], after position: LogPosition, _ reply: Renewal
  ) throws(RedisTierError) -> LogPosition {
    guard !purges.isEmpty else { return position }
    let epoch = position.epochNumber
    var new = position
    new.cursor += UInt64(purges.count)
    let tolerance = settings.configuration.clockTolerance / .seconds(1)
    let removals = purges.map { $0.removalHere(isClockOff: abs(reply.clockDifference) > tolerance) }
    for (number, purge) in zip((position.cursor + 1)..., purges) {
      try file.keep(purge, number: number, inEpoch: epoch)
    }
    file.announce(upTo: new.cursor, inEpoch: epoch)
    guard follower.node.remove(removals) else {
      throw RedisTierError(.unusableDirectory, "purges of the fleet could not be made durable")
    }
    guard file.advance(to: new.cursor, inEpoch: epoch) else { throw Self.isReplaced }
    file.unposted.noteReceived(purges, after: position.cursor, inEpoch: epoch)
    posted.subtract(purges.map(\.id))
    follower.node.activity.add(purges.count, .receivedPurges)
    return new
  }

  /// The error of a process that was suspended, while another one began to follow.
  private static var isReplaced: RedisTierError {
    RedisTierError(.connectionLost, "another process of the machine follows the fleet")
  }

  // MARK: Removals of this machine

  /// Posts the removals of this machine that the processes that made them have not posted.
  private func postOverdue() throws(RedisTierError) {
    guard file.unposted.hasPending else { return }
    do throws(RedisTierError) {
      for purge in file.unposted.overdue() where !posted.contains(purge.id) {
        _ = try follower.poster.post(purge, run: run, on: connection)
        posted.insert(purge.id)
        follower.node.activity.add(1, .postedPurges)
      }
    } catch {
      // A server that refuses purges, for example because its memory is full, may still renew the lease.
      if connection.isDead { throw error }
    }
  }

  /// Goes on from the reply, although purges up to there may be unknown: everything stored is suspect, or removed.
  private func distrustAll(
    _ reply: Renewal, from position: LogPosition?, _ tag: UInt64, ofStore owner: UInt64
  ) throws(RedisTierError) -> LogPosition {
    posted = []
    // The lease is over, except if the log was trimmed past the cursor of a machine that has one.
    var last: Purge?
    if reply.seq > reply.floor {
      let id = Array("\(reply.seq)-0".utf8)
      let log = settings.fleet.key("log")
      last = try Purge.list(connection.command([Array("XRANGE".utf8), log, id, id]), after: reply.seq - 1).first
      // The log has been trimmed or replaced meanwhile.
      guard last != nil else { return LogPosition(epoch: [], epochNumber: 0, cursor: 0) }
    }
    // From here on no request uses a response of another machine, until the removal counts in the store.
    if file.isLeaseValid { file.revokeLease() }
    let validates = settings.configuration.onLostLog == .validate
    let distrust = Removal(.everything, validates ? .suspect : .removed)
    guard follower.node.remove([distrust]) else {
      throw RedisTierError(.unusableDirectory, "a removal could not be made durable")
    }
    let new = try begin(reply.epoch, cursor: reply.seq, ofStore: owner, replacing: tag)
    if let last { try file.keep(last, number: reply.seq, inEpoch: new.epochNumber) }
    // A directory that joins has lost nothing.
    guard position != nil else { return new }
    follower.node.activity.add(1, .lostLogs)
    follower.node.log(
      "LMDBURLCache: Purges of the fleet may be unknown to this machine, so everything stored "
        + (validates ? "is validated before it is used" : "was removed"))
    return new
  }

  private func begin(
    _ epoch: [UInt8], cursor: UInt64, ofStore owner: UInt64, replacing tag: UInt64
  ) throws(RedisTierError) -> LogPosition {
    guard let number = file.begin(epoch: epoch, cursor: cursor, ofStore: owner, replacing: tag) else {
      guard file.tag == tag else { throw Self.isReplaced }
      throw RedisTierError(.badReply, "the fleet's epoch is malformed")
    }
    return LogPosition(epoch: epoch, epochNumber: number, cursor: cursor)
  }

  // MARK: Waiting

  /// Waits until there is a purge, or the lease is to be renewed.
  private func waitForPurge(after cursor: UInt64) throws(RedisTierError) {
    let milliseconds = max(1, settings.lease / 4 / 1_000_000)
    // The next renewal returns the purges, with the epoch that they are of.
    try follower.waitForPurge(on: connection) { () throws(RedisTierError) in
      try connection.command(
        [
          Array("XREAD".utf8), Array("BLOCK".utf8), Array(String(milliseconds).utf8), Array("STREAMS".utf8),
          settings.fleet.key("log"), Array("\(cursor)-0".utf8),
        ], timeout: .milliseconds(milliseconds) + .seconds(1))
    }
  }

  /// Once a minute, unregisters nodes that have not renewed since. Earlier if removals wait for machines to confirm.
  private func sweep() throws(RedisTierError) {
    let now = BootClock.now
    let minimum = settings.wait + 1_000_000_000
    let interval = file.unposted.hasReceived ? minimum : max(60_000_000_000, minimum)
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
