import Dispatch
import Glibc
import ResponseStore
import Synchronization

/// The threads that look up and store shared responses, each with a connection.
///
/// They start with the first job. After three failures no job runs for a while, so that requests lose no time.
final class ObjectPool: Sendable {
  private let settings: FleetSettings
  private let queue = Mutex(Queue())

  private struct Job {
    let work: @Sendable (RedisConnection?) -> Void
    /// Notes that a thread has the job, so that from then on it is up to Redis how long it takes.
    let begin: @Sendable () -> Void
    let expiresAt: UInt64
  }

  /// A thread with a connection.
  private final class Worker: Sendable {
    enum Message {
      case job(Job)
      case end
    }

    /// The next message; only for a worker that has been removed from the idle ones.
    let message = Monitor<Message?>(nil)
    /// Whether its connection worked when the worker became idle.
    let isConnected = Atomic(false)
  }

  private struct Queue {
    /// Jobs that no worker was idle for.
    var jobs: [Job] = []
    /// The one that became idle last is used first: its stack and its connection are in the processor's caches.
    var idle: [Worker] = []
    var threadCount = 0
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
      defer { (queue.jobs, queue.idle) = ([], []) }
      return (queue.jobs, queue.idle)
    }
    for worker in idle { worker.message.update { $0 = .end } }
    for job in dropped { job.work(nil) }
  }

  /// Runs a job with a connection, within a time limit that includes waiting for a thread.
  ///
  /// - Parameter isStrict: Whether the caller goes on at the end of the time also if the job does not: connecting can
  ///   wait for a name server.
  /// - Returns: nil if the job failed or had no time.
  func run<Result: Sendable>(
    within limit: Duration, isStrict: Bool = false,
    _ body: @escaping @Sendable (RedisConnection, Duration) throws(RedisTierError) -> Result
  ) async -> Result? {
    let now = BootClock.now
    let expiresAt = now + UInt64(max(0, limit / .nanoseconds(1)))
    return await withCheckedContinuation { continuation in
      let caller = JobCaller(continuation)
      let work: @Sendable (RedisConnection?) -> Void = { [self] connection in
        let left = Int64(expiresAt) - Int64(BootClock.now)
        guard let connection, left > 0, caller.use(connection) else { return _ = caller.end(nil) }
        do throws(RedisTierError) {
          let result = try body(connection, .nanoseconds(left))
          if caller.end(result) { queue.withLock { $0.failureCount = 0 } }
        } catch {
          if caller.end(nil) { noteFailure() }
        }
      }
      let job = Job(work: work, begin: { caller.begin() }, expiresAt: expiresAt)
      let (isRefused, worker, startsThread) = queue.withLock { queue -> (Bool, Worker?, Bool) in
        guard !queue.isClosed, now >= queue.pausedUntil else { return (true, nil, false) }
        if let worker = queue.idle.popLast() { return (false, worker, false) }
        queue.jobs.append(job)
        let starts = queue.threadCount < settings.configuration.objectConnectionCount
        if starts { queue.threadCount += 1 }
        return (false, nil, starts)
      }
      if isRefused { return _ = caller.end(nil) }
      worker?.message.update { $0 = .job(job) }
      // A worker that has a connection ends each command in time.
      if isStrict, worker?.isConnected.load(ordering: .relaxed) != true {
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

  private func noteFailure() {
    queue.withLock { queue in
      queue.failureCount += 1
      guard queue.failureCount >= 3 else { return }
      let seconds = min(30.0, Double(1 << min(queue.failureCount - 3, 5)))
      queue.pausedUntil = BootClock.now + UInt64(seconds * Double.random(in: 0.5...1) * 1e9)
    }
  }

  /// Takes jobs until the pool is closed.
  private func serve() {
    let worker = Worker()
    var connection: RedisConnection?
    while let job = nextJob(for: worker) {
      let left = Int64(job.expiresAt) - Int64(BootClock.now)
      guard left > 0 else {
        job.work(nil)
        continue
      }
      job.begin()
      if connection?.isDead ?? true {
        do throws(RedisTierError) {
          connection = try RedisConnection(
            settings.server, password: settings.configuration.password,
            timeout: min(.nanoseconds(left), settings.configuration.commandTimeout))
        } catch {
          connection = nil
          noteFailure()
        }
      }
      job.work(connection)
      worker.isConnected.store(connection.map { !$0.isDead } ?? false, ordering: .relaxed)
    }
  }

  /// Waits for a job; nil when the pool is closed.
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
