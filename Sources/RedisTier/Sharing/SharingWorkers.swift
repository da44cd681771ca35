import Dispatch
import Glibc
import ResponseStore
import Synchronization

/// The threads and connections that look up and store shared responses.
///
/// They start with the first job. After three failures no job runs for a while, so that requests lose no time.
///
/// A reply of a Redis that is near arrives sooner than a thread that waits for it wakes up. So one lookup at a time polls
/// for its replies on the thread of its task, for at most ``pollingTime``, and hands over to a waiting thread after that.
final class SharingWorkers: Sendable {
  private let settings: FleetSettings
  private let queue = Mutex(Queue())

  /// For how long a lookup polls for its replies.
  private static let pollingTime = Duration.microseconds(100)

  private struct Job {
    /// The connection to use; nil for any.
    var connection: RedisConnection?
    let work: @Sendable (RedisConnection?) -> Void
    /// Notes that a thread has the job, so that from then on it is up to Redis how long it takes.
    let begin: @Sendable () -> Void
    let expiresAt: UInt64
  }

  /// A thread that waits for jobs.
  private final class Worker: Sendable {
    enum Message {
      case job(Job)
      case end
    }

    /// The next message; only for a worker that has been removed from the idle ones.
    let message = Monitor<Message?>(nil)
  }

  private struct Queue {
    /// Jobs that no worker was idle for.
    var jobs: [Job] = []
    /// The one that became idle last is used first: its stack is in the processor's caches.
    var idle: [Worker] = []
    var threadCount = 0
    /// The idle connections.
    var connections: [RedisConnection] = []
    var polling = ReplyPolling()
    var isClosed = false
    var failureCount = 0
    /// No job runs before this time of the boot clock.
    var pausedUntil: UInt64 = 0
  }

  init(_ settings: FleetSettings) {
    self.settings = settings
  }

  /// Ends the threads after their present jobs. Later jobs fail.
  func close() {
    let (dropped, idle) = queue.withLock { queue in
      queue.isClosed = true
      defer { (queue.jobs, queue.idle, queue.connections) = ([], [], []) }
      return (queue.jobs, queue.idle)
    }
    for worker in idle { worker.message.update { $0 = .end } }
    for job in dropped { job.work(nil) }
  }

  // MARK: Commands of lookups

  /// Sends commands and returns their replies, within a time limit that includes waiting for a thread.
  ///
  /// - Returns: nil if a command failed or had no time.
  func commands(_ commands: [[[UInt8]]], within limit: Duration) async -> [RedisReply]? {
    guard let connection = takeConnectionForPolling() else {
      return await run(within: limit, isStrict: true) { (connection, left) throws(RedisTierError) in
        try connection.commands(commands, timeout: left)
      }
    }
    let start = BootClock.now
    let replies: [RedisReply]?
    do throws(RedisTierError) {
      // Does not wait: nothing else is in the send buffer of an idle connection.
      try connection.send(commands, timeout: limit)
      replies = try poll(connection)
    } catch {
      queue.withLock { $0.polling.end(isSuccess: false) }
      noteFailure()
      return nil
    }
    queue.withLock { $0.polling.end(isSuccess: replies != nil) }
    if let replies {
      giveBack(connection)
      noteSuccess()
      return replies
    }
    let left = limit - .nanoseconds(BootClock.now - start)
    return await run(within: left, isStrict: true, on: connection) { (connection, _) throws(RedisTierError) in
      try connection.replies()
    }
  }

  /// Polls for replies. Other threads of the machine, such as Redis itself, get the processor if they need it.
  private func poll(_ connection: RedisConnection) throws(RedisTierError) -> [RedisReply]? {
    let end = BootClock.now + Self.pollingTime.nanoseconds
    while BootClock.now < end {
      if let replies = try connection.arrivedReplies() { return replies }
      sched_yield()
    }
    return nil
  }

  private func takeConnectionForPolling() -> RedisConnection? {
    queue.withLock { queue in
      guard !queue.isClosed, BootClock.now >= queue.pausedUntil, !queue.connections.isEmpty, queue.polling.begin()
      else { return nil }
      return queue.connections.removeLast()
    }
  }

  private func giveBack(_ connection: RedisConnection) {
    // A job whose time was over may have left replies on their way.
    guard connection.isReady else { return }
    queue.withLock { queue in
      guard !queue.isClosed, queue.connections.count < settings.configuration.objectConnectionCount else { return }
      queue.connections.append(connection)
    }
  }

  // MARK: Jobs

  /// Runs a job with a connection, within a time limit that includes waiting for a thread.
  ///
  /// - Parameters:
  ///   - isStrict: Whether the caller goes on at the end of the time also if the job does not: connecting can wait for a
  ///     name server.
  ///   - connection: The connection to use; nil for any.
  /// - Returns: nil if the job failed or had no time.
  func run<Result: Sendable>(
    within limit: Duration, isStrict: Bool = false, on connection: RedisConnection? = nil,
    _ body: @escaping @Sendable (RedisConnection, Duration) throws(RedisTierError) -> Result
  ) async -> Result? {
    let now = BootClock.now
    let expiresAt = now + limit.nanoseconds
    return await withCheckedContinuation { continuation in
      let caller = JobCaller(continuation)
      let work: @Sendable (RedisConnection?) -> Void = { [self] connection in
        let left = Int64(expiresAt) - Int64(BootClock.now)
        guard let connection, left > 0, caller.use(connection) else { return _ = caller.end(nil) }
        do throws(RedisTierError) {
          let result = try body(connection, .nanoseconds(left))
          if caller.end(result) { noteSuccess() }
        } catch {
          if caller.end(nil) { noteFailure() }
        }
      }
      var job = Job(connection: connection, work: work, begin: { caller.begin() }, expiresAt: expiresAt)
      let (isRefused, worker, startsThread) = queue.withLock { queue -> (Bool, Worker?, Bool) in
        guard !queue.isClosed, now >= queue.pausedUntil else { return (true, nil, false) }
        if let worker = queue.idle.popLast() {
          job.connection = connection ?? queue.connections.popLast()
          return (false, worker, false)
        }
        queue.jobs.append(job)
        let starts = queue.threadCount < settings.configuration.objectConnectionCount
        if starts { queue.threadCount += 1 }
        return (false, nil, starts)
      }
      if isRefused { return _ = caller.end(nil) }
      worker?.message.update { $0 = .job(job) }
      // A worker with a connection ends each command in time.
      if isStrict, worker == nil || job.connection == nil {
        DispatchQueue.global().asyncAfter(deadline: .now() + .nanoseconds(Int(expiresAt - now))) { [weak self] in
          // A job that no thread had time for says nothing about Redis.
          if caller.cancel() { self?.noteFailure() }
        }
      }
      guard startsThread, BackgroundThread(body: { [self] in serve() }) == nil else { return }
      // Without any thread the jobs would wait forever.
      let dropped = queue.withLock { queue in
        queue.threadCount -= 1
        defer { if queue.threadCount == 0 { queue.jobs = [] } }
        return queue.threadCount == 0 ? queue.jobs : []
      }
      for job in dropped { job.work(nil) }
    }
  }

  private func noteSuccess() {
    queue.withLock { $0.failureCount = 0 }
  }

  /// Notes that Redis failed or replied something else.
  func noteFailure() {
    let dropped = queue.withLock { queue in
      // If one connection has ended, the others probably have, and each would fail a lookup.
      defer { queue.connections = [] }
      queue.failureCount += 1
      guard queue.failureCount >= 3 else { return queue.connections }
      let seconds = min(30.0, Double(1 << min(queue.failureCount - 3, 5)))
      queue.pausedUntil = BootClock.now + UInt64(seconds * Double.random(in: 0.5...1) * 1e9)
      return queue.connections
    }
    // Closed without the lock.
    withExtendedLifetime(dropped) {}
  }

  /// Takes jobs until ``close()``.
  private func serve() {
    let worker = Worker()
    while let job = nextJob(for: worker) {
      let left = Int64(job.expiresAt) - Int64(BootClock.now)
      guard left > 0 else {
        job.work(nil)
        continue
      }
      job.begin()
      var connection = job.connection ?? queue.withLock { $0.connections.popLast() }
      if connection == nil {
        do throws(RedisTierError) {
          connection = try settings.fleet.connect(
            timeout: min(.nanoseconds(left), settings.configuration.commandTimeout))
        } catch {
          noteFailure()
        }
      }
      job.work(connection)
      if let connection { giveBack(connection) }
    }
  }

  /// Waits for a job; nil after ``close()``.
  private func nextJob(for worker: Worker) -> Job? {
    let message = queue.withLock { queue -> Worker.Message? in
      if !queue.jobs.isEmpty { return .job(queue.jobs.removeFirst()) }
      if queue.isClosed { return .end }
      queue.idle.append(worker)
      return nil
    }
    guard case .job(let job)? = message ?? worker.message.wait(for: { $0.take() }) else { return nil }
    return job
  }
}

/// A task that waits for a job: until the job ends, or until its time is over.
private final class JobCaller<Result: Sendable>: Sendable {
  private struct State {
    var continuation: CheckedContinuation<Result?, Never>?
    var hasBegun = false
    /// Of the connection that the job uses.
    var interrupter: RedisConnection.Interrupter?
  }

  private let state: Mutex<State>

  init(_ continuation: CheckedContinuation<Result?, Never>) {
    state = Mutex(State(continuation: continuation))
  }

  /// Notes that a thread has the job. It may have to connect first.
  func begin() {
    state.withLock { $0.hasBegun = true }
  }

  /// Notes the connection that the job uses. Returns false if the task no longer waits.
  func use(_ connection: RedisConnection) -> Bool {
    state.withLock { state in
      guard state.continuation != nil else { return false }
      state.interrupter = connection.interrupter
      return true
    }
  }

  /// Ends the wait with a result. Returns false if the task no longer waited.
  func end(_ result: Result?) -> Bool {
    let continuation = state.withLock { state in
      state.interrupter = nil
      return state.continuation.take()
    }
    continuation?.resume(returning: result)
    return continuation != nil
  }

  /// Ends the wait without a result, and the job's command. Returns whether the task waited for a job that had begun.
  func cancel() -> Bool {
    let (continuation, hasBegun) = state.withLock { state in
      // Within the lock, because another job uses the connection afterwards.
      state.interrupter?.interrupt()
      return (state.continuation.take(), state.hasBegun)
    }
    continuation?.resume(returning: nil)
    return continuation != nil && hasBegun
  }
}
