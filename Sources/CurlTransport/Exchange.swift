import FoundationEssentials
import Synchronization

/// The response to a request, shared by the I/O thread that receives it and the tasks that wait for it.
///
/// The I/O thread publishes its results after each round of its loop. One caller waits for the head, then one reader
/// waits for each part of the content. All members can be called from any thread.
final class Exchange: Sendable {
  /// The number of unread bytes above which receiving pauses. libcurl may exceed it by one part of at most 16 KiB.
  static let pausingByteCount = 256 << 10
  /// The number of unread bytes below which receiving resumes.
  static let resumingByteCount = 128 << 10

  /// A head, with the content if all of it has arrived.
  struct Arrival: Sendable {
    let head: ReceivedHead
    let wholeContent: Data?
  }

  /// The results of one round of the I/O thread's loop.
  struct RoundResults {
    var head: ReceivedHead?
    var content = Data()
    var end: Result<Void, any Error>?
    /// Whether receiving is paused until the reader has taken bytes.
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

  /// The number of unread bytes.
  var unreadByteCount: Int { state.withLock { $0.unread.count } }

  /// Whether receiving is paused until the reader has taken bytes.
  var isPaused: Bool { state.withLock { $0.isPaused } }

  /// Publishes results and resumes waiting tasks. Ignores results after the end.
  ///
  /// - Returns: Whether receiving must resume at once, because the reader has taken enough since the pause.
  func publish(_ results: RoundResults) -> Bool {
    var head: (CheckedContinuation<Arrival, any Error>, Result<Arrival, any Error>)?
    var piece: (CheckedContinuation<Data?, any Error>, Result<Data?, any Error>)?
    let goesOn = state.withLock { state in
      guard state.end == nil else { return false }
      if let head = results.head { state.head = head }
      if state.unread.isEmpty { state.unread = results.content } else { state.unread.append(results.content) }
      state.end = results.end
      if let waiter = state.headWaiter, let result = Self.arrival(&state) {
        head = (waiter, result)
        state.headWaiter = nil
      }
      if let reader = state.reader, let result = Self.piece(&state) {
        piece = (reader, result)
        state.reader = nil
      }
      state.isPaused = results.isPaused && state.unread.count >= Self.resumingByteCount
      return results.isPaused && !state.isPaused
    }
    if let (waiter, result) = head { waiter.resume(with: result) }
    if let (reader, result) = piece { reader.resume(with: result) }
    return goesOn
  }

  // MARK: The caller

  /// Waits for the head. Call this once.
  ///
  /// - Parameter start: Starts the transfer, unless the exchange was cancelled.
  func arrival(start: () -> Void) async throws -> Arrival {
    try await withCheckedThrowingContinuation { continuation in
      let end = state.withLock { state in
        if state.end == nil { state.headWaiter = continuation }
        return state.end
      }
      if case .failure(let error)? = end { continuation.resume(throwing: error) } else { start() }
    }
  }

  /// Waits for the next part of the content; nil at its end.
  ///
  /// - Parameter resumeReceiving: Called if receiving was paused, because the reader has taken the unread bytes.
  /// - Throws: The error that ended the response early.
  func nextPiece(resumeReceiving: () -> Void) async throws -> Data? {
    var isResumed = false
    defer { if isResumed { resumeReceiving() } }
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

  /// Ends the exchange for all waiting tasks, unless it has ended.
  ///
  /// - Returns: Whether it had not ended.
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

  /// Returns the result for the caller that waits for the head; nil if there is none yet.
  private static func arrival(_ state: inout State) -> Result<Arrival, any Error>? {
    guard let head = state.head else {
      if case .failure(let error)? = state.end { return .failure(error) }
      return nil
    }
    guard case .success? = state.end else { return .success(Arrival(head: head, wholeContent: nil)) }
    defer { state.unread = Data() }
    return .success(Arrival(head: head, wholeContent: state.unread))
  }

  /// Returns the result for the reader that waits for a part; nil if there is none yet.
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
