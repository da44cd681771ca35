import CacheModel
import CachingClient
import FleetRedis
import Glibc
import ResponseStore
import Synchronization

/// The thread that follows the fleet's log of purges for its machine, and renews the machine's lease.
///
/// One process of each machine does so at a time. The others try once a second to take over, which they can when it
/// ends or does not go on, for example because it is suspended.
final class Follower: Sendable {
  let settings: FleetSettings
  let file: FleetFile
  let node: FleetNode
  private let isStopped = Monitor(false)
  /// Interrupts the wait for purges; nil while the thread does not wait for them.
  private let interrupter = Mutex<RedisConnection.Interrupter?>(nil)
  let poster: PurgePoster
  private let thread = Mutex<BackgroundThread?>(nil)
  private let processID = getpid()
  private let report = Mutex(Report())
  /// The kind of the last failure; nil since a success.
  private let lastFailure = Mutex<RedisTierError.Code?>(nil)

  /// The state of the lines that the thread logs.
  private struct Report {
    /// Why the fleet could not be followed the last time.
    var cause: String?
    var hadLease = false
    var isCutOffLogged = false
    /// Whether a line about a failure was logged, so that one about its end follows.
    var isFailureLogged = false
    /// Whether a takeover was logged since the last renewal. Processes that wait for a name server replace each other.
    var isTakeoverLogged = false
  }

  init(settings: FleetSettings, file: FleetFile, node: FleetNode) {
    self.settings = settings
    self.file = file
    self.node = node
    poster = PurgePoster(settings)
  }

  /// Starts the thread. Returns false if the system has none left; then this process renews no lease.
  func start() -> Bool {
    guard let made = BackgroundThread(body: { [self] in run() }) else { return false }
    thread.withLock { $0 = made }
    return true
  }

  /// Stops the thread, and unregisters the machine if no other process uses the fleet file.
  ///
  /// A forked child has no thread, and leaves the lease to its parent.
  func stop() {
    guard getpid() == processID else { return }
    isStopped.update { $0 = true }
    interrupter.withLock { $0 }?.interrupt()
    let thread = thread.withLock { $0.take() }
    _ = thread?.join { hasEnded in hasEnded.wait { $0 ? true : nil } ?? false }
  }

  var isStopping: Bool { isStopped.withLock { $0 } }

  /// Waits, or returns early when the follower stops.
  private func pause(_ duration: Duration) {
    _ = isStopped.wait(timeout: duration) { $0 ? true : nil }
  }

  /// Waits before the next attempt, and notes meanwhile that this process still follows.
  private func pauseWhileFollowing(_ duration: Duration) {
    let end = BootClock.now + duration.nanoseconds
    while !isStopping, file.isFollower {
      file.noteFollowing()
      logCutOff()
      let now = BootClock.now
      guard now < end else { return }
      pause(.nanoseconds(min(end - now, 250_000_000)))
    }
  }

  /// Waits for purges on a connection, until the follower stops.
  ///
  /// Nothing else is interrupted: Redis could execute a renewal whose connection was interrupted after the machine has
  /// left, which would register it again.
  func waitForPurge(
    on connection: RedisConnection, _ wait: () throws(RedisTierError) -> Void
  ) throws(RedisTierError) {
    interrupter.withLock { $0 = connection.interrupter }
    defer { interrupter.withLock { $0 = nil } }
    // `stop` may have found no wait to interrupt.
    if !isStopping { try wait() }
  }

  // MARK: The loop

  private func run() {
    var backoff = Backoff()
    while !isStopping {
      let last = file.followerProcessID
      let wasCutOff = !file.isLeaseValid
      guard file.becomeFollower(afterSilence: settings.takeoverTime) else {
        pause(.seconds(1))
        continue
      }
      noteTakeover(from: last, wasCutOff: wasCutOff)
      while !isStopping, file.isFollower {
        do throws(RedisTierError) {
          let session = try FollowerSession(self)
          while !isStopping, file.isFollower {
            try session.followNext()
            backoff.reset()
            lastFailure.withLock { $0 = nil }
          }
        } catch {
          guard !isStopping, file.isFollower else { break }
          noteFailure(error)
          // Another machine has begun an epoch with other settings, so its purges wait for other leases.
          if error.code == .otherFleetSettings { file.revokeLease() }
          // Purges must not wait again and again for a machine that cannot apply them.
          if error.code == .unusableDirectory { leave() }
          pauseWhileFollowing(backoff.next())
        }
      }
      leaveIfAlone()
      file.stopFollowing()
    }
  }

  // MARK: Reports

  /// Logs that this process follows instead of one that is not known to have ended.
  private func noteTakeover(from process: UInt64, wasCutOff: Bool) {
    // A process that has ended released its lock.
    let hasTakenOver = file.hasTakenOver
    let isFirst = report.withLock { report -> Bool in
      let wasLogged = report.isTakeoverLogged
      report = Report(
        hadLease: file.isLeaseValid, isFailureLogged: hasTakenOver, isTakeoverLogged: hasTakenOver || wasLogged)
      return !wasLogged
    }
    guard hasTakenOver, isFirst else { return }
    node.log(
      "LMDBURLCache: The process \(process) does not respond, so another process of the machine follows the fleet"
        + (wasCutOff ? ". The machine was cut off, and validated each stored response before use" : ""))
  }

  private func noteFailure(_ error: RedisTierError) {
    let silence = file.timeSinceFollowing
    guard silence <= settings.takeoverTime else {
      // No command waits that long, so its error is a consequence.
      return noteCause("this process was suspended, or waited, for \(Self.seconds(silence)) s")
    }
    node.activity.add(1, .reconnects)
    let isNew = lastFailure.withLock { last in
      defer { last = error.code }
      return last != error.code
    }
    if isNew {
      report.withLock { $0.isFailureLogged = true }
      node.log("LMDBURLCache: The fleet cannot be followed, which is tried again. \(error)")
    }
    noteCause(error.reason)
  }

  private func noteCause(_ cause: String) {
    file.setFailure(cause)
    report.withLock { $0.cause = cause }
    logCutOff()
  }

  private static func seconds(_ nanoseconds: UInt64) -> Double { Double(nanoseconds / 100_000_000) / 10 }

  /// Logs once that the lease has ended, and why.
  private func logCutOff() {
    guard !file.isLeaseValid else { return }
    let cause = report.withLock { report -> String? in
      guard report.hadLease, !report.isCutOffLogged else { return nil }
      (report.isCutOffLogged, report.isFailureLogged) = (true, true)
      return report.cause
    }
    guard let cause else { return }
    node.log(
      "LMDBURLCache: This machine is cut off from its fleet, and validates each stored response before use, because "
        + cause)
  }

  /// Notes that the lease was extended.
  ///
  /// - Parameter time: The time in nanoseconds in which the machine had no lease before; nil if it had one.
  func noteRenewal(timeCutOff time: UInt64?) {
    file.setFailure(nil)
    let isReported = report.withLock { report -> Bool in
      defer { report = Report(hadLease: true) }
      return report.isFailureLogged || report.hadLease && time != nil
    }
    guard isReported else { return }
    let duration = time.map { " after \(Self.seconds($0)) s without a lease" } ?? ""
    node.log("LMDBURLCache: This machine follows its fleet again\(duration)")
  }

  // MARK: Leaving

  /// Unregisters the machine, so that purges do not wait for it, if no process uses the fleet file.
  private func leaveIfAlone() {
    if isStopping, file.isFollower, file.excludeOthers() { leave() }
  }

  /// Unregisters the machine until it renews its lease.
  private func leave() {
    // The lease first: an unregistered machine must not have one.
    file.revokeLease(isLeaving: true)
    // If Redis cannot be reached, purges wait once for a lease that has ended.
    do throws(RedisTierError) { try FollowerSession(self).leave() } catch {}
  }
}

/// Pauses between attempts: from 0.1 s to 5 s, with jitter.
struct Backoff {
  private var milliseconds = 100.0

  mutating func reset() { milliseconds = 100 }

  mutating func next() -> Duration {
    defer { milliseconds = min(milliseconds * 2, 5000) }
    return .milliseconds(milliseconds * Double.random(in: 0.5...1))
  }
}
