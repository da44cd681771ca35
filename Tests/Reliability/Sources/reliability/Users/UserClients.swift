import Foundation
import LMDBURLCache
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The ways in: two caches, and sessions of every kind on them.
final class UserClients: Sendable {
  enum Way: String, CaseIterable, Sendable {
    case data = "data(for:)"
    case dataFromPlain = "data(for:from:)"
    case session = "a session"
    case handler = "a session with a handler"
    case delegate = "a session with a delegate"
    /// Without a cache, to compare with.
    case plain = "a plain session"

    static let caching: [Way] = [.data, .dataFromPlain, .session, .handler, .delegate]
    /// Foundation's own async methods can block all sessions when they are cancelled, with and without a cache.
    static let cancellable: [Way] = [.data, .dataFromPlain, .handler, .delegate]
    /// Those that tell when the first byte comes.
    var streams: Bool { self == .delegate || self == .plain }
  }

  /// What a caller got.
  struct Outcome: Sendable {
    var way: Way
    var status = 0
    var url: URL?
    var body = Data()
    var error: (any Error)?
    /// Seconds from the call to the first byte of the body, where the way tells, and to the end.
    var firstByte: Double?
    var total = 0.0

    var isCancelled: Bool { (error as? URLError)?.code == .cancelled || error is CancellationError }
    var isTimedOut: Bool { (error as? URLError)?.code == .timedOut }
  }

  let cache: LMDBURLCache
  /// One for many users (RFC 9111, section 3.5).
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
    // As many connections as the sessions have: with the default of 6, requests would wait for those of late redirects.
    let configuration = URLSessionConfiguration.default
    configuration.httpMaximumConnectionsPerHost = Self.connectionCount
    options.transport = .urlSession(configuration)
    cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory + "/private"), memoryCapacity: 8 << 20, diskCapacity: 64 << 20,
      options: options)
    // Its default keeps users' cookies apart.
    options.transport = nil
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
        let delegate = Answering(user: user.name)
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

  /// With a credential storage of its own, since sessions that share one share what is in it.
  private static var configuration: URLSessionConfiguration {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCache = nil
    configuration.httpCookieStorage = nil
    configuration.httpMaximumConnectionsPerHost = connectionCount
    return configuration
  }

  // MARK: Asking

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

  /// Asks by a session whose delegate has the user's credentials.
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

  /// Cancels on a queue of its own. `cancel()` waits for the session's queue, which may be resuming the very Swift task
  /// whose cancellation handler this is: each would wait for the other.
  fileprivate static func cancel(_ task: URLSessionTask) {
    cancels.async { task.cancel() }
  }
}

/// The delegate of sessions whose tasks are awaited one by one.
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
      // A task that is cancelled before it is known here would never be heard of.
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

/// Answers each challenge with a user's name.
private final class Answering: NSObject, URLSessionTaskDelegate {
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
