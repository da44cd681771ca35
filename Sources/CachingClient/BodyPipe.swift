import FoundationEssentials
import Synchronization

/// Hands chunks from the task that receives a response to the one caller that reads it.
///
/// One sender, one reader. While a response is being collected the sender never waits: what lies in the pipe is the same memory
/// that is being collected, so the collection's limit bounds it. Afterwards `send` waits for room, and a slow reader slows the
/// transfer as it would without a cache.
final class BodyPipe: Sendable {
  private struct State {
    var chunks: [Data] = []
    var firstIndex = 0
    var byteCount = 0
    var isEnded = false
    var failure: (any Error)?
    var isAbandoned = false
    var reader: CheckedContinuation<Data?, any Error>?
    var sender: CheckedContinuation<Void, Never>?

    mutating func takeFirst() -> Data? {
      guard firstIndex < chunks.count else { return nil }
      let chunk = chunks[firstIndex]
      chunks[firstIndex] = Data()
      firstIndex += 1
      byteCount -= chunk.count
      // Moving the rest down once half is used up keeps the cost per chunk constant.
      if firstIndex * 2 > chunks.count {
        chunks.removeFirst(firstIndex)
        firstIndex = 0
      }
      return chunk
    }
  }

  /// A sender that must wait does so while at least this many bytes are unread.
  static let unreadByteLimit = 256 * 1024

  private let state = Mutex(State())
  private let whenAbandoned: @Sendable () -> Void

  /// - Parameter whenAbandoned: called once, without any lock, if the reader goes away before the end.
  init(whenAbandoned: @escaping @Sendable () -> Void) {
    self.whenAbandoned = whenAbandoned
  }

  /// Adds a chunk; with `waitingForRoom`, returns once there is room for more or nobody reads any longer.
  ///
  /// - Returns: `false` if nobody reads any longer.
  func send(_ chunk: Data, waitingForRoom: Bool) async -> Bool {
    let (reader, isRead) = state.withLock { state -> (CheckedContinuation<Data?, any Error>?, Bool) in
      guard !state.isAbandoned else { return (nil, false) }
      if let reader = state.reader {
        state.reader = nil
        return (reader, true)
      }
      state.chunks.append(chunk)
      state.byteCount += chunk.count
      return (nil, true)
    }
    reader?.resume(returning: chunk)
    guard isRead, waitingForRoom, reader == nil else { return isRead }

    await withCheckedContinuation { continuation in
      let resumesNow = state.withLock { state in
        guard state.byteCount >= Self.unreadByteLimit, !state.isAbandoned else { return true }
        state.sender = continuation
        return false
      }
      if resumesNow { continuation.resume() }
    }
    return state.withLock { !$0.isAbandoned }
  }

  /// Ends the body; with an error, reading throws it after the chunks sent before.
  func finish(throwing failure: (any Error)? = nil) {
    let reader = state.withLock { state in
      guard !state.isEnded else { return nil as CheckedContinuation<Data?, any Error>? }
      state.isEnded = true
      state.failure = failure
      defer { state.reader = nil }
      return state.reader
    }
    if let failure { reader?.resume(throwing: failure) } else { reader?.resume(returning: nil) }
  }

  /// The body that reads from this pipe. To be taken once: the pipe is abandoned when it and its iterators are gone.
  func makeBody() -> ResponseBody {
    let reader = Reader(pipe: self)
    return ResponseBody(next: { try await reader.next() })
  }

  private func next() async throws -> Data? {
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let (result, sender) = state.withLock {
          state -> (Result<Data?, any Error>?, CheckedContinuation<Void, Never>?) in
          if state.isAbandoned { return (.failure(CancellationError()), nil) }
          if let chunk = state.takeFirst() {
            guard state.byteCount < Self.unreadByteLimit else { return (.success(chunk), nil) }
            defer { state.sender = nil }
            return (.success(chunk), state.sender)
          }
          if let failure = state.failure { return (.failure(failure), nil) }
          if state.isEnded { return (.success(nil), nil) }
          state.reader = continuation
          return (nil, nil)
        }
        sender?.resume()
        if let result { continuation.resume(with: result) }
      }
    } onCancel: {
      abandon()
    }
  }

  fileprivate func abandon() {
    let (reader, sender, wasReadable) = state.withLock { state in
      guard !state.isAbandoned else {
        return (nil as CheckedContinuation<Data?, any Error>?, nil as CheckedContinuation<Void, Never>?, false)
      }
      state.isAbandoned = true
      let wasReadable = !state.isEnded
      defer {
        state.reader = nil
        state.sender = nil
        state.chunks = []
      }
      return (state.reader, state.sender, wasReadable)
    }
    reader?.resume(throwing: CancellationError())
    sender?.resume()
    if wasReadable { whenAbandoned() }
  }

  /// Stands for the reading side: its end is the end of all interest in the body.
  private final class Reader: Sendable {
    let pipe: BodyPipe

    init(pipe: BodyPipe) {
      self.pipe = pipe
    }

    func next() async throws -> Data? {
      try await pipe.next()
    }

    deinit {
      pipe.abandon()
    }
  }
}
