import Foundation
import FoundationNetworking
import LMDBURLCache
import StoreContract
import Synchronization

/// The cache and the sessions of the series `longrun`, and the operations with them.
final class LongRunClients: Sendable {
  private let cache: LMDBURLCache
  private let configuration: @Sendable () -> URLSessionConfiguration
  private let session: URLSession
  private let directory: String
  private let port: Int
  private let next = Atomic<Int>(0)
  private let failures = Atomic<Int>(0)

  /// The number of requests that failed and were not cancelled.
  var failureCount: Int { failures.load(ordering: .relaxed) }

  init(_ scenario: LongRunScenario, directory: String, port: Int) throws {
    let cache = try Self.open(directory + "/cache")
    self.cache = cache
    self.directory = directory
    self.port = port
    let caches = scenario.caches
    configuration = {
      let plain = URLSessionConfiguration.ephemeral
      plain.urlCache = nil
      return caches ? plain.caching(with: cache) : plain
    }
    session = URLSession(configuration: configuration())
  }

  private static func open(_ directory: String) throws -> LMDBURLCache {
    var options = LMDBURLCache.Options()
    options.log = { say("log: \($0)") }
    // Both tiers are full within seconds.
    return try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: 2 << 20, diskCapacity: 16 << 20, options: options)
  }

  /// Waits until nothing is left to do for earlier operations.
  func settle() async {
    await cache.finishBackgroundWork()
    _ = cache.flush()
  }

  func run(_ operation: LongRunScenario.Operation, _ random: inout SeededRandom) async {
    let number = next.wrappingAdd(1, ordering: .relaxed).newValue
    let cancels = random.below(2) == 0
    let host = random.below(LongRunOrigin.hostCount)
    func request(_ path: String, host: Int) -> URLRequest {
      URLRequest(url: LongRunOrigin.url(path, host: host, port: port))
    }
    let microseconds = random.below(random.below(2) == 0 ? 2_000 : 20_000)
    func run(_ body: @escaping @Sendable () async throws -> Void) async {
      await perform(cancelsAfter: cancels ? microseconds : nil, body)
    }
    switch operation {
    case .hit:
      let index = random.below(200)
      await run { [cache, hit = request("hit/\(index)", host: index)] in _ = try await cache.data(for: hit) }
    case .miss:
      await run { [cache, miss = request("miss/\(number)", host: host)] in _ = try await cache.data(for: miss) }
    case .delayed:
      // Some of them share a fetch.
      let pair = number / 2
      let delayed = request("delayed/\(pair)", host: pair % LongRunOrigin.hostCount)
      await run { [cache] in _ = try await cache.data(for: delayed) }
    case .validation:
      let index = random.below(100)
      await run { [cache, stale = request("validation/\(index)", host: index)] in _ = try await cache.data(for: stale) }
    case .unstorable:
      await run { [cache, one = request("unstorable/\(number)", host: host)] in _ = try await cache.data(for: one) }
    case .stream:
      let abandons = random.below(2) == 0
      await run { [cache, stream = request("stream/\(number)", host: host)] in
        for try await _ in try await cache.bytes(for: stream).0 where abandons { return }
      }
    case .purge:
      await run { [cache] in _ = try await cache.purge(.host("host\(host).localhost"), mode: cancels ? .soft : .hard) }
    case .shortCache:
      await run { [path = directory + "/short\(number % 8)", miss = request("miss/\(number)", host: host)] in
        _ = try await Self.open(path).data(for: miss)
      }
    case .task:
      let path = random.below(2) == 0 ? "hit/\(random.below(200))" : "miss/\(number)"
      await run { [session, task = request(path, host: host)] in _ = try await Self.data(for: task, session) }
    case .shortSession:
      await run { [configuration, task = request("miss/\(number)", host: host)] in
        let session = URLSession(configuration: configuration())
        defer { session.finishTasksAndInvalidate() }
        try await Self.data(for: task, session)
      }
    case .dataFrom:
      await run { [cache, session, miss = request("miss/\(number)", host: host)] in
        _ = try await cache.data(for: miss, from: session)
      }
    }
  }

  private func perform(cancelsAfter microseconds: Int?, _ body: @escaping @Sendable () async throws -> Void) async {
    let task = Task { try await body() }
    if let microseconds {
      // The task that waits is never cancelled.
      try? await Task.sleep(for: .microseconds(microseconds))
      task.cancel()
    }
    do { try await task.value } catch {
      if microseconds == nil, failures.add(1, ordering: .relaxed).oldValue < 5 { say("a request failed: \(error)") }
    }
  }

  // MARK: Tasks

  private static let cancels = DispatchQueue(label: "reliability.cancels")

  /// Runs a task with a completion handler.
  ///
  /// Cancelling Foundation's own async methods can block all sessions, and so can `cancel()` on a thread that runs
  /// Swift tasks.
  private static func data(for request: URLRequest, _ session: URLSession) async throws {
    let task = Mutex<URLSessionDataTask?>(nil)
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
        let made = session.dataTask(with: request) { _, _, error in
          if let error { continuation.resume(throwing: error) } else { continuation.resume() }
        }
        task.withLock { $0 = made }
        made.resume()
        if Task.isCancelled { cancels.async { made.cancel() } }
      }
    } onCancel: {
      if let made = task.withLock({ $0 }) { cancels.async { made.cancel() } }
    }
  }
}
