import CacheModel
import CachingClient
import FleetRedis
import FoundationEssentials
import Glibc
import Synchronization

/// Posts purges to the fleet's log, and waits until each machine obeys them. Called on threads that may block.
final class PurgePoster: Sendable {
  private let settings: FleetSettings
  /// An idle connection, with the server's `run_id`.
  private let idle = Mutex<Link?>(nil)

  private struct Link: Sendable {
    let connection: RedisConnection
    let run: [UInt8]
  }

  /// A purge in the log.
  struct Posted {
    let id: RandomID
    let epoch: [UInt8]
    let seq: UInt64
    /// When the reply arrived.
    let time: UInt64
    /// Whether the epoch has lasted so long that no lease of an earlier one is valid.
    var isMature: Bool
    /// The registered nodes and their counts of renewals.
    let nodes: [(name: [UInt8], value: [UInt8])]
  }

  init(_ settings: FleetSettings) {
    self.settings = settings
  }

  /// Posts a purge and waits until all machines obey it.
  ///
  /// - Parameters:
  ///   - timeout: The maximum time to wait; nil for *W* and 5 seconds. Resolving the server's name, and the closure
  ///     that returns the password, can take longer.
  ///   - onWait: Called several times a second while it waits.
  func purge(
    _ purge: Purge, timeout: Duration?, onWait: (PurgeWait) -> Void = { _ in }
  ) throws(RedisTierError) -> FleetPurgeResult {
    let limit = timeout?.nanoseconds ?? settings.wait + 5_000_000_000
    let deadline = BootClock.now + limit
    var link: Link?
    var posted = try post(purge, over: &link, until: min(deadline, BootClock.now + 2_000_000_000))
    // Without registered nodes an epoch that is mature needs no wait.
    var waitsFirst = !posted.nodes.isEmpty
    var unconfirmedCount = 0
    var failure: RedisTierError?
    while true {
      do throws(RedisTierError) {
        let current = try open(&link, until: deadline)
        if waitsFirst { try wait(for: posted, on: current.connection, until: deadline) }
        waitsFirst = true
        let hasWaited = BootClock.now >= posted.time + settings.wait
        let (isLost, isMature, pending) = try finish(posted, hasWaited: hasWaited, over: current, until: deadline)
        if isLost {
          posted = try post(purge, over: &link, until: deadline)
          continue
        }
        // After W the machines that have not renewed are no longer registered.
        unconfirmedCount = hasWaited ? max(pending.count, unconfirmedCount) : pending.count
        if pending.isEmpty && isMature || hasWaited {
          try current.connection.checkPrimary(timeout: self.timeout(until: deadline))
          idle.withLock { $0 = current }
          return FleetPurgeResult(
            confirmedCount: max(0, posted.nodes.count - unconfirmedCount), expiredLeaseCount: unconfirmedCount)
        }
        let end = posted.time + settings.wait
        onWait(
          PurgeWait(
            machines: pending.map { String(decoding: $0, as: UTF8.self) }, machineCount: posted.nodes.count,
            waitsForEarlierLeases: !isMature, maximumSeconds: Double(end - min(end, BootClock.now)) / 1e9))
      } catch {
        guard !Self.isLasting(error) else { throw error }
        link = nil
        // A reply that the deadline cuts off is no failure of Redis.
        let isCut = error.code == .timedOut && BootClock.now >= deadline
        if !isCut, failure == nil || failure?.code == .timedOut { failure = error }
        pause(.milliseconds(20), until: deadline)
      }
      guard BootClock.now < deadline else {
        throw RedisTierError(
          .unconfirmed,
          "not all machines have confirmed the purge in time" + (failure.map { ", also because \($0.reason)" } ?? ""))
      }
    }
  }

  /// Whether the same error is expected until a setting is changed.
  private static func isLasting(_ error: RedisTierError) -> Bool {
    [.otherFleetSettings, .accessDenied, .cluster, .missingFeature].contains(error.code)
  }

  // MARK: Steps

  /// Returns the link, and connects first if there is none.
  private func open(_ link: inout Link?, until deadline: UInt64) throws(RedisTierError) -> Link {
    if let link { return link }
    let connection = try settings.fleet.connect(timeout: timeout(until: deadline))
    let made = Link(connection: connection, run: try connection.serverRun(timeout: timeout(until: deadline)))
    link = made
    return made
  }

  private func timeLeft(until deadline: UInt64) -> Duration {
    let now = BootClock.now
    return .nanoseconds(deadline > now ? deadline - now : 0)
  }

  /// The maximum time for a command.
  private func timeout(until deadline: UInt64) -> Duration {
    min(settings.configuration.commandTimeout, timeLeft(until: deadline))
  }

  private func pause(_ duration: Duration, until deadline: UInt64) {
    usleep(UInt32(min(duration, timeLeft(until: deadline)) / .microseconds(1)))
  }

  /// Posts until a reply arrives: purges are idempotent.
  private func post(
    _ purge: Purge, over link: inout Link?, until deadline: UInt64
  ) throws(RedisTierError) -> Posted {
    // The idle connection may have been closed by the server.
    link = link ?? idle.withLock { $0.take() }
    var cause: RedisTierError?
    while true {
      do throws(RedisTierError) {
        let current = try open(&link, until: deadline)
        return try post(purge, run: current.run, on: current.connection, timeout: timeout(until: deadline))
      } catch {
        let wasIdle = link != nil && error.code == .connectionLost
        link = nil
        if Self.isLasting(error) || error.code == .badReply { throw error }
        // Later attempts can fail for lack of time alone.
        if !wasIdle, cause == nil || cause?.code == .timedOut { cause = error }
        guard BootClock.now < deadline else {
          throw RedisTierError(.notPosted, "a purge could not be posted, because \((cause ?? error).reason)")
        }
        if !wasIdle { pause(.milliseconds(50), until: deadline) }
      }
    }
  }

  /// Posts a purge once.
  ///
  /// - Parameter run: The `run_id` of the connection's server.
  func post(
    _ purge: Purge, run: [UInt8], on connection: RedisConnection, timeout: Duration? = nil
  ) throws(RedisTierError) -> Posted {
    var removal = purge.removal
    removal.scope = try fleetScope(removal.scope, on: connection, timeout: timeout)
    let reply = try FleetScripts.post.run(
      keys: settings.controlKeys,
      settings.controlArguments(run: run) + [
        Array(purge.id.text.utf8), removal.encoded, Array(String(settings.configuration.maximumLogCount).utf8),
      ], on: connection, timeout: timeout
    ).asElements(atLeast: 4)
    return Posted(
      id: purge.id, epoch: try reply[0].asBytes(), seq: try reply[1].asCount(), time: BootClock.now,
      isMature: try reply[2].asInteger() == 1, nodes: try reply[3].asPairs())
  }

  /// A scope by the clock of Redis, from which no machine's clock differs by more than the tolerance, unless it says
  /// so.
  private func fleetScope(
    _ scope: RemovalScope, on connection: RedisConnection, timeout: Duration?
  ) throws(RedisTierError) -> RemovalScope {
    guard case .since(let date) = scope else { return scope }
    let seconds = try connection.command(["TIME"], timeout: timeout).asTime()
    // After the reply, so that the difference errs on the side of an earlier date.
    let difference = seconds - settings.configuration.wallClock()
    let tolerance = settings.configuration.clockTolerance / .seconds(1)
    // A date by a clock that is far off can be any time.
    return abs(difference) > tolerance ? .everything : .since(date + difference - tolerance)
  }

  /// Waits until the machines have acknowledged the purge, for at most 250 ms, and not beyond *W*.
  private func wait(
    for posted: Posted, on connection: RedisConnection, until deadline: UInt64
  ) throws(RedisTierError) {
    let now = BootClock.now
    let end = min(posted.time + settings.wait, deadline)
    guard now < end else { return }
    let milliseconds = min(250, (end - now) / 1_000_000 + 1)
    let fraction = String(1000 + milliseconds).dropFirst()
    try connection.command(
      [Array("BLPOP".utf8), settings.fleet.key("done:" + posted.id.text), Array("0.\(fraction)".utf8)],
      timeout: min(.milliseconds(milliseconds) + .seconds(1), timeLeft(until: deadline)))
  }

  private func finish(
    _ posted: Posted, hasWaited: Bool, over link: Link, until deadline: UInt64
  ) throws(RedisTierError) -> (isLost: Bool, isMature: Bool, pending: [[UInt8]]) {
    let reply = try FleetScripts.finish.run(
      keys: settings.controlKeys,
      settings.controlArguments(run: link.run) + [
        Array(posted.id.text.utf8), posted.epoch, Array(String(posted.seq).utf8),
        [UInt8(ascii: hasWaited ? "1" : "0")],
      ] + posted.nodes.flatMap { [$0.name, $0.value] }, on: link.connection, timeout: timeout(until: deadline)
    ).asElements(atLeast: 3)
    let pending = try reply[2].asElements().map { element throws(RedisTierError) in try element.asBytes() }
    return (try reply[0].asText() == "lost", try reply[1].asInteger() == 1, pending)
  }
}

/// The machines and leases for which a posted purge waits.
package struct PurgeWait: Sendable, Equatable {
  /// The IDs of the machines that have neither confirmed the purge nor lost their registration.
  package let machines: [String]
  /// The number of machines that were registered when the purge was posted.
  package let machineCount: Int
  /// Whether leases of before Redis lost its data may be valid.
  package let waitsForEarlierLeases: Bool
  /// The time until all leases of machines that do not confirm have ended, in seconds.
  package let maximumSeconds: Double
}
