import CachingClient
import Dispatch
import FoundationEssentials
import Glibc
import ResponseStore
import Synchronization

/// A cache's membership in a fleet.
final class Membership: FleetMembership {
  private let settings: FleetSettings
  let file: FleetFile
  let lease: FleetLease
  private let poster: PurgePoster
  private let objects: SharedObjects
  let counters = FleetCounters()
  private let follower = Mutex<Follower?>(nil)
  private let unposted = Monitor(Unposted())
  private let log = Mutex<@Sendable (String) -> Void>({ _ in })

  /// Removals that are in force on this machine and are not posted yet.
  private struct Unposted {
    var scopes: [RemovalScope] = []
    var isPosting = false
    var isFailing = false
    var isClosed = false
    /// How many were added, and how many of them are posted.
    var addedCount = 0
    var postedCount = 0
  }

  init(_ settings: FleetSettings, file: FleetFile) {
    self.settings = settings
    self.file = file
    lease = file.lease
    poster = PurgePoster(settings)
    objects = SharedObjects(settings, file: file, counters: counters)
  }

  deinit {
    unposted.update { $0.isClosed = true }
    objects.close()
    follower.withLock { $0.take() }?.stop()
  }

  func start(_ node: FleetNode) {
    log.withLock { $0 = node.log }
    counters.use(node.activity)
    let made = Follower(settings: settings, file: file, node: node, counters: counters)
    follower.withLock { $0 = made }
    if !made.start() { node.log("LMDBURLCache: The fleet cannot be followed: the process has no thread left") }
  }

  // MARK: Purges

  func purge(_ scopes: [RemovalScope], isSoft: Bool, timeout: Duration?) throws -> FleetPurgeResult {
    var result = FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
    for scope in scopes {
      do throws(RedisTierError) {
        result = try poster.purge(FleetRemoval(scope, isSoft: isSoft), timeout: timeout)
      } catch {
        if error.code == .unconfirmed { counters.count(.postedPurges) }
        throw error
      }
      counters.count(.postedPurges)
    }
    return result
  }

  /// Whether responses in Redis may be covered by removals of this machine that are not posted.
  var hasUnposted: Bool { unposted.withLock { $0.postedCount != $0.addedCount } }

  private static let maximumUnpostedCount = 1000

  func post(_ scopes: [RemovalScope]) {
    guard !scopes.isEmpty else { return }
    let (target, starts, isFailing) = unposted.withLock { state in
      state.scopes += scopes
      state.addedCount += scopes.count
      if state.scopes.count > Self.maximumUnpostedCount {
        state.scopes = [RemovalScope](repeating: .everything, count: 1)
        state.postedCount = state.addedCount - 1
      }
      defer { state.isPosting = true }
      return (state.addedCount, !state.isPosting, state.isFailing)
    }
    if starts { DispatchQueue(label: "LMDBURLCache.fleet").async { [weak self] in Self.postAll(of: self) } }
    guard !isFailing else { return }
    _ = unposted.wait(timeout: .milliseconds(100)) { $0.postedCount >= target ? true : nil }
  }

  /// Posts the removals, one after another, and again until Redis has them.
  private static func postAll(of membership: @autoclosure () -> Membership?) {
    var backoff = Backoff()
    while let membership = membership(), let scope = membership.nextToPost() {
      do throws(RedisTierError) {
        _ = try membership.poster.purge(FleetRemoval(scope), timeout: .milliseconds(100))
        membership.notePosted()
        backoff.reset()
      } catch {
        guard error.code != .unconfirmed else {
          membership.notePosted()
          continue
        }
        membership.noteFailure(error)
        usleep(UInt32(backoff.next() / .microseconds(1)))
      }
    }
  }

  private func nextToPost() -> RemovalScope? {
    unposted.withLock { state in
      guard let scope = state.scopes.first, !state.isClosed else {
        state.isPosting = false
        return nil
      }
      return scope
    }
  }

  private func notePosted() {
    counters.count(.postedPurges)
    unposted.update { state in
      if !state.scopes.isEmpty { state.scopes.removeFirst() }
      state.postedCount = state.addedCount - state.scopes.count
      state.isFailing = false
    }
  }

  private func noteFailure(_ error: RedisTierError) {
    let isFirst = unposted.update { state in
      defer { state.isFailing = true }
      return !state.isFailing
    }
    guard isFirst else { return }
    log.withLock { $0 }("LMDBURLCache: A removal could not be posted to the fleet yet, which is tried again. \(error)")
  }

  // MARK: Requests

  func send(_ request: OutgoingRequest, over transport: any Transport) async throws -> IncomingResponse {
    // The lease before the position: all purges that returned before are then within the position.
    guard lease.isValid, !hasUnposted, let shared = SharedRequest(request, configuration: settings.configuration),
      let position = file.position(ofTag: file.tag)
    else { return try await transport.send(request) }
    return try await FleetFetch(
      objects: objects, request: request, shared: shared, transport: transport, position: position
    ).run()
  }
}
