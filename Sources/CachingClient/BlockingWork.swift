import Dispatch

/// Runs work that waits for the disk on a thread that may block, while the task is suspended.
///
/// The threads that run Swift's tasks are as many as there are processors: one that sleeps keeps other tasks from
/// running.
package func onBlockingThread<Result: Sendable>(_ work: @escaping @Sendable () -> Result) async -> Result {
  await withCheckedContinuation { continuation in
    // Each on a serial queue of its own: Dispatch has threads for these beside those that run tasks. So nobody waits
    // for another's work either, until some hundred wait at once.
    DispatchQueue(label: "LMDBURLCache.blocking-work").async { continuation.resume(returning: work()) }
  }
}
