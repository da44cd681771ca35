import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// One request and its response: receives the calls of the session delegate and returns a head and chunks.
///
/// The delegate's calls run on the queue of all sessions, so they do little. The reader does the expensive work.
final class SessionExchange: Sendable {
  private struct Arrival: Sendable {
    let response: HTTPURLResponse
    let lacksContent: Bool
  }

  private enum Head {
    case awaited(CheckedContinuation<Arrival, any Error>?)
    case delivered
  }

  private struct State {
    var head = Head.awaited(nil)
    /// The received chunks that are not read yet.
    ///
    /// The reader joins them, because a copy on the queue of all sessions would delay every transfer.
    var unread: [Data] = []
    var unreadByteCount = 0
    var end: Result<Void, any Error>?
    var reader: CheckedContinuation<Data?, any Error>?
    var task: URLSessionDataTask?
    var startedAt = ContinuousClock.now

    var isHeadAwaited: Bool {
      if case .awaited = head { true } else { false }
    }
  }

  private let state = Mutex(State())
  private let timeLimit: TimeInterval
  private let maximumUnreadByteCount: Int

  /// - Parameters:
  ///   - timeLimit: The time without data, in seconds, after which Foundation ends the task.
  ///   - maximumUnreadByteCount: The number of unread bytes above which the transfer fails, because Foundation has no
  ///     way to make the origin wait.
  init(timeLimit: TimeInterval, maximumUnreadByteCount: Int) {
    self.timeLimit = timeLimit.asTimeLimit
    self.maximumUnreadByteCount = maximumUnreadByteCount
  }

  /// Creates a task, starts it, and waits for its head.
  ///
  /// - Parameter make: Creates the task. Called on this library's queue, because creating a task waits for the queue of
  ///   all sessions and must not block a thread that runs Swift tasks.
  func start(_ make: @escaping @Sendable () -> URLSessionDataTask) async throws -> IncomingResponse {
    let arrival = try await withCheckedThrowingContinuation { continuation in
      let end = state.withLock { state -> Result<Void, any Error>? in
        if state.end == nil { state.head = .awaited(continuation) }
        return state.end
      }
      if case .failure(let error)? = end { return continuation.resume(throwing: error) }
      SessionCalls.queue.async {
        guard self.state.withLock({ $0.end == nil }) else { return }
        let task = make()
        self.state.withLock { state in
          state.task = task
          state.startedAt = .now
        }
        task.resume()
      }
    }
    let body = ResponseBodyStream(next: { [body = BodyReader(exchange: self)] in try await body.next() })
    var incoming = IncomingResponse(
      head: arrival.response.head, body: body,
      isContentDecoded: arrival.response.value(forHTTPHeaderField: "Content-Encoding") != nil)
    incoming.lacksContent = arrival.lacksContent
    return incoming
  }

  /// Fails the waiting callers with `CancellationError` and cancels the transfer.
  func cancel() {
    finish(.failure(CancellationError()))
    // Use the queue that creates the task: the task then either exists already or is never created.
    SessionCalls.queue.async { self.state.withLock { $0.task }?.cancel() }
  }

  func cancelUnlessOver() {
    if state.withLock({ $0.end == nil }) { cancel() }
  }

  // MARK: Receiving

  /// - Parameter isOver: Whether the task has ended, so that no content follows.
  func receive(_ response: URLResponse, isOver: Bool = false) {
    guard let response = response as? HTTPURLResponse, !response.isInterim else { return }
    let continuation = state.withLock { state -> CheckedContinuation<Arrival, any Error>? in
      guard case .awaited(let continuation?) = state.head else { return nil }
      state.head = .delivered
      return continuation
    }
    // Foundation drops the content of a redirect without a `Location`.
    continuation?.resume(returning: Arrival(response: response, lacksContent: isOver && response.isRedirect))
  }

  func receive(_ data: Data, of task: URLSessionTask) {
    if state.withLock({ $0.isHeadAwaited }), let response = task.response { receive(response) }
    typealias Next = (reader: CheckedContinuation<Data?, any Error>?, isFull: Bool)
    let next = state.withLock { state -> Next in
      guard state.end == nil else { return (nil, false) }
      if let reader = state.reader {
        state.reader = nil
        return (reader, false)
      }
      state.unread.append(data)
      state.unreadByteCount += data.count
      return (nil, state.unreadByteCount > maximumUnreadByteCount)
    }
    next.reader?.resume(returning: data)
    guard next.isFull else { return }
    let text =
      "More than \(maximumUnreadByteCount) bytes of the response were not read. Read it faster, or fetch it over libcurl."
    finish(.failure(URLError(.dataLengthExceedsMaximum, text)))
    SessionCalls.queue.async { self.state.withLock { $0.task }?.cancel() }
  }

  // MARK: Redirects

  /// Refuses a redirect, unless the exchange has ended.
  ///
  /// Foundation processes the reply on the task's queue, and stops the process if the task no longer waits for it. An
  /// exchange records its end under this lock before it cancels its task, so a reply under the same lock comes before
  /// the cancellation. A timeout on the task's queue could still come before the reply. When half of the time limit has
  /// passed, this method therefore cancels the task instead, and the redirect has no content.
  func refuseRedirect(_ response: HTTPURLResponse, _ refuse: () -> Void) {
    let isRefused = state.withLock { state in
      guard state.end == nil else { return true }
      // Foundation restarts the time limit with each line and each chunk, so it has not passed yet.
      guard state.startedAt.duration(to: .now) < .seconds(timeLimit / 2) else { return false }
      refuse()
      return true
    }
    guard !isRefused else { return }
    receive(response, isOver: true)
    finish(.success(()))
    SessionCalls.queue.async { self.state.withLock { $0.task }?.cancel() }
  }

  func complete(_ task: URLSessionTask, _ error: (any Error)?) {
    // The head of a redirect arrives only at the end.
    if error == nil, let response = task.response { receive(response, isOver: true) }
    finish(error.map { .failure($0) } ?? .success(()))
  }

  private func finish(_ end: Result<Void, any Error>) {
    typealias Waiting = (
      head: CheckedContinuation<Arrival, any Error>?, reader: CheckedContinuation<Data?, any Error>?
    )
    let waiting = state.withLock { state -> Waiting in
      guard state.end == nil else { return (nil, nil) }
      state.end = end
      var waiting: Waiting = (nil, state.reader)
      state.reader = nil
      if case .awaited(let head) = state.head {
        waiting.head = head
        state.head = .delivered
      }
      return waiting
    }
    switch end {
    case .success:
      // The transfer ended without a head.
      waiting.head?.resume(throwing: URLError(.badServerResponse, "The transfer ended without a response."))
      waiting.reader?.resume(returning: nil)
    case .failure(let error):
      waiting.head?.resume(throwing: error)
      waiting.reader?.resume(throwing: error)
    }
  }

  // MARK: Reading

  /// Returns the next chunk, or nil at the end; throws if the transfer ended early.
  func nextChunk() async throws -> Data? {
    try await withCheckedThrowingContinuation { continuation in
      let now = state.withLock { state -> Result<[Data]?, any Error>? in
        if !state.unread.isEmpty {
          defer {
            state.unread = []
            state.unreadByteCount = 0
          }
          return .success(state.unread)
        }
        switch state.end {
        case .success?: return .success(nil)
        case .failure(let error)?: return .failure(error)
        case nil:
          state.reader = continuation
          return nil
        }
      }
      if let now { continuation.resume(with: now.map { $0.map(Self.joined) }) }
    }
  }

  private static func joined(_ chunks: [Data]) -> Data {
    if chunks.count == 1 { return chunks[0] }
    var all = Data(capacity: chunks.reduce(0) { $0 + $1.count })
    for chunk in chunks { all.append(chunk) }
    return all
  }

  /// The reader of a body; cancels the transfer when it is released.
  private final class BodyReader: Sendable {
    let exchange: SessionExchange

    init(exchange: SessionExchange) {
      self.exchange = exchange
    }

    deinit {
      exchange.cancelUnlessOver()
    }

    func next() async throws -> Data? {
      try await withTaskCancellationHandler {
        try await exchange.nextChunk()
      } onCancel: {
        exchange.cancel()
      }
    }
  }
}

extension HTTPURLResponse {
  /// Whether the final response follows. None follows 101, which Foundation requests only if its caller does.
  fileprivate var isInterim: Bool { statusCode < 200 && statusCode != 101 }

  /// Whether Foundation treats the response as a redirect, with or without a `Location`.
  fileprivate var isRedirect: Bool { (300..<400).contains(statusCode) && statusCode != 304 }
}
