import Dispatch
import Synchronization

/// Runs the task of a fetch on the thread of its leader, which waits for the response.
///
/// A response then reaches its caller with one change of threads, from the transport to the leader. On a thread of its
/// own, the fetch would store the response there, and then resume the leader on another one.
///
/// After ``end()``, and while the leader is busy with another job, jobs run on Dispatch's threads.
final class LeaderExecutor: TaskExecutor {
  private struct State {
    var isLent = true
    /// The job for the leader to run next.
    var job: UnownedJob?
    var leader: CheckedContinuation<UnownedJob?, Never>?
  }

  private let state = Mutex(State())

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    let (isAccepted, leader) = state.withLock { state -> (Bool, CheckedContinuation<UnownedJob?, Never>?) in
      guard state.isLent, state.job == nil else { return (false, nil) }
      if state.leader == nil { state.job = job }
      defer { state.leader = nil }
      return (true, state.leader)
    }
    if let leader { leader.resume(returning: job) } else if !isAccepted { runElsewhere(job) }
  }

  /// Runs jobs on the present thread until ``end()``. Call this once, from the leader's task.
  func runUntilEnd() async {
    while let job = await nextJob() { job.runSynchronously(on: asUnownedTaskExecutor()) }
  }

  /// Lets ``runUntilEnd()`` return. May be called any number of times.
  func end() {
    let (job, leader) = state.withLock { state in
      state.isLent = false
      defer { (state.job, state.leader) = (nil, nil) }
      return (state.job, state.leader)
    }
    leader?.resume(returning: nil)
    if let job { runElsewhere(job) }
  }

  private func nextJob() async -> UnownedJob? {
    // Usually the fetch's first job is there already, and after the second one the fetch has ended.
    let (job, isLent) = takeJob()
    if job != nil || !isLent { return job }
    return await withCheckedContinuation { continuation in
      let (job, waits) = state.withLock { state -> (UnownedJob?, Bool) in
        defer { state.job = nil }
        let waits = state.isLent && state.job == nil
        if waits { state.leader = continuation }
        return (state.job, waits)
      }
      if !waits { continuation.resume(returning: job) }
    }
  }

  private func takeJob() -> (UnownedJob?, isLent: Bool) {
    state.withLock { state in
      defer { state.job = nil }
      return (state.job, state.isLent)
    }
  }

  private func runElsewhere(_ job: UnownedJob) {
    DispatchQueue.global().async { [self] in job.runSynchronously(on: asUnownedTaskExecutor()) }
  }
}
