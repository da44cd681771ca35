import Foundation
import LMDBURLCache
import Synchronization

struct HotCall {
  let name: String
  /// Performs the call; the argument is the number of earlier calls.
  let run: (Int) -> Void
}

/// The size of a usual response.
let usualByteCount = 11 << 10

/// Loads a response that is fresh in the cache: the task then completes on this thread, without suspending.
func load(_ request: URLRequest, through cache: LMDBURLCache, byteCount: Int = 1 << 10) {
  let task = Task.immediate {
    let data = try await cache.data(for: request).0
    loadedByteCount.store(data.count, ordering: .relaxed)
  }
  if loadedByteCount.exchange(0, ordering: .relaxed) != byteCount { fatalError("missed") }
  withExtendedLifetime(task) {}
}

let loadedByteCount = Atomic(0)
