import Dispatch

/// Runs blocking work, such as a disk read, on a thread that may block, and suspends the task until it returns.
///
/// Swift runs tasks on one thread per processor. If one of these threads blocks, other tasks cannot run.
package func onBlockingThread<Result: Sendable>(_ work: @escaping @Sendable () -> Result) async -> Result {
  await withCheckedContinuation { continuation in
    // Each call has its own serial queue, so that calls do not wait for each other. Dispatch runs these queues on
    // threads that run no tasks, up to some hundred of them.
    DispatchQueue(label: "LMDBURLCache.blocking-work").async { continuation.resume(returning: work()) }
  }
}
