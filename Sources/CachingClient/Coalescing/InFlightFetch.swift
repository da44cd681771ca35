import CacheModel
import HTTPCaching
import Synchronization

/// A fetch with its leader, which receives the response as it arrives, and its followers, which wait for the outcome.
///
/// The fetch has its own task, so it continues for the followers if the leader is cancelled. It is cancelled when no
/// request waits for it, unless it is a background fetch. Continuations are resumed, and values are released, without
/// the lock.
///
/// Not generic, although only the leader's response depends on the storage: creating the metadata of generic types is a
/// large part of a miss.
final class InFlightFetch: Sendable {
  private struct Follower {
    /// Returns whether the follower can use a response with this head; nil if it only waits for the end.
    let canUse: (@Sendable (CacheableResponse) -> Bool)?
    /// Whether the follower wants the body as it arrives.
    let readsAlong: Bool
    /// How long it waits for the next bytes of a body that it reads along.
    let limits: WaitLimits
    let continuation: CheckedContinuation<Outcome, any Error>
  }

  private struct State {
    var task: Task<Void, Never>?
    var hasLeader: Bool
    var leader: CheckedContinuation<any Sendable, any Error>?
    var response: Result<any Sendable, any Error>?
    /// Whether the leader has a response, or will have it at once.
    var isDelivered = false
    var followers: [UInt64: Follower] = [:]
    /// The response without its body, from the arrival of its head on; nil if it cannot be shared.
    var head: CacheableResponse?
    /// The body while it arrives, and which followers read it.
    var body: (arriving: ArrivingBody, sharing: BodySharing)?
    var outcome: Outcome?

    /// The body for a follower that reads along; nil if it waits.
    func arrivingBody(_ readsAlong: Bool) -> ArrivingBody? {
      guard let body, readsAlong || body.sharing == .all else { return nil }
      return body.arriving
    }
    var isCancelled = false
    /// The keys under which responses to later requests were stored, and their variants.
    var stored: [(key: RequestKey, vary: VaryKey)] = []
    /// Whether the fetch continues although no caller waits for it.
    var isBackground: Bool

    mutating func takeLeader() -> CheckedContinuation<any Sendable, any Error>? {
      defer { leader = nil }
      return leader
    }
  }

  /// The key of the URL, by which removals find the fetch.
  let key: RequestKey
  /// The identity of the requests for the same response (``CachingClientRequest/identity``).
  let identity: RequestKey
  /// The key by which other requests join, until ``InFlightFetches`` narrows it to a variant; `nil` for a fetch that
  /// cannot be joined.
  let coalescingKey: CoalescingKey?
  let permit: StorePermit
  /// Whether the response is stored.
  let storageReport = StorageReport()
  /// A time before the request was sent.
  let startedAt = BootClock.now
  /// Whether the fetch is a POST, whose response may be newer than its request.
  let isChange: Bool
  /// Whether the fetch began without a caller.
  private let beganInBackground: Bool
  private let state: Mutex<State>

  init(
    key: RequestKey, identity: RequestKey, coalescingKey: CoalescingKey?, permit: StorePermit, isBackground: Bool,
    isChange: Bool = false
  ) {
    self.key = key
    self.identity = identity
    self.permit = permit
    self.coalescingKey = coalescingKey
    beganInBackground = isBackground
    self.isChange = isChange
    state = Mutex(State(hasLeader: !isBackground, isBackground: isBackground))
  }

  private let progress = Atomic<UInt64>(0)

  /// The time at which the fetch last made progress; 0 before the head of the response has arrived.
  var lastProgress: UInt64 { progress.load(ordering: .relaxed) }

  /// Records that the fetch made progress, which extends the followers' time limits.
  func recordProgress() {
    progress.store(BootClock.now, ordering: .relaxed)
  }

  /// Whether nothing has arrived for this time.
  func hasStalled(for limit: Duration) -> Bool {
    // Signed, because progress can be later than a time that was read before it.
    let last = Int64(max(lastProgress, startedAt))
    return .nanoseconds(Int64(BootClock.now) - last) >= limit
  }

  /// The time since the fetch last made progress; nil before the head of the response has arrived.
  private var timeSinceProgress: Duration? {
    let last = lastProgress
    return last == 0 ? nil : .nanoseconds(Int64(BootClock.now) - Int64(last))
  }

  // MARK: The task

  /// Starts the fetch.
  ///
  /// It begins on the leader's thread, because the leader only waits for it. A background fetch begins on another
  /// thread, to avoid delaying the caller.
  func start(_ fetch: @escaping @Sendable () async -> Void) {
    let task = beganInBackground ? Task { await fetch() } : Task.immediate { await fetch() }
    let isCancelled = state.withLock { state in
      state.task = task
      return state.isCancelled
    }
    if isCancelled { task.cancel() }
  }

  /// Returns when the fetch has ended and its changes to the store are complete.
  func waitUntilEnded() async {
    await state.withLock { $0.task }?.value
  }

  /// Whether the fetch continues although no caller waits for it.
  var isBackground: Bool { state.withLock { $0.isBackground } }

  /// Whether a request can join the fetch now.
  var isOpen: Bool {
    state.withLock { !$0.isCancelled && $0.outcome == nil } && !permit.isKnownRevoked
  }

  /// Cancels the fetch if no request waits for it. Call this without the lock, after a leader or follower has left.
  private func cancelIfUnobserved() {
    let task = state.withLock { state in
      guard !state.isBackground, !state.hasLeader, state.followers.isEmpty,
        state.body?.arriving.hasReaders != true
      else { return nil as Task<Void, Never>? }
      state.isCancelled = true
      return state.task
    }
    task?.cancel()
  }

  // MARK: The leader

  /// Waits for the response, which has the type that was delivered. Throws at once if the leader is cancelled.
  nonisolated(nonsending) func response<Response>() async throws -> Response {
    guard let response = try await deliveredResponse() as? Response else {
      preconditionFailure("A fetch delivers the responses of its caching client")
    }
    return response
  }

  nonisolated(nonsending) private func deliveredResponse() async throws -> any Sendable {
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let response = state.withLock { state -> Result<any Sendable, any Error>? in
          if let response = state.response {
            state.response = nil
            return response
          }
          guard state.hasLeader else { return .failure(CancellationError()) }
          state.leader = continuation
          return nil
        }
        if let response { continuation.resume(with: response) }
      }
    } onCancel: {
      leaderDidCancel()
    }
  }

  /// Delivers the response, or the failure, to the leader.
  ///
  /// Without a leader the response is released, which abandons its unread body.
  func deliver(_ response: Result<any Sendable, any Error>) {
    let leader = state.withLock { state in
      state.isDelivered = true
      if state.hasLeader, state.leader == nil { state.response = response }
      return state.takeLeader()
    }
    leader?.resume(with: response)
  }

  /// Records that the last reader of the body has left.
  func bodyWasAbandoned() {
    // A follower can leave before the leader has the body.
    if state.withLock({ $0.hasLeader && !$0.isDelivered }) { return }
    leaderDidCancel()
  }

  /// Records that the leader was cancelled or stopped reading.
  private func leaderDidCancel() {
    let (leader, dropped) = state.withLock { state in
      state.hasLeader = false
      defer { state.response = nil }
      return (state.takeLeader(), state.response)
    }
    leader?.resume(throwing: CancellationError())
    withExtendedLifetime(dropped) {}
    cancelIfUnobserved()
  }

  // MARK: Followers

  /// Waits for the outcome. Throws at once if the follower is cancelled.
  ///
  /// - Parameters:
  ///   - number: A number that identifies the follower.
  ///   - readsAlong: Whether the request wants the body as it arrives.
  ///   - limits: How long the request waits for the next bytes of a body that it reads along.
  ///   - canUse: Returns whether the request can use a response with this head. If not, it does not wait for the body.
  ///     Nil to wait for the end of the fetch and use no response.
  ///   - whenWaiting: Called after the request is registered as a follower. Not called if it need not wait.
  func outcome(
    number: UInt64, readsAlong: Bool, limits: WaitLimits, canUse: (@Sendable (CacheableResponse) -> Bool)?,
    whenWaiting: () -> Void
  ) async throws -> Outcome {
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let (outcome, head) = state.withLock { state -> (Outcome?, CacheableResponse?) in
          if let outcome = state.outcome { return (outcome, nil) }
          if state.isCancelled || permit.isKnownRevoked { return (.abandoned, nil) }
          state.followers[number] = Follower(
            canUse: canUse, readsAlong: readsAlong, limits: limits, continuation: continuation)
          return (nil, state.head)
        }
        if let outcome { continuation.resume(returning: outcome) } else { whenWaiting() }
        if let head { release([number], head) }
        // If the task was cancelled before the registration, the handler below found no follower to remove.
        if Task.isCancelled { resume(number, with: .failure(CancellationError())) }
      }
    } onCancel: {
      resume(number, with: .failure(CancellationError()))
    }
  }

  /// Times out a follower if the fetch makes no progress until `deadline`.
  ///
  /// After progress, the deadline is extended to `limit` after it. The caller cancels the alarm when its wait ends.
  func watch(_ number: UInt64, until deadline: ContinuousClock.Instant, limit: Duration) -> Alarm {
    watch(until: deadline, limit: limit) { $0.resume(number, with: .failure(CachingClientError.timedOut)) }
  }

  /// Times out the leader if it has no response and the fetch makes no progress until `deadline`.
  ///
  /// After progress, the deadline is extended to `limit` after it. The caller cancels the alarm when its wait ends.
  func watchLeader(until deadline: ContinuousClock.Instant, limit: Duration) -> Alarm {
    watch(until: deadline, limit: limit) { $0.timeOutLeader() }
  }

  private func watch(
    until deadline: ContinuousClock.Instant, limit: Duration, _ timeOut: @escaping @Sendable (InFlightFetch) -> Void
  ) -> Alarm {
    Alarm(at: deadline) { [weak self] in
      guard let self else { return nil }
      if let time = timeSinceProgress, time < limit { return .now + (limit - time) }
      timeOut(self)
      return nil
    }
  }

  // MARK: Origins that do not respond

  /// Gives the leader another response if the origin has not responded at a time. The fetch then goes on in the
  /// background.
  ///
  /// The caller cancels the alarm when its wait ends.
  ///
  /// - Parameters:
  ///   - makeResponse: Returns the response; nil if the leader must go on waiting.
  ///   - whenReleased: Called when the leader has the response.
  func answerLeader(
    at time: ContinuousClock.Instant, with makeResponse: @escaping @Sendable () -> (any Sendable)?,
    whenReleased: @escaping @Sendable (InFlightFetch) -> Void
  ) -> Alarm {
    atTime(time) { fetch in
      guard fetch.awaitsDelivery, let response = makeResponse() else { return }
      let (leader, isReleased) = fetch.state.withLock {
        state -> (CheckedContinuation<any Sendable, any Error>?, Bool) in
        guard state.hasLeader, !state.isDelivered else { return (nil, false) }
        state.isDelivered = true
        state.isBackground = true
        state.hasLeader = false
        if state.leader == nil { state.response = .success(response) }
        return (state.takeLeader(), true)
      }
      guard isReleased else { return }
      whenReleased(fetch)
      leader?.resume(returning: response)
    }
  }

  private var awaitsDelivery: Bool { state.withLock { $0.hasLeader && !$0.isDelivered } }

  /// Resumes a follower with ``Outcome/unanswered`` if the origin has not responded at a time.
  ///
  /// The caller cancels the alarm when its wait ends.
  func releaseFollower(_ number: UInt64, at time: ContinuousClock.Instant) -> Alarm {
    atTime(time) { $0.resume(number, with: .success(.unanswered)) }
  }

  /// Calls `body` at a time if the fetch has made no progress by then.
  private func atTime(
    _ time: ContinuousClock.Instant, _ body: @escaping @Sendable (InFlightFetch) -> Void
  ) -> Alarm {
    Alarm(at: time) { [weak self] in
      if let self, lastProgress == 0 { body(self) }
      return nil
    }
  }

  private func timeOutLeader() {
    let leader = state.withLock { state -> CheckedContinuation<any Sendable, any Error>? in
      guard state.hasLeader, !state.isDelivered else { return nil }
      state.isDelivered = true
      state.hasLeader = false
      if state.leader == nil { state.response = .failure(CachingClientError.timedOut) }
      return state.takeLeader()
    }
    leader?.resume(throwing: CachingClientError.timedOut)
    cancelIfUnobserved()
  }

  /// Whether a response of this variant to a later request was stored under the key in the meantime.
  func isOvertaken(at key: RequestKey?, _ vary: VaryKey) -> Bool {
    state.withLock { $0.stored.contains { $0.key == key && $0.vary == vary } }
  }

  /// Records that a response to a later request was stored.
  func noteOvertaken(at key: RequestKey, _ vary: VaryKey) {
    state.withLock { state in
      if !state.stored.contains(where: { $0.key == key && $0.vary == vary }) { state.stored.append((key, vary)) }
    }
  }

  private let hasCountedFailure = Atomic(false)

  /// Returns true the first time. A fetch that does not respond in time, and then fails, counts as one failure.
  func countFailure() -> Bool { !hasCountedFailure.exchange(true, ordering: .relaxed) }

  /// Records the head of a shareable response, and releases the followers that cannot use it.
  func releaseFollowers(notServedBy head: CacheableResponse) {
    recordProgress()
    noteHead(head)
  }

  /// Lets followers read a body while it arrives: those that wait, and those that join.
  ///
  /// - Parameter head: The response. Its own body is not used.
  func share(_ arriving: ArrivingBody, of head: CacheableResponse, with sharing: BodySharing) {
    state.withLock { $0.body = (arriving, sharing) }
    noteHead(head)
  }

  private func noteHead(_ head: CacheableResponse) {
    let waiting = state.withLock { state in
      state.head = head
      return Array(state.followers.keys)
    }
    release(waiting, head)
  }

  /// Resumes those followers that cannot use the response whose head has arrived, or that read its body as it arrives.
  private func release(_ numbers: [UInt64], _ head: CacheableResponse) {
    for number in numbers {
      let (follower, arriving) = state.withLock { state in
        let follower = state.followers[number]
        return (follower, follower.flatMap { state.arrivingBody($0.readsAlong) })
      }
      guard let follower, let canUse = follower.canUse else { continue }
      if !canUse(head) {
        resume(number, with: .success(.notShareable(variant: head.vary)))
      } else if let arriving {
        // The reader begins before the follower ends. Without both, the fetch would be cancelled.
        let body = arriving.makeBody(waiting: follower.limits)
        resume(number, with: .success(body.map { .arriving(head, $0) } ?? .notShareable(variant: nil)))
      }
    }
  }

  /// Resumes one follower, unless it was resumed before.
  private func resume(_ number: UInt64, with result: Result<Outcome, any Error>) {
    guard let follower = state.withLock({ $0.followers.removeValue(forKey: number) }) else { return }
    follower.continuation.resume(with: result)
    cancelIfUnobserved()
  }

  /// Resumes all followers with the outcome. Only the first call has an effect.
  func resolve(_ outcome: Outcome) {
    let followers = state.withLock { state in
      guard state.outcome == nil else { return [:] as [UInt64: Follower] }
      state.outcome = outcome
      defer { state.followers = [:] }
      return state.followers
    }
    for follower in followers.values { follower.continuation.resume(returning: outcome) }
  }
}
