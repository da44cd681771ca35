import CacheModel
import Dispatch
import FleetRedis
import Glibc
import ResponseStore
import Synchronization

/// The threads and connections that look up and store shared responses.
///
/// They start with the first job. After three failures no job runs for a while, so that requests lose no time. Only
/// Redis can fail: a job that waits too long for a thread says nothing about it. So a job that has begun has its whole
/// time, also when its caller no longer waits.
///
/// A reply of a Redis that is near arrives sooner than a thread that waits for it wakes up. So one lookup at a time
/// polls for its replies on the thread of its task, for at most ``pollingTime``, and hands over to a waiting thread
/// after that.
final class SharingWorkers: Sendable {
  private let fleet: FleetAddress
  private let settings: any SharingSettings
  private let queue = Mutex(Queue())

  /// For how long a lookup polls for its replies.
  private static let pollingTime = Duration.microseconds(100)

  private struct Job {
    /// The connection to use; nil for any.
    var connection: RedisConnection?
    /// Does the job; nil drops it.
    let work: @Sendable (RedisConnection?) -> Void
    /// The time after which the job is dropped if no thread has begun it.
    let expiresAt: UInt64
    /// The maximum time for connecting.
    let limit: Duration
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
    var connections: [RedisConnection] = []
    var polling = ReplyPolling()
    var isClosed = false
    var failureCount = 0
    /// No job runs before this time of the boot clock.
    var pausedUntil: UInt64 = 0
  }

  init(_ fleet: FleetAddress, _ settings: any SharingSettings) {
    self.fleet = fleet
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
      guard !queue.isClosed, queue.connections.count < settings.objectConnectionCount else { return }
      queue.connections.append(connection)
    }
  }

  // MARK: Jobs

  /// Runs a job with a connection.
  ///
  /// - Parameters:
  ///   - limit: The maximum time to wait for a thread, and then the maximum time of the job.
  ///   - isStrict: Whether the caller waits no longer than the limit in all.
  ///   - connection: The connection to use; nil for any.
  ///   - body: The job. Its second parameter is its maximum time.
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
        guard let connection else { return caller.end(nil) }
        do throws(RedisTierError) {
          let result = try body(connection, limit)
          noteSuccess()
          caller.end(result)
        } catch {
          noteFailure()
          caller.end(nil)
        }
      }
      var job = Job(connection: connection, work: work, expiresAt: expiresAt, limit: limit)
      let (isRefused, worker, startsThread) = queue.withLock { queue -> (Bool, Worker?, Bool) in
        guard !queue.isClosed, now >= queue.pausedUntil else { return (true, nil, false) }
        if let worker = queue.idle.popLast() {
          job.connection = connection ?? queue.connections.popLast()
          return (false, worker, false)
        }
        queue.jobs.append(job)
        let starts = queue.threadCount < settings.objectConnectionCount
        if starts { queue.threadCount += 1 }
        return (false, nil, starts)
      }
      if isRefused { return caller.end(nil) }
      worker?.message.update { $0 = .job(job) }
      // A worker with a connection ends each command in time. Connecting can wait for a name server.
      if isStrict, worker == nil || job.connection == nil {
        DispatchQueue.global().asyncAfter(deadline: .now() + .nanoseconds(Int(expiresAt - now))) { caller.end(nil) }
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
      // A failover takes some seconds, and then machines must soon share again.
      let seconds = Double(1 << min(queue.failureCount - 3, 2))
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
      // The replies to commands that were sent already may have arrived, which keeps the connection.
      guard job.connection != nil || BootClock.now < job.expiresAt else {
        job.work(nil)
        continue
      }
      var connection = job.connection ?? queue.withLock { $0.connections.popLast() }
      if connection == nil {
        do throws(RedisTierError) {
          connection = try fleet.connect(timeout: min(job.limit, settings.commandTimeout))
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
  private let continuation: Mutex<CheckedContinuation<Result?, Never>?>

  init(_ continuation: CheckedContinuation<Result?, Never>) {
    self.continuation = Mutex(continuation)
  }

  /// Ends the wait. Only the first call has an effect.
  func end(_ result: Result?) {
    continuation.withLock { $0.take() }?.resume(returning: result)
  }
}
