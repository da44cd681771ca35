import Foundation
import FoundationNetworking
import LMDBURLCache
import Synchronization

/// The clients: two caches, and sessions of every kind with them.
final class UserClients: Sendable {
  enum Way: String, CaseIterable, Sendable {
    case data = "data(for:)"
    case dataFromPlain = "data(for:from:)"
    case session = "a session"
    case handler = "a session with a handler"
    case delegate = "a session with a delegate"
    /// A session without a cache, for comparison.
    case plain = "a session without a cache"

    static let caching: [Way] = [.data, .dataFromPlain, .session, .handler, .delegate]
    /// The interfaces that can be cancelled.
    ///
    /// Cancelling Foundation's own async methods can block all sessions, with and without a cache.
    static let cancellable: [Way] = [.data, .dataFromPlain, .handler, .delegate]
    /// Whether the interface reports the arrival of the first byte.
    var streams: Bool { self == .delegate || self == .plain }
  }

  /// The result of a request.
  struct Outcome: Sendable {
    var way: Way
    var status = 0
    var url: URL?
    var body = Data()
    var error: (any Error)?
    /// The time in seconds from the call to the first byte of the body, if the interface reports it.
    var firstByte: Double?
    /// The time in seconds from the call to the end.
    var total = 0.0

    var isCancelled: Bool { (error as? URLError)?.code == .cancelled || error is CancellationError }
    var isTimedOut: Bool { (error as? URLError)?.code == .timedOut }
    /// Whether the connection was lost after a part of the body had been delivered.
    var isCut: Bool { (error as? URLError)?.code == .networkConnectionLost && !body.isEmpty }
  }

  let cache: LMDBURLCache
  /// A cache in shared mode, for many users (RFC 9111 §3.5).
  let sharedCache: LMDBURLCache
  private let plain: URLSession
  private let caching: URLSession
  private let delegated: URLSession
  private let plainDelegated: URLSession
  private let collector = Collector()
  private let challenged: [String: (plain: URLSession, caching: URLSession)]

  init(directory: String, log: @escaping @Sendable (String) -> Void) throws {
    var options = LMDBURLCache.Options()
    options.log = log
    options.partition = { $0.value(forHTTPHeaderField: User.partitionField) ?? "" }
    cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory + "/private"), memoryCapacity: 8 << 20, diskCapacity: 64 << 20,
      options: options)
    options.caching.mode = .shared
    sharedCache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory + "/shared"), memoryCapacity: 8 << 20, diskCapacity: 64 << 20,
      options: options)
    let plainConfiguration = Self.configuration
    let cachingConfiguration = plainConfiguration.caching(with: cache)
    plain = URLSession(configuration: plainConfiguration)
    plainDelegated = URLSession(configuration: plainConfiguration, delegate: collector, delegateQueue: nil)
    caching = URLSession(configuration: cachingConfiguration)
    delegated = URLSession(configuration: cachingConfiguration, delegate: collector, delegateQueue: nil)
    challenged = Dictionary(
      uniqueKeysWithValues: User.challenged.map { [cache] user in
        let delegate = ChallengeResponder(user: user.name)
        let configuration = Self.configuration
        let cachingConfiguration = configuration.caching(with: cache)
        return (
          user.name,
          (
            URLSession(configuration: configuration, delegate: delegate, delegateQueue: nil),
            URLSession(configuration: cachingConfiguration, delegate: delegate, delegateQueue: nil)
          )
        )
      })
  }

  private static let connectionCount = 64

  /// A configuration with its own credential storage, so that sessions do not share credentials.
  private static var configuration: URLSessionConfiguration {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCache = nil
    configuration.httpCookieStorage = nil
    configuration.httpMaximumConnectionsPerHost = connectionCount
    return configuration
  }

  // MARK: Requests

  func ask(_ request: URLRequest, by way: Way) async -> Outcome {
    let began = now()
    var outcome: Outcome
    switch way {
    case .data: outcome = await result(way) { try await self.cache.data(for: request) }
    case .dataFromPlain: outcome = await result(way) { try await self.cache.data(for: request, from: self.plain) }
    case .session: outcome = await result(way) { try await self.caching.data(for: request) }
    case .handler: outcome = await result(way) { try await self.byHandler(request) }
    case .delegate: outcome = await collector.load(request, delegated, way)
    case .plain: outcome = await collector.load(request, plainDelegated, way)
    }
    outcome.total = now() - began
    if let firstByte = outcome.firstByte { outcome.firstByte = firstByte - began }
    return outcome
  }

  /// Sends a request with a session whose delegate has the user's credentials.
  func ask(_ request: URLRequest, as user: User, byDataFrom: Bool) async -> Outcome {
    guard let sessions = challenged[user.name] else { return await ask(request, by: .data) }
    return await result(byDataFrom ? .dataFromPlain : .session) {
      byDataFrom
        ? try await self.cache.data(for: request, from: sessions.plain) : try await sessions.caching.data(for: request)
    }
  }

  func askShared(_ request: URLRequest) async -> Outcome {
    await result(.data) { try await self.sharedCache.data(for: request) }
  }

  private func result(_ way: Way, _ body: () async throws -> (Data, URLResponse)) async -> Outcome {
    var outcome = Outcome(way: way)
    do {
      let (data, response) = try await body()
      outcome.body = data
      outcome.url = response.url
      outcome.status = (response as? HTTPURLResponse)?.statusCode ?? 0
    } catch {
      outcome.error = error
    }
    return outcome
  }

  private func byHandler(_ request: URLRequest) async throws -> (Data, URLResponse) {
    let task = Mutex<URLSessionDataTask?>(nil)
    return try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let made = caching.dataTask(with: request) { data, response, error in
          if let response, error == nil {
            continuation.resume(returning: (data ?? Data(), response))
          } else {
            continuation.resume(throwing: error ?? URLError(.unknown))
          }
        }
        task.withLock { $0 = made }
        made.resume()
        if Task.isCancelled { Self.cancel(made) }
      }
    } onCancel: {
      if let made = task.withLock({ $0 }) { Self.cancel(made) }
    }
  }
}

extension UserClients {
  private static let cancels = DispatchQueue(label: "reliability.cancels")

  /// Cancels a task on a separate queue to avoid a deadlock.
  ///
  /// `cancel()` waits for the session's queue, which may be resuming the Swift task whose cancellation handler
  /// calls this method.
  fileprivate static func cancel(_ task: URLSessionTask) {
    cancels.async { task.cancel() }
  }
}

/// The delegate of sessions, which collects the response of each task.
private final class Collector: NSObject, URLSessionDataDelegate {
  private struct Load {
    var outcome: UserClients.Outcome
    var continuation: CheckedContinuation<UserClients.Outcome, Never>
  }

  private let loads = Mutex<[ObjectIdentifier: Load]>([:])

  func load(_ request: URLRequest, _ session: URLSession, _ way: UserClients.Way) async -> UserClients.Outcome {
    let task = session.dataTask(with: request)
    return await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        loads.withLock {
          $0[ObjectIdentifier(task)] = Load(outcome: UserClients.Outcome(way: way), continuation: continuation)
        }
        task.resume()
        if Task.isCancelled { UserClients.cancel(task) }
      }
    } onCancel: {
      // Cancel only tasks with a stored continuation; others would never resume it.
      if loads.withLock({ $0[ObjectIdentifier(task)] != nil }) { UserClients.cancel(task) }
    }
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    let time = now()
    loads.withLock { loads in
      loads[ObjectIdentifier(dataTask)]?.outcome.body.append(data)
      if loads[ObjectIdentifier(dataTask)]?.outcome.firstByte == nil {
        loads[ObjectIdentifier(dataTask)]?.outcome.firstByte = time
      }
    }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    guard var load = loads.withLock({ $0.removeValue(forKey: ObjectIdentifier(task)) }) else { return }
    load.outcome.error = error
    load.outcome.url = task.response?.url
    load.outcome.status = (task.response as? HTTPURLResponse)?.statusCode ?? 0
    load.continuation.resume(returning: load.outcome)
  }
}

/// A delegate that responds to each challenge with a user's credentials.
private final class ChallengeResponder: NSObject, URLSessionTaskDelegate {
  let user: String

  init(user: String) {
    self.user = user
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    completionHandler(.useCredential, URLCredential(user: user, password: "secret", persistence: .none))
  }
}
