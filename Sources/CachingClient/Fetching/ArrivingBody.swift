import Synchronization

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// A body that arrives from the origin, for any number of readers, each at its own speed.
///
/// It is in one of three modes:
/// - *Collecting*: all bytes are kept in memory, for the store. The sender does not wait.
/// - *Storing*: a task writes the bytes to a destination. Readers get those that are no longer in memory from there.
///   The sender waits only while the destination is too slow, and never for a reader.
/// - *Passing*: the body is not stored. The sender waits for the fastest reader. A slower one gets
///   ``ArrivingBodyError/leftBehind`` when the bytes that it needs are gone.
///
/// Continuations are resumed without the lock.
final class ArrivingBody: Sendable {
  /// The bytes that wait to be written. More are not accepted until some are written.
  static let unwrittenByteLimit = 4 << 20
  /// The bytes that stay in memory for readers, beyond those that wait to be written.
  static let keptByteCount = 1 << 20
  /// The number of unread bytes from which a sender waits while the body is passed on.
  static let unreadByteLimit = 256 << 10
  /// The size of a piece that is written, 16 chunks of the store, or read from the destination.
  private static let writtenByteCount = 16 * 65_520
  private static let readByteCount = 128 << 10

  private enum Mode {
    case collecting
    case storing(any BodyDestination)
    case passing
  }

  private struct Reader {
    let number: UInt64
    let limits: WaitLimits
    var position = 0
    /// When it began to wait for its next bytes; nil if it does not wait, or has no limit.
    var waitsSince: ContinuousClock.Instant?
    /// Whether it knows that the transfer has made no progress since then.
    var knowsStall = false
    var continuation: CheckedContinuation<Void, any Error>?

    /// When its wait ends without bytes, and the error that it then gets; nil without a limit.
    var waitEnd: (time: ContinuousClock.Instant, error: ArrivingBodyError)? {
      guard let waitsSince else { return nil }
      let end = limits.total.map { waitsSince + $0 }
      if !knowsStall, let limit = limits.beforeAsking { return (waitsSince + limit, .stalled(until: end)) }
      return end.map { ($0, .timedOut) }
    }
  }

  private struct State {
    var mode = Mode.collecting
    /// The bytes in memory, and the position of the first one in the body.
    var chunks = ChunkQueue()
    var receivedByteCount = 0
    /// The bytes that the writing task has taken, and those that the destination can read.
    var takenByteCount = 0
    var readableByteCount = 0
    /// Kept also after storing has ended, for readers.
    var destination: (any BodyDestination)?
    /// No more bytes come.
    var hasArrived = false
    /// Readers receive the end.
    var isEnded = false
    var failure: (any Error)?
    var isAbandoned = false
    /// Usually one.
    var readers: [Reader] = []
    var readerCount: UInt64 = 0
    var sender: CheckedContinuation<Void, Never>?
    var writer: CheckedContinuation<Void, Never>?

    /// How long the sender has waited for the destination.
    var waited = Duration.zero
    /// Whether the destination has all of the body.
    var isStored = false
    /// Whether storing ended because the destination was too slow.
    var isTooSlow = false

    var isStoring: Bool { if case .storing = mode { true } else { false } }
    var isPassing: Bool { if case .passing = mode { true } else { false } }
    /// Whether anything needs the rest of the body.
    var isNeeded: Bool { !isAbandoned || !isPassing }

    /// Whether the sender must wait.
    var isFull: Bool {
      switch mode {
      case .collecting: false
      case .storing: receivedByteCount - readableByteCount > ArrivingBody.unwrittenByteLimit
      case .passing: !isAbandoned && receivedByteCount - fastestPosition >= ArrivingBody.unreadByteLimit
      }
    }

    var slowestPosition: Int { readers.reduce(receivedByteCount) { min($0, $1.position) } }
    var fastestPosition: Int { readers.isEmpty ? receivedByteCount : readers.reduce(0) { max($0, $1.position) } }

    /// Takes the next bytes of a reader, or says how to get them.
    mutating func takeStep(of number: UInt64) -> Step {
      guard let position = position(of: number) else { return .failed(CancellationError()) }
      if position < receivedByteCount {
        if position >= chunks.position {
          let chunk = chunks.chunk(at: position)
          advance(number, by: chunk.count)
          return .chunk(chunk)
        }
        guard let destination, position < readableByteCount else { return .failed(ArrivingBodyError.leftBehind) }
        let end = min(position + ArrivingBody.readByteCount, readableByteCount, chunks.position)
        return .read(destination, position..<end)
      }
      guard isEnded else { return .wait }
      remove(number)
      return failure.map { .failed($0) } ?? .end
    }

    /// Removes a reader. After the end, the last one releases the bytes. Returns it unless it was removed before.
    @discardableResult
    mutating func remove(_ number: UInt64) -> Reader? {
      guard let index = readers.firstIndex(where: { $0.number == number }) else { return nil }
      let reader = readers.remove(at: index)
      if isEnded, readers.isEmpty {
        chunks.drop(upTo: receivedByteCount)
        destination = nil
        mode = .passing
      }
      return reader
    }

    func position(of number: UInt64) -> Int? { readers.first { $0.number == number }?.position }

    /// Advances a reader, and releases bytes if it was the slowest.
    mutating func advance(_ number: UInt64, by byteCount: Int) {
      guard let index = readers.firstIndex(where: { $0.number == number }) else { return }
      let wasFirst = readers[index].position <= chunks.position
      readers[index].position += byteCount
      readers[index].waitsSince = nil
      readers[index].knowsStall = false
      if wasFirst { trim() }
    }

    /// Releases the bytes that no reader needs in memory.
    mutating func trim() {
      switch mode {
      case .collecting: return
      case .storing:
        chunks.drop(upTo: min(slowestPosition, readableByteCount))
        if chunks.byteCount > ArrivingBody.keptByteCount {
          chunks.drop(upTo: min(readableByteCount, receivedByteCount - ArrivingBody.keptByteCount))
        }
      case .passing:
        chunks.drop(upTo: slowestPosition)
        if chunks.byteCount > ArrivingBody.keptByteCount {
          chunks.drop(upTo: min(fastestPosition, receivedByteCount - ArrivingBody.keptByteCount))
        }
      }
    }

    /// Begins a reader's wait. Returns when it ends without bytes; nil without a limit.
    mutating func beginWait(_ number: UInt64) -> ContinuousClock.Instant? {
      guard let index = readers.firstIndex(where: { $0.number == number }), readers[index].limits.isLimited else {
        return nil
      }
      // A reader that has asked the origin in vain continues its wait.
      if readers[index].waitsSince == nil { readers[index].waitsSince = .now }
      return readers[index].waitEnd?.time
    }

    /// Returns the error that ends a reader's wait if its time is over.
    mutating func endWait(_ index: Int) -> ArrivingBodyError? {
      guard let (time, error) = readers[index].waitEnd, time <= .now else { return nil }
      readers[index].knowsStall = true
      return error
    }

    /// Takes the continuations of the readers that wait.
    mutating func takeReaders() -> [CheckedContinuation<Void, any Error>] {
      var waiting: [CheckedContinuation<Void, any Error>] = []
      for index in readers.indices {
        guard let continuation = readers[index].continuation else { continue }
        waiting.append(continuation)
        readers[index].continuation = nil
      }
      return waiting
    }

    /// Takes the sender's continuation if it need not wait.
    mutating func takeSender() -> CheckedContinuation<Void, Never>? {
      guard sender != nil, !isFull else { return nil }
      defer { sender = nil }
      return sender
    }

    mutating func takeWriter() -> CheckedContinuation<Void, Never>? {
      defer { writer = nil }
      return writer
    }
  }

  private let state = Mutex(State())
  private let whenAbandoned: @Sendable () -> Void
  private let startedAt = ContinuousClock.now
  /// The sender may wait for the destination for this time, and for an eighth of the transfer's time.
  private let waitLimit: Duration

  /// - Parameters:
  ///   - whenAbandoned: Called without locks held when the last reader is cancelled or released before the end.
  ///   - waitLimit: How long the sender may wait for the destination, and for an eighth of the transfer's time.
  init(waitLimit: Duration, whenAbandoned: @escaping @Sendable () -> Void) {
    self.waitLimit = waitLimit
    self.whenAbandoned = whenAbandoned
  }

  // MARK: Sending

  /// Appends bytes that have arrived. Then waits as its mode requires.
  ///
  /// - Returns: Whether the rest is needed.
  func send(_ chunk: Data) async -> Bool {
    let (waiting, writer, isNeeded) = state.withLock { state in
      guard state.isNeeded else {
        return ([] as [CheckedContinuation<Void, any Error>], nil as CheckedContinuation<Void, Never>?, false)
      }
      state.chunks.append(chunk)
      state.receivedByteCount += chunk.count
      state.trim()
      let isPiece = state.receivedByteCount - state.takenByteCount >= Self.writtenByteCount
      return (state.takeReaders(), isPiece ? state.takeWriter() : nil, true)
    }
    writer?.resume()
    for reader in waiting { reader.resume() }
    guard isNeeded else { return false }
    if state.withLock({ $0.isFull }) { await waitForSpace() }
    return state.withLock { $0.isNeeded }
  }

  /// Waits for the destination or for a reader, as the mode requires.
  ///
  /// If the destination has taken too much of the transfer's time, storing ends.
  private func waitForSpace() async {
    let start = ContinuousClock.now
    let left = isStoring ? waitLeft : nil
    let watch = left.map { left in
      Task {
        do { try await Task.sleep(until: start + left, clock: .continuous) } catch { return }
        let isTooSlow = state.withLock { state in
          guard state.isStoring, state.sender != nil else { return false }
          state.isTooSlow = true
          return true
        }
        if isTooSlow { stopStoring() }
      }
    }
    await withCheckedContinuation { continuation in
      let resumesNow = state.withLock { state in
        guard state.isFull else { return true }
        state.sender = continuation
        return false
      }
      if resumesNow { continuation.resume() }
    }
    watch?.cancel()
    state.withLock { if $0.isStoring { $0.waited += .now - start } }
  }

  /// Records that the last bytes have arrived. Readers get the end only after ``finish(throwing:)``.
  func noteArrival() {
    let writer = state.withLock { state in
      state.hasArrived = true
      return state.takeWriter()
    }
    writer?.resume()
  }

  /// Ends the body. With an error, readers receive what has arrived and then the error.
  func finish(throwing failure: (any Error)? = nil) {
    let (waiting, writer) = state.withLock { state in
      guard !state.isEnded else {
        return ([] as [CheckedContinuation<Void, any Error>], nil as CheckedContinuation<Void, Never>?)
      }
      state.isEnded = true
      state.hasArrived = true
      state.failure = failure
      return (state.takeReaders(), state.takeWriter())
    }
    writer?.resume()
    for reader in waiting { reader.resume() }
  }

  /// Returns all bytes, which were collected.
  func collected() -> Data { state.withLock { $0.chunks.joined() } }

  // MARK: Storing

  /// Begins to write to a destination. Returns the task, which ends when the destination has all bytes, or storing has
  /// ended.
  func store(in destination: any BodyDestination) -> Task<Void, Never> {
    state.withLock { state in
      state.mode = .storing(destination)
      state.destination = destination
    }
    return Task { await self.writeAll(to: destination) }
  }

  /// Stops collecting or storing: the rest of the body is only passed on.
  func stopStoring() {
    let (sender, writer) = state.withLock { state in
      state.mode = .passing
      state.trim()
      return (state.takeSender(), state.takeWriter())
    }
    sender?.resume()
    writer?.resume()
  }

  /// Whether storing has ended because the destination was too slow for the transfer.
  var isTooSlow: Bool { state.withLock { $0.isTooSlow } }

  /// Whether the bytes are written to a destination, without a failure so far.
  var isStoring: Bool { state.withLock { $0.isStoring } }

  private func writeAll(to destination: any BodyDestination) async {
    while let piece = await nextPiece() {
      let isWritten = await onBlockingThread { destination.write(piece) }
      guard isWritten else { return stopStoring() }
      noteReadable(destination.readableByteCount)
    }
    guard isStoring else { return }
    guard await onBlockingThread({ destination.complete() }) else { return stopStoring() }
    noteReadable(destination.readableByteCount)
    state.withLock { $0.isStored = true }
  }

  private func noteReadable(_ byteCount: Int) {
    let sender = state.withLock { state in
      state.readableByteCount = byteCount
      state.trim()
      return state.takeSender()
    }
    sender?.resume()
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
    let isTooSlow = state.withLock { state in
      guard !state.isStored, state.isStoring else { return false }
      state.isTooSlow = true
      return true
    }
    if isTooSlow { stopStoring() }
    return state.withLock { $0.isStored }
  }

  /// How long the sender may still wait for the destination.
  private var waitLeft: Duration {
    waitLimit + (.now - startedAt) / 8 - state.withLock { $0.waited }
  }

  /// Waits for bytes to write; nil if all are taken, or storing has ended.
  private func nextPiece() async -> Data? {
    while true {
      let piece = state.withLock { state -> Data?? in
        guard state.isStoring else { return .some(nil) }
        let count = state.receivedByteCount - state.takenByteCount
        guard count >= Self.writtenByteCount || state.hasArrived else { return nil }
        guard count > 0 else { return .some(nil) }
        let piece = state.chunks.bytes(from: state.takenByteCount, upTo: Self.writtenByteCount)
        state.takenByteCount += piece.count
        return .some(piece)
      }
      if let piece { return piece }
      await withCheckedContinuation { continuation in
        let resumesNow = state.withLock { state in
          let count = state.receivedByteCount - state.takenByteCount
          if !state.isStoring || state.hasArrived || count >= Self.writtenByteCount { return true }
          state.writer = continuation
          return false
        }
        if resumesNow { continuation.resume() }
      }
    }
  }

  // MARK: Reading

  /// Whether a body that was made is still being read.
  var hasReaders: Bool { state.withLock { !$0.readers.isEmpty } }

  /// Creates a body that reads from the beginning; nil if the beginning is gone. It can be read once.
  ///
  /// Its reader is gone when the body and its iterators are released.
  ///
  /// - Parameter limits: How long the reader waits for its next bytes. After ``ArrivingBodyError/stalled(until:)`` it
  ///   can go on reading.
  func makeBody(waiting limits: WaitLimits = WaitLimits()) -> ResponseBodyStream? {
    let number = state.withLock { state -> UInt64? in
      guard state.chunks.position == 0 || state.destination != nil && !state.isPassing else { return nil }
      state.isAbandoned = false
      state.readerCount += 1
      state.readers.append(Reader(number: state.readerCount, limits: limits))
      return state.readerCount
    }
    guard let number else { return nil }
    let reader = ReaderHandle(body: self, number: number)
    return ResponseBodyStream(next: { try await reader.next() })
  }

  private enum Step {
    case chunk(Data)
    case read(any BodyDestination, Range<Int>)
    case end
    case failed(any Error)
    case wait
  }

  private func next(_ number: UInt64) async throws -> Data? {
    while true {
      let (step, sender) = state.withLock { state -> (Step, CheckedContinuation<Void, Never>?) in
        (state.takeStep(of: number), state.takeSender())
      }
      sender?.resume()
      switch step {
      case .chunk(let chunk): return chunk
      case .end: return nil
      case .failed(let error):
        // The sender must not wait for a reader that has lost its place.
        leave(number)
        throw error
      case .read(let destination, let range):
        try Task.checkCancellation()
        let piece = await onBlockingThread { destination.read(range) }
        guard let piece else {
          leave(number)
          throw ArrivingBodyError.leftBehind
        }
        let sender = state.withLock { state in
          state.advance(number, by: piece.count)
          return state.takeSender()
        }
        sender?.resume()
        return piece
      case .wait: try await wait(number)
      }
    }
  }

  private func wait(_ number: UInt64) async throws {
    let timer = state.withLock { $0.beginWait(number) }.map { time in
      Task {
        do { try await Task.sleep(until: time, clock: .continuous) } catch { return }
        endWait(number)
      }
    }
    defer { timer?.cancel() }
    do {
      try await withTaskCancellationHandler {
        try await withCheckedThrowingContinuation { continuation in
          let result = state.withLock { state -> Result<Void, any Error>? in
            guard let index = state.readers.firstIndex(where: { $0.number == number }) else {
              return .failure(CancellationError())
            }
            if state.isEnded || state.readers[index].position < state.receivedByteCount { return .success(()) }
            // The timer may have found no continuation.
            if let error = state.endWait(index) { return .failure(error) }
            state.readers[index].continuation = continuation
            return nil
          }
          if let result { continuation.resume(with: result) }
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

  /// Ends a reader's wait if its time is over.
  private func endWait(_ number: UInt64) {
    let (continuation, error) = state.withLock {
      state -> (CheckedContinuation<Void, any Error>?, ArrivingBodyError?) in
      guard let index = state.readers.firstIndex(where: { $0.number == number }),
        let continuation = state.readers[index].continuation, let error = state.endWait(index)
      else { return (nil, nil) }
      state.readers[index].continuation = nil
      return (continuation, error)
    }
    if let error { continuation?.resume(throwing: error) }
  }

  /// Ends a reader.
  fileprivate func leave(_ number: UInt64) {
    let (reader, sender, isAbandoned) = state.withLock {
      state -> (Reader?, CheckedContinuation<Void, Never>?, Bool) in
      guard let reader = state.remove(number) else { return (nil, nil, false) }
      let isAbandoned = state.readers.isEmpty && !state.isEnded && !state.isAbandoned
      if isAbandoned { state.isAbandoned = true }
      state.trim()
      return (reader, state.takeSender(), isAbandoned)
    }
    reader?.continuation?.resume(throwing: CancellationError())
    sender?.resume()
    if isAbandoned { whenAbandoned() }
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
