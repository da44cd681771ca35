import Dispatch
import LMDBURLCache
import Logging
import ServiceLifecycle

/// Makes the responses of a cache durable before the process exits.
struct CacheService: Service {
  let cache: LMDBURLCache

  func run() async throws {
    // The error says that the task was cancelled. The responses are flushed in this case, too.
    try? await gracefulShutdown()
    await cache.finishBackgroundWork()
    await withCheckedContinuation { continuation in
      // A flush blocks its thread until the disk is done, so it does not run on a thread of Swift's pool.
      DispatchQueue.global().async {
        cache.flush()
        continuation.resume()
      }
    }
  }
}

/// Runs a server whose cache is flushed after its last request.
func run(_ server: some Service, with cache: LMDBURLCache, logger: Logger) async throws {
  let services: [any Service] = [CacheService(cache: cache), server]
  let group = ServiceGroup(services: services, gracefulShutdownSignals: [.sigterm], logger: logger)
  try await group.run()
}
