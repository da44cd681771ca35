import FoundationEssentials
import Synchronization

/// A body that arrives from the origin, for any number of readers, each at its own speed.
///
/// The *sender* is the task of the fetch, which passes the chunks from the transport on. The body is in one of three
/// modes:
/// - *Collecting*: all bytes are kept in memory, for the store. The sender does not wait.
/// - *Storing*: a task writes the bytes to a destination. Readers get those that are no longer in memory from there.
///   The sender waits only while the destination is too slow, and never for a reader.
/// - *Passing*: the body is not stored. The sender waits for the fastest reader. A slower one gets
///   ``ArrivingBodyError/leftBehind`` when the bytes that it needs are gone.
///
/// Each change goes through ``update(_:)``, which then resumes those that waited for it. Continuations are resumed
/// without the lock.
final class ArrivingBody: Sendable {
  private let state = Mutex(ArrivingBodyState())
  private let whenAbandoned: @Sendable () -> Void
  private let startedAt = ContinuousClock.now
  /// The sender may wait for the destination for this time, and for an eighth of the transfer's time.
  private let waitLimit: Duration

  /// - Parameters:
  ///   - waitLimit: How long the sender may wait for the destination, in addition to an eighth of the transfer's time.
  ///   - whenAbandoned: Called without locks held when the last reader is cancelled or released before the end.
  init(waitLimit: Duration, whenAbandoned: @escaping @Sendable () -> Void) {
    self.waitLimit = waitLimit
    self.whenAbandoned = whenAbandoned
  }

  /// Changes the state, and then resumes those whose wait is over.
  private func update<Result: Sendable>(_ change: (inout ArrivingBodyState) -> Result) -> Result {
    let (result, ready) = state.withLock { state in
      let result = change(&state)
      return (result, state.takeReady())
    }
    ready.resume()
    return result
  }

  // MARK: Sending

  /// Appends bytes that have arrived. Then waits as its mode requires.
  ///
  /// - Returns: Whether the rest is needed.
  func send(_ chunk: Data) async -> Bool {
    let isFull = update { state in
      state.append(chunk)
      return state.isFull
    }
    if isFull { await waitForSpace() }
    return state.withLock { $0.isNeeded }
  }

  /// Waits for the destination or for a reader, as the mode requires.
  ///
  /// If the destination has taken too much of the transfer's time, storing ends.
  private func waitForSpace() async {
    let start = ContinuousClock.now
    let left = isStoring ? waitLeft : nil
    let alarm = left.map { left in
      Alarm(at: start + left) { [self] in
        update { if $0.sender != nil { $0.stopSlowStoring() } }
        return nil
      }
    }
    await withCheckedContinuation { continuation in update { $0.sender = continuation } }
    alarm?.cancel()
    state.withLock { if $0.isStoring { $0.waited += .now - start } }
  }

  /// Records that the last bytes have arrived. Readers get the end only after ``finish(throwing:)``.
  func noteArrival() {
    update { $0.hasArrived = true }
  }

  /// Ends the body. With an error, readers receive what has arrived and then the error.
  func finish(throwing failure: (any Error)? = nil) {
    update { $0.end(throwing: failure) }
  }

  /// Returns all bytes, which were collected.
  func collected() -> Data { state.withLock { $0.collected } }

  // MARK: Storing

  /// Begins to write to a destination. Returns the task, which ends when the destination has all bytes, or storing has
  /// ended.
  func store(in destination: any BodyDestination) -> Task<Void, Never> {
    update { $0.store(in: destination) }
    return Task { await self.writeAll(to: destination) }
  }

  /// Stops collecting or storing: the rest of the body is only passed on.
  func stopStoring() {
    update { $0.stopStoring() }
  }

  /// Whether storing has ended because the destination was too slow for the transfer.
  var isTooSlow: Bool { state.withLock { $0.isTooSlow } }

  /// Whether the bytes are written to a destination, without a failure so far.
  var isStoring: Bool { state.withLock { $0.isStoring } }

  private func writeAll(to destination: any BodyDestination) async {
    while let pieces = await nextPieces() {
      guard await onBlockingThread({ destination.write(pieces) }) else { return stopStoring() }
      update { $0.noteReadable(destination.readableByteCount, isStored: false) }
    }
    guard isStoring else { return }
    guard await onBlockingThread({ destination.complete() }) else { return stopStoring() }
    update { $0.noteReadable(destination.readableByteCount, isStored: true) }
  }

  /// Waits for bytes to write; nil if all are taken, or storing has ended.
  private func nextPieces() async -> [Data]? {
    await withCheckedContinuation { continuation in update { $0.writer = continuation } }
    return state.withLock { $0.takePieces() }
  }

  /// Waits until the destination has all of the body, after ``noteArrival()``. Storing ends if that takes too long.
  ///
  /// - Parameter writing: The task of ``store(in:)``.
  /// - Returns: Whether the destination has it.
  func waitUntilStored(by writing: Task<Void, Never>) async -> Bool {
    let wait = BoundedWait()
    Task {
      await writing.value
      wait.end()
    }
    await wait.wait(atMost: max(.zero, waitLeft))
    return update { state in
      state.stopSlowStoring()
      return state.isStored
    }
  }

  /// How long the sender may still wait for the destination.
  private var waitLeft: Duration {
    waitLimit + (.now - startedAt) / 8 - state.withLock { $0.waited }
  }

  // MARK: Reading

  /// Whether a body that was made is still being read.
  var hasReaders: Bool { state.withLock { $0.hasReaders } }

  /// Creates a body that reads from the beginning; nil if the beginning is gone. It can be read once.
  ///
  /// Its reader is gone when the body and its iterators are released.
  ///
  /// - Parameter limits: How long the reader waits for its next bytes. After ``ArrivingBodyError/stalled(until:)`` it
  ///   can go on reading.
  func makeBody(waiting limits: WaitLimits = WaitLimits()) -> ResponseBodyStream? {
    guard let number = state.withLock({ $0.addReader(limits) }) else { return nil }
    let reader = ReaderHandle(body: self, number: number)
    return ResponseBodyStream(next: { try await reader.next() })
  }

  private func next(_ number: UInt64) async throws -> Data? {
    while true {
      switch update({ $0.takeStep(of: number) }) {
      case .chunk(let chunk): return chunk
      case .end: return nil
      case .failed(let error):
        // The sender must not wait for a reader that has lost its place.
        leave(number)
        throw error
      case .read(let destination, let range):
        try Task.checkCancellation()
        guard let piece = await onBlockingThread({ destination.read(range) }) else {
          leave(number)
          throw ArrivingBodyError.leftBehind
        }
        update { $0.advance(number, by: piece.count) }
        return piece
      case .wait: try await wait(number)
      }
    }
  }

  private func wait(_ number: UInt64) async throws {
    if let time = state.withLock({ $0.beginWait(number) }) {
      let alarm = Alarm(at: time) { [weak self] in self?.endWait(number) }
      state.withLock { $0.keep(alarm, of: number) }
    }
    do {
      try await withTaskCancellationHandler {
        try await withCheckedThrowingContinuation { continuation in
          if let error = update({ $0.wait(number, continuation) }) { continuation.resume(throwing: error) }
        }
      } onCancel: {
        leave(number)
      }
    } catch ArrivingBodyError.timedOut {
      // The sender must not wait for it.
      leave(number)
      throw ArrivingBodyError.timedOut
    }
  }

  /// Ends the wait of a reader whose time is over. Returns when to try that again.
  private func endWait(_ number: UInt64) -> ContinuousClock.Instant? {
    let (ended, next) = update { ($0.endWait(number), $0.nextAlarm(of: number)) }
    if let (continuation, error) = ended { continuation.resume(throwing: error) }
    return next
  }

  /// Ends a reader.
  private func leave(_ number: UInt64) {
    guard let (reader, abandonsBody) = update({ $0.leave(number) }) else { return }
    reader.continuation?.resume(throwing: CancellationError())
    if abandonsBody { whenAbandoned() }
  }

  /// The reading side. The reader leaves when this object is released.
  private final class ReaderHandle: Sendable {
    private let body: ArrivingBody
    private let number: UInt64
    private let hasEnded = Atomic(false)

    init(body: ArrivingBody, number: UInt64) {
      (self.body, self.number) = (body, number)
    }

    func next() async throws -> Data? {
      if hasEnded.load(ordering: .relaxed) { return nil }
      let chunk = try await body.next(number)
      if chunk == nil { hasEnded.store(true, ordering: .relaxed) }
      return chunk
    }

    deinit { body.leave(number) }
  }
}

/// Why a reader gets no more of a body that arrives.
enum ArrivingBodyError: Error {
  /// The body is not stored, another reader is faster, and the bytes in between are gone.
  case leftBehind
  /// No bytes have arrived for ``WaitLimits/beforeAsking``. The reader keeps its place until it is released.
  ///
  /// It times out at `until`; never if nil.
  case stalled(until: ContinuousClock.Instant?)
  /// No bytes have arrived for ``WaitLimits/total``.
  case timedOut
}

/// How long a request waits for another request's fetch that makes no progress.
struct WaitLimits {
  /// The time after which the request asks the origin itself; nil for never.
  var beforeAsking: Duration?
  /// The time after which the request fails, which is longer; nil for never.
  var total: Duration?

  var isLimited: Bool { beforeAsking != nil || total != nil }
}
