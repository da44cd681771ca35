import HTTPCaching
import ResponseStore
import Synchronization

/// One fetch and those who wait for it: the leader, who gets the response as it arrives, and followers, who wait for its outcome.
///
/// The fetch runs in a task of its own, so that it outlives a leader who is cancelled while others wait. When nobody is left it is
/// cancelled. The lock guards a few words; continuations are resumed and values released outside it.
final class Flight<Entry: StoredResponseView & Sendable>: Sendable {
  typealias Response = ClientResponse<Entry>

  /// What a fetch means for those who follow.
  enum Outcome: Sendable {
    /// It brought a response that may be reused; each follower decides by his own request.
    case shared(SharedResponse)
    /// It brought something that is for the leader only: go on alone.
    case alone
    /// It failed: serve stale if permitted, or try again.
    case failed(StaleOnError.Failure)
    /// It was given up before this follower arrived: look again.
    case gone
  }

  private struct Follower {
    /// Whether it can use a response with this head.
    let canUse: @Sendable (SharedResponse) -> Bool
    let continuation: CheckedContinuation<Outcome, any Error>
  }

  private struct State {
    var task: Task<Void, Never>?
    var hasLeader: Bool
    var leader: CheckedContinuation<Response, any Error>?
    var answer: Result<Response, any Error>?
    var followers: [UInt64: Follower] = [:]
    /// The head of the response, once it has come and may be shared: without the body.
    var head: SharedResponse?
    var outcome: Outcome?
    var isGivenUp = false
  }

  /// What it is filed under: that under which its result is stored.
  let key: RequestKey
  /// What others join it by; `nil` for a fetch that is nobody else's business.
  let sharingKey: SharingKey?
  let ticket: StoreTicket
  private let isBackground: Bool
  private let state: Mutex<State>

  init(key: RequestKey, sharingKey: SharingKey?, ticket: StoreTicket, isBackground: Bool) {
    self.key = key
    self.ticket = ticket
    self.sharingKey = sharingKey
    self.isBackground = isBackground
    state = Mutex(State(hasLeader: !isBackground))
  }

  /// How often something has come of the fetch.
  private let progress = Atomic<Int>(0)

  var progressCount: Int { progress.load(ordering: .relaxed) }

  /// Something has come, so that followers wait on.
  func noteProgress() {
    progress.wrappingAdd(1, ordering: .relaxed)
  }

  // MARK: The task

  /// Starts the fetch. A leader has nothing to do but wait for it, so it begins on his thread and saves a hop; a background fetch
  /// must not hold up whoever started it.
  func start(_ fetch: @escaping @Sendable () async -> Void) {
    let task = isBackground ? Task { await fetch() } : Task.immediate { await fetch() }
    let isGivenUp = state.withLock { state in
      state.task = task
      return state.isGivenUp
    }
    if isGivenUp { task.cancel() }
  }

  /// Returns when the fetch has ended and everything it does to the store is done.
  func waitUntilEnded() async {
    await state.withLock { $0.task }?.value
  }

  /// Whether a request that arrives now can wait for it.
  var isOpen: Bool {
    state.withLock { !$0.isGivenUp && $0.outcome == nil } && !ticket.isKnownVoid
  }

  /// Gives up a fetch that nobody waits for. To be called without the lock, after someone left.
  private func giveUpIfForsaken() {
    let task = state.withLock { state in
      guard !isBackground, !state.hasLeader, state.followers.isEmpty else { return nil as Task<Void, Never>? }
      state.isGivenUp = true
      return state.task
    }
    task?.cancel()
  }

  // MARK: The leader

  /// Waits for the response; a cancelled leader returns at once.
  func answer() async throws -> Response {
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let answer = state.withLock { state -> Result<Response, any Error>? in
          guard state.hasLeader else { return .failure(CancellationError()) }
          if let answer = state.answer {
            state.answer = nil
            return answer
          }
          state.leader = continuation
          return nil
        }
        if let answer { continuation.resume(with: answer) }
      }
    } onCancel: {
      leaderLeft()
    }
  }

  /// Gives the response, or the failure, to the leader. Without a leader it is dropped, which ends an unread body.
  func deliver(_ answer: Result<Response, any Error>) {
    let leader = state.withLock { state in
      if let leader = state.leader {
        state.leader = nil
        return leader as CheckedContinuation<Response, any Error>?
      }
      if state.hasLeader { state.answer = answer }
      return nil
    }
    leader?.resume(with: answer)
  }

  /// The leader was cancelled, or stopped reading.
  func leaderLeft() {
    let (leader, dropped) = state.withLock { state in
      state.hasLeader = false
      defer {
        state.leader = nil
        state.answer = nil
      }
      return (state.leader, state.answer)
    }
    leader?.resume(throwing: CancellationError())
    withExtendedLifetime(dropped) {}
    giveUpIfForsaken()
  }

  // MARK: Followers

  /// Waits for the outcome; a cancelled follower returns at once. `whenWaiting` is called once the request is on the list of those
  /// who wait, and not at all if there is nothing to wait for.
  ///
  /// - Parameter canUse: whether the request can use a response, by its head. It need not wait for the body of one that it cannot.
  func outcome(
    number: UInt64, canUse: @escaping @Sendable (SharedResponse) -> Bool, whenWaiting: () -> Void
  ) async throws -> Outcome {
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let (outcome, head) = state.withLock { state -> (Outcome?, SharedResponse?) in
          if let outcome = state.outcome { return (outcome, nil) }
          if state.isGivenUp || ticket.isKnownVoid { return (.gone, nil) }
          state.followers[number] = Follower(canUse: canUse, continuation: continuation)
          return (nil, state.head)
        }
        if let outcome { continuation.resume(returning: outcome) } else { whenWaiting() }
        if let head, !canUse(head) { release(number) }
        // Cancelled before it was registered: the handler below found nothing to remove.
        if Task.isCancelled { followerLeft(number) }
      }
    } onCancel: {
      followerLeft(number)
    }
  }

  private func followerLeft(_ number: UInt64) {
    let follower = state.withLock { $0.followers.removeValue(forKey: number) }
    guard let follower else { return }
    follower.continuation.resume(throwing: CancellationError())
    giveUpIfForsaken()
  }

  /// Ends the wait of a follower if nothing has come by `deadline`, nor for as long as `limit` since something came. The
  /// caller cancels it when the wait is over.
  func watch(_ number: UInt64, until deadline: ContinuousClock.Instant, limit: Duration) -> Task<Void, Never> {
    Task { [weak self] in
      var deadline = deadline
      while let seen = self?.progressCount {
        do { try await Task.sleep(until: deadline, clock: .continuous) } catch { return }
        guard let self, progressCount == seen else {
          deadline = .now + limit
          continue
        }
        return timeOut(number)
      }
    }
  }

  /// Ends the wait of the leader if the head has not come by `deadline`. The caller cancels it when the wait is over.
  func watchLeader(until deadline: ContinuousClock.Instant) -> Task<Void, Never> {
    Task { [weak self] in
      do { try await Task.sleep(until: deadline, clock: .continuous) } catch { return }
      self?.timeOutLeader()
    }
  }

  private func timeOutLeader() {
    let leader = state.withLock { state in
      // Without one the head has come, and its body is being read.
      guard let leader = state.leader else { return nil as CheckedContinuation<Response, any Error>? }
      state.leader = nil
      state.hasLeader = false
      return leader
    }
    guard let leader else { return }
    leader.resume(throwing: CachingClientError.timedOut)
    giveUpIfForsaken()
  }

  private func timeOut(_ number: UInt64) {
    guard let follower = state.withLock({ $0.followers.removeValue(forKey: number) }) else { return }
    follower.continuation.resume(throwing: CachingClientError.timedOut)
    giveUpIfForsaken()
  }

  /// The head of a response that may be shared has come: the followers that cannot use it need not wait for the body.
  func releaseFollowers(notServedBy head: SharedResponse) {
    noteProgress()
    let waiting = state.withLock { state in
      state.head = head
      return state.followers
    }
    for (number, follower) in waiting where !follower.canUse(head) { release(number) }
  }

  /// Lets one follower go on alone.
  private func release(_ number: UInt64) {
    guard let follower = state.withLock({ $0.followers.removeValue(forKey: number) }) else { return }
    follower.continuation.resume(returning: .alone)
    giveUpIfForsaken()
  }

  /// Lets every follower go on, all at once. Only the first outcome counts.
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
