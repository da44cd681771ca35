import FoundationEssentials
import Synchronization

/// The response to one request, between the I/O thread that receives it and the tasks that wait for it.
///
/// The I/O thread publishes what a round of its loop has brought; one caller waits for the head, and then one reader
/// for each piece. All members may be called from any thread.
final class Exchange: Sendable {
  /// The maximum number of bytes that wait for the reader before receiving pauses. libcurl's piece of at most 16 KiB
  /// may exceed it.
  static let pausingByteCount = 256 << 10
  /// Receiving goes on when fewer bytes than this wait.
  static let resumingByteCount = 128 << 10

  /// A head, with the content if all of it has come.
  struct Arrival: Sendable {
    let head: ReceivedHead
    let wholeContent: Data?
  }

  /// What a round has brought.
  struct News {
    var head: ReceivedHead?
    var content = Data()
    var end: Result<Void, any Error>?
    /// Whether receiving has paused until the reader has taken something.
    var isPaused = false
  }

  private struct State {
    var head: ReceivedHead?
    var unread = Data()
    var end: Result<Void, any Error>?
    var isPaused = false
    var headWaiter: CheckedContinuation<Arrival, any Error>?
    var reader: CheckedContinuation<Data?, any Error>?
  }

  private let state = Mutex(State())

  // MARK: The I/O thread

  /// The number of bytes that wait for the reader.
  var unreadByteCount: Int { state.withLock { $0.unread.count } }

  /// Whether receiving has paused until the reader has taken something.
  var isPaused: Bool { state.withLock { $0.isPaused } }

  /// Hands over what has come, and wakes who waits for it. Nothing is taken after the end.
  ///
  /// - Returns: whether receiving must go on at once, as the reader has taken enough since it paused.
  func publish(_ news: News) -> Bool {
    var head: (CheckedContinuation<Arrival, any Error>, Result<Arrival, any Error>)?
    var piece: (CheckedContinuation<Data?, any Error>, Result<Data?, any Error>)?
    let goesOn = state.withLock { state in
      guard state.end == nil else { return false }
      if let head = news.head { state.head = head }
      if state.unread.isEmpty { state.unread = news.content } else { state.unread.append(news.content) }
      state.end = news.end
      if let waiter = state.headWaiter, let result = Self.arrival(&state) {
        head = (waiter, result)
        state.headWaiter = nil
      }
      if let reader = state.reader, let result = Self.piece(&state) {
        piece = (reader, result)
        state.reader = nil
      }
      state.isPaused = news.isPaused && state.unread.count >= Self.resumingByteCount
      return news.isPaused && !state.isPaused
    }
    if let (waiter, result) = head { waiter.resume(with: result) }
    if let (reader, result) = piece { reader.resume(with: result) }
    return goesOn
  }

  // MARK: The caller

  /// Waits for the head. Called once.
  ///
  /// - Parameter start: Starts the transfer, unless the exchange has been cancelled.
  func arrival(start: () -> Void) async throws -> Arrival {
    try await withCheckedThrowingContinuation { continuation in
      let end = state.withLock { state in
        if state.end == nil { state.headWaiter = continuation }
        return state.end
      }
      if case .failure(let error)? = end { continuation.resume(throwing: error) } else { start() }
    }
  }

  /// Waits for the next piece of the content; nil at its end.
  ///
  /// - Parameter readOn: Called if receiving must go on, as enough has been taken.
  /// - Throws: The reason for which the response ended early.
  func nextPiece(readOn: () -> Void) async throws -> Data? {
    var isResumed = false
    defer { if isResumed { readOn() } }
    return try await withCheckedThrowingContinuation { continuation in
      let result = state.withLock { state -> Result<Data?, any Error>? in
        guard let result = Self.piece(&state) else {
          state.reader = continuation
          return nil
        }
        isResumed = state.isPaused
        state.isPaused = false
        return result
      }
      if let result { continuation.resume(with: result) }
    }
  }

  /// Ends the exchange for all who wait, unless it has ended.
  ///
  /// - Returns: whether it had not ended.
  @discardableResult
  func fail(_ error: any Error) -> Bool {
    let waiting = state.withLock {
      state -> (CheckedContinuation<Arrival, any Error>?, CheckedContinuation<Data?, any Error>?)? in
      guard state.end == nil else { return nil }
      defer { (state.headWaiter, state.reader) = (nil, nil) }
      state.end = .failure(error)
      state.unread = Data()
      return (state.headWaiter, state.reader)
    }
    guard let (headWaiter, reader) = waiting else { return false }
    headWaiter?.resume(throwing: error)
    reader?.resume(throwing: error)
    return true
  }

  private static func arrival(_ state: inout State) -> Result<Arrival, any Error>? {
    guard let head = state.head else {
      if case .failure(let error)? = state.end { return .failure(error) }
      return nil
    }
    guard case .success? = state.end else { return .success(Arrival(head: head, wholeContent: nil)) }
    defer { state.unread = Data() }
    return .success(Arrival(head: head, wholeContent: state.unread))
  }

  private static func piece(_ state: inout State) -> Result<Data?, any Error>? {
    guard state.unread.isEmpty else {
      defer { state.unread = Data() }
      return .success(state.unread)
    }
    switch state.end {
    case .success?: return .success(nil)
    case .failure(let error)?: return .failure(error)
    case nil: return nil
    }
  }
}
