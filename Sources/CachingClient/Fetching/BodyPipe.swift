import Synchronization

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// A pipe for the chunks of a response, from the task that receives them to the caller that reads them.
///
/// It has one sender and one reader. While the response is being collected for the store, the sender does not wait. The
/// pipe and the collector then share the chunks' memory, so the collector's limit bounds the pipe too. Otherwise `send`
/// waits until the pipe has space, and a slow reader slows the transfer as it would without a cache.
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
      // Remove read chunks only when they are more than half of the array. This keeps the cost per chunk constant.
      if firstIndex * 2 > chunks.count {
        chunks.removeFirst(firstIndex)
        firstIndex = 0
      }
      return chunk
    }
  }

  /// The number of unread bytes from which a sender waits, unless the response is being collected.
  static let unreadByteLimit = 256 * 1024

  private let state = Mutex(State())
  private let whenAbandoned: @Sendable () -> Void

  /// - Parameter whenAbandoned: Called once, without locks held, if the reader is cancelled or released before
  ///   ``finish(throwing:)``.
  init(whenAbandoned: @escaping @Sendable () -> Void) {
    self.whenAbandoned = whenAbandoned
  }

  /// Sends a chunk to the reader.
  ///
  /// - Parameter waitingForSpace: Whether to wait until the pipe has space for more or is abandoned.
  /// - Returns: Whether the pipe still has a reader.
  func send(_ chunk: Data, waitingForSpace: Bool) async -> Bool {
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
    guard isRead, waitingForSpace, reader == nil else { return isRead }

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

  /// Ends the body. With an error, the reader receives the chunks sent before and then the error.
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

  /// Creates the body that reads from this pipe. Call this once.
  ///
  /// The pipe is abandoned when the body and its iterators are released.
  func makeBody() -> ResponseBodyStream {
    let reader = Reader(pipe: self)
    return ResponseBodyStream(next: { try await reader.next() })
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

  /// The reading side. The pipe is abandoned when this object is released.
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
