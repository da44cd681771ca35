import CacheActivity
import CacheModel
import CachingClient
import Dispatch
import FleetRedis
import FleetSharing
import FoundationEssentials
import Glibc
import ResponseStore
import Synchronization

/// A cache's membership in a fleet.
final class Membership: FleetMembership {
  let file: FleetFile
  let lease: MachineLease
  var sharedResponses: (any TransportLayer)? { sharing }
  private let node: FleetNode
  private let poster: PurgePoster
  private let sharing: SharedResponses?
  private let follower: Follower
  private let posting = Monitor(Posting())

  /// The removals that this process is about to post in the background.
  private struct Posting {
    var purges: [Purge] = []
    var isRunning = false
    /// Whether the last one could not be posted.
    var isFailing = false
    /// How many were added, and how many of them are posted or left to the follower.
    var addedCount = 0
    var doneCount: Int { addedCount - purges.count }
  }

  init(_ settings: FleetSettings, file: FleetFile, node: FleetNode) {
    self.file = file
    self.node = node
    lease = file.lease
    poster = PurgePoster(settings)
    let configuration = settings.configuration
    sharing =
      configuration.sharesResponses
      ? SharedResponses(
        settings.fleet, digest: settings.digest, settings: configuration, log: FollowedLog(file),
        activity: node.activity) : nil
    follower = Follower(settings: settings, file: file, node: node)
    if file.isCopy {
      node.log(
        "LMDBURLCache: This directory is a copy of another machine's, so it joins the fleet as a machine of its own, and "
          + "everything stored is validated before it is used")
    }
    if !follower.start() { node.log("LMDBURLCache: The fleet cannot be followed: the process has no thread left") }
  }

  deinit { leave() }

  func leave() {
    sharing?.close()
    follower.stop()
  }

  // MARK: Purges

  func purge(_ removal: Removal, timeout: Duration?, _ removeHere: () -> Void) throws -> FleetPurgeResult {
    let purge = file.unposted.announce(removal)
    removeHere()
    do throws(RedisTierError) {
      let result = try poster.purge(purge, timeout: timeout)
      node.activity.add(1, .postedPurges)
      return result
    } catch {
      if error.code == .unconfirmed {
        node.activity.add(1, .postedPurges)
        file.unposted.makeDurable([purge])
      } else {
        file.unposted.handOver([purge])
      }
      throw error
    }
  }

  func post(_ removals: [Removal], _ removeHere: () -> Void) {
    let purges = removals.map { file.unposted.announce($0) }
    removeHere()
    guard !purges.isEmpty else { return }
    let (target, starts, isFailing) = posting.withLock { state in
      state.purges += purges
      state.addedCount += purges.count
      defer { state.isRunning = true }
      return (state.addedCount, !state.isRunning, state.isFailing)
    }
    if starts { DispatchQueue(label: "LMDBURLCache.fleet").async { [self] in postAll() } }
    guard !isFailing else { return file.unposted.handOver(purges) }
    let isDone = posting.wait(timeout: .milliseconds(100)) { $0.doneCount >= target ? true : nil } ?? false
    if !isDone { file.unposted.makeDurable(purges) }
  }

  /// Posts removals one after another. Leaves them to the follower when Redis cannot be reached.
  private func postAll() {
    while let purge = nextToPost() {
      do throws(RedisTierError) {
        _ = try poster.purge(purge, timeout: .milliseconds(100))
        noteDone()
      } catch {
        if error.code == .unconfirmed {
          // A machine lags, so the removal may be kept for longer.
          file.unposted.makeDurable([purge])
          noteDone()
        } else {
          noteFailure(error)
        }
      }
    }
  }

  private func nextToPost() -> Purge? {
    posting.withLock { state in
      if state.purges.isEmpty { state.isRunning = false }
      return state.purges.first
    }
  }

  private func noteDone() {
    node.activity.add(1, .postedPurges)
    posting.update { state in
      state.purges.removeFirst()
      state.isFailing = false
    }
  }

  private func noteFailure(_ error: RedisTierError) {
    let (purges, isFirst) = posting.withLock { ($0.purges, !$0.isFailing) }
    file.unposted.handOver(purges)
    posting.update { state in
      state.purges.removeFirst(purges.count)
      state.isFailing = true
    }
    guard isFirst else { return }
    node.log(
      "LMDBURLCache: A removal could not be posted to the fleet yet, which is tried again. \(error)")
  }
}
