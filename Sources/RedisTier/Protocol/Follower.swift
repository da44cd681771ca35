import CachingClient
import Glibc
import ResponseStore
import Synchronization

/// The thread that follows the fleet's log of purges for its machine, and renews the machine's lease.
///
/// One process of each machine does so at a time; the others try once a second to take over.
final class Follower: Sendable {
  let settings: FleetSettings
  let file: FleetFile
  let node: FleetNode
  private let isStopped = Monitor(false)
  private let interrupter = Mutex<RedisConnection.Interrupter?>(nil)
  let counters: FleetCounters
  let poster: PurgePoster
  private let thread = Mutex<BackgroundThread?>(nil)
  private let processID = getpid()

  init(settings: FleetSettings, file: FleetFile, node: FleetNode, counters: FleetCounters) {
    self.settings = settings
    self.file = file
    self.node = node
    self.counters = counters
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

  // MARK: The loop

  private func run() {
    var backoff = Backoff()
    while !isStopping {
      guard file.becomeFollower() else {
        pause(.seconds(1))
        continue
      }
      while !isStopping {
        do throws(RedisTierError) {
          let session = try FollowerSession(self)
          interrupter.withLock { $0 = session.connection.interrupter }
          defer { interrupter.withLock { $0 = nil } }
          // `stop` may have found no connection to interrupt.
          while !isStopping {
            try session.followNext()
            backoff.reset()
            counters.noteSuccess()
          }
        } catch {
          guard !isStopping else { break }
          if counters.noteFailure(error.code) {
            node.log("LMDBURLCache: The fleet cannot be followed, which is tried again. \(error)")
          }
          // Another machine has begun an epoch with other settings, so its purges wait for other leases.
          if error.code == .otherFleetSettings { file.revokeLease() }
          // Purges must not wait again and again for a machine that cannot apply them.
          if error.code == .unusableDirectory { leave() }
          pause(backoff.next())
        }
      }
      leaveIfAlone()
      file.stopFollowing()
    }
  }

  /// Unregisters the machine, so that purges do not wait for it, if no process uses the fleet file.
  private func leaveIfAlone() {
    if isStopping, file.excludeOthers() { leave() }
  }

  /// Unregisters the machine until it renews its lease.
  private func leave() {
    // The lease first: an unregistered machine must not have one.
    if FleetRule.leaseEndsBeforeLeaving.holds { file.revokeLease() }
    // If Redis cannot be reached, purges wait once for a lease that has ended.
    try? FollowerSession(self).leave()
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
