import FoundationEssentials

/// The state of an ``ArrivingBody``: its mode, the bytes in memory, its readers, and the continuations of those that
/// wait.
///
/// A change resumes no continuation. ``takeReady()`` then returns those whose wait is over, for a caller that resumes
/// them without the lock.
struct ArrivingBodyState {
  /// The bytes that wait to be written. While there are more, the sender waits.
  private static let unwrittenByteLimit = 4 << 20
  /// The bytes that stay in memory for readers, beyond those that wait to be written.
  private static let keptByteCount = 1 << 20
  /// The number of unread bytes from which a sender waits while the body is passed on.
  private static let unreadByteLimit = 256 << 10
  /// The number of bytes that are written at once, 16 chunks of the store, or read from the destination.
  private static let writtenByteCount = 16 * 65_520
  private static let readByteCount = 128 << 10

  /// The modes that ``ArrivingBody`` describes.
  private enum Mode { case collecting, storing, passing }

  struct Reader {
    let number: UInt64
    let limits: WaitLimits
    var position = 0
    /// When it began to wait for its next bytes; nil if it does not wait, or has no limit.
    var waitsSince: ContinuousClock.Instant?
    /// Whether it knows that the transfer has made no progress since then.
    var knowsStall = false
    var continuation: CheckedContinuation<Void, any Error>?
    /// Set by the first wait with a limit, for all of its waits: most end in time.
    var alarm: Alarm?

    /// When its wait ends without bytes, and the error that it then gets; nil if it does not wait, or has no limit.
    var waitEnd: (time: ContinuousClock.Instant, error: ArrivingBodyError)? {
      waitsSince.flatMap { waitEnd(since: $0) }
    }

    func waitEnd(since waitsSince: ContinuousClock.Instant) -> (
      time: ContinuousClock.Instant, error: ArrivingBodyError
    )? {
      let end = limits.total.map { waitsSince + $0 }
      if !knowsStall, let limit = limits.beforeAsking { return (waitsSince + limit, .stalled(until: end)) }
      return end.map { ($0, .timedOut) }
    }
  }

  /// How a reader gets its next bytes.
  enum Step {
    case chunk(Data)
    case read(any BodyDestination, Range<Int>)
    case end
    case failed(any Error)
    case wait
  }

  /// Continuations to resume without the lock.
  struct Ready {
    var readers: [CheckedContinuation<Void, any Error>] = []
    var sender: CheckedContinuation<Void, Never>?
    var writer: CheckedContinuation<Void, Never>?

    func resume() {
      writer?.resume()
      sender?.resume()
      for reader in readers { reader.resume() }
    }
  }

  private var mode = Mode.collecting
  /// The bytes in memory, and the position of the first one in the body.
  private var chunks = ChunkQueue()
  private var receivedByteCount = 0
  /// The bytes that the writing task has taken, and those that the destination can read.
  private var takenByteCount = 0
  private var readableByteCount = 0
  /// Kept also after storing has ended, for readers.
  private var destination: (any BodyDestination)?
  /// No more bytes come.
  var hasArrived = false
  /// Readers receive the end.
  private var isEnded = false
  private var failure: (any Error)?
  /// Whether the last reader has left before the end.
  private var isAbandoned = false
  /// Usually one.
  private var readers: [Reader] = []
  private var readerCount: UInt64 = 0
  /// The sender while it waits for space, and the writing task while it waits for bytes.
  var sender: CheckedContinuation<Void, Never>?
  var writer: CheckedContinuation<Void, Never>?

  /// How long the sender has waited for the destination.
  var waited = Duration.zero
  /// Whether the destination has all of the body.
  private(set) var isStored = false
  /// Whether storing ended because the destination was too slow.
  private(set) var isTooSlow = false

  var isStoring: Bool { mode == .storing }
  var hasReaders: Bool { !readers.isEmpty }
  /// Whether anything needs the rest of the body.
  var isNeeded: Bool { !isAbandoned || mode != .passing }

  /// Whether the sender must wait.
  var isFull: Bool {
    switch mode {
    case .collecting: false
    case .storing: receivedByteCount - readableByteCount > Self.unwrittenByteLimit
    case .passing: !isAbandoned && receivedByteCount - fastestPosition >= Self.unreadByteLimit
    }
  }

  private var slowestPosition: Int { readers.reduce(receivedByteCount) { min($0, $1.position) } }
  private var fastestPosition: Int { readers.isEmpty ? receivedByteCount : readers.reduce(0) { max($0, $1.position) } }

  /// Takes the continuations of those whose wait is over.
  mutating func takeReady() -> Ready {
    var ready = Ready()
    if sender != nil, !isFull { swap(&ready.sender, &sender) }
    if writer != nil, hasPieces { swap(&ready.writer, &writer) }
    for index in readers.indices where isEnded || readers[index].position < receivedByteCount {
      guard let continuation = readers[index].continuation else { continue }
      ready.readers.append(continuation)
      readers[index].continuation = nil
    }
    return ready
  }

  // MARK: Sending

  /// Appends bytes that have arrived, unless nothing needs them.
  mutating func append(_ chunk: Data) {
    guard isNeeded else { return }
    chunks.append(chunk)
    receivedByteCount += chunk.count
    trim()
  }

  /// Ends the body. Only the first call has an effect.
  mutating func end(throwing failure: (any Error)?) {
    guard !isEnded else { return }
    isEnded = true
    hasArrived = true
    self.failure = failure
  }

  /// All bytes, if they were collected.
  var collected: Data { chunks.joined() }

  // MARK: Storing

  mutating func store(in destination: any BodyDestination) {
    mode = .storing
    self.destination = destination
  }

  mutating func stopStoring() {
    mode = .passing
    trim()
  }

  /// Ends storing because the destination is too slow, unless it has ended or the destination has all of the body.
  mutating func stopSlowStoring() {
    guard isStoring, !isStored else { return }
    isTooSlow = true
    stopStoring()
  }

  /// Whether the writing task need not wait: it has enough to write, or its work ends.
  private var hasPieces: Bool {
    !isStoring || hasArrived || receivedByteCount - takenByteCount >= Self.writtenByteCount
  }

  /// Returns bytes to write; nil if all are taken, or storing has ended.
  mutating func takePieces() -> [Data]? {
    guard isStoring, takenByteCount < receivedByteCount else { return nil }
    let byteCount = min(Self.writtenByteCount, receivedByteCount - takenByteCount)
    defer { takenByteCount += byteCount }
    return chunks.pieces(from: takenByteCount, upTo: byteCount)
  }

  /// Records how many bytes the destination can read.
  ///
  /// - Parameter isStored: Whether these are all of the body.
  mutating func noteReadable(_ byteCount: Int, isStored: Bool) {
    readableByteCount = byteCount
    self.isStored = isStored
    trim()
  }

  /// Releases the bytes that no reader needs in memory.
  private mutating func trim() {
    switch mode {
    case .collecting: return
    case .storing:
      chunks.drop(upTo: min(slowestPosition, readableByteCount))
      if chunks.byteCount > Self.keptByteCount {
        chunks.drop(upTo: min(readableByteCount, receivedByteCount - Self.keptByteCount))
      }
    case .passing:
      chunks.drop(upTo: slowestPosition)
      if chunks.byteCount > Self.keptByteCount {
        chunks.drop(upTo: min(fastestPosition, receivedByteCount - Self.keptByteCount))
      }
    }
  }

  // MARK: Reading

  /// Adds a reader and returns its number; nil if the beginning of the body is gone.
  mutating func addReader(_ limits: WaitLimits) -> UInt64? {
    guard chunks.position == 0 || destination != nil && mode != .passing else { return nil }
    isAbandoned = false
    readerCount += 1
    readers.append(Reader(number: readerCount, limits: limits))
    return readerCount
  }

  /// Takes the next bytes of a reader, or says how to get them.
  mutating func takeStep(of number: UInt64) -> Step {
    guard let index = index(of: number) else { return .failed(CancellationError()) }
    let position = readers[index].position
    if position < receivedByteCount {
      if position >= chunks.position {
        let chunk = chunks.chunk(at: position)
        advance(number, by: chunk.count)
        return .chunk(chunk)
      }
      guard let destination, position < readableByteCount else { return .failed(ArrivingBodyError.leftBehind) }
      return .read(destination, position..<min(position + Self.readByteCount, readableByteCount, chunks.position))
    }
    guard isEnded else { return .wait }
    remove(at: index)
    return failure.map { .failed($0) } ?? .end
  }

  /// Advances a reader, and releases bytes if it was the slowest.
  mutating func advance(_ number: UInt64, by byteCount: Int) {
    guard let index = index(of: number) else { return }
    let wasFirst = readers[index].position <= chunks.position
    readers[index].position += byteCount
    readers[index].waitsSince = nil
    readers[index].knowsStall = false
    if wasFirst { trim() }
  }

  /// Begins a reader's wait. Returns when it ends without bytes, if the reader needs an alarm for that.
  mutating func beginWait(_ number: UInt64) -> ContinuousClock.Instant? {
    guard let index = index(of: number), readers[index].limits.isLimited else { return nil }
    // A reader that has asked the origin in vain continues its wait.
    if readers[index].waitsSince == nil { readers[index].waitsSince = .now }
    return readers[index].alarm == nil ? readers[index].waitEnd?.time : nil
  }

  /// Keeps the alarm of a reader until the reader leaves.
  mutating func keep(_ alarm: Alarm, of number: UInt64) {
    if let index = index(of: number) { readers[index].alarm = alarm }
  }

  /// Returns when a reader's alarm must go off again: not after the end of this wait, or of one that begins now.
  func nextAlarm(of number: UInt64) -> ContinuousClock.Instant? {
    guard let index = index(of: number) else { return nil }
    let end = readers[index].waitEnd ?? readers[index].waitEnd(since: .now)
    // A wait that is over ends with the continuation, which comes at once.
    return end.map { max($0.time, .now + .milliseconds(1)) }
  }

  /// Stores the continuation of a reader that waits. Returns an error if it cannot wait, or its time is over.
  mutating func wait(_ number: UInt64, _ continuation: CheckedContinuation<Void, any Error>) -> (any Error)? {
    guard let index = index(of: number) else { return CancellationError() }
    readers[index].continuation = continuation
    // The alarm may have found no continuation.
    return endWait(number)?.error
  }

  /// Ends a reader's wait if its time is over and no bytes have come.
  mutating func endWait(
    _ number: UInt64
  ) -> (continuation: CheckedContinuation<Void, any Error>, error: ArrivingBodyError)? {
    guard let index = index(of: number), let continuation = readers[index].continuation,
      !isEnded, readers[index].position == receivedByteCount,
      let (time, error) = readers[index].waitEnd, time <= .now
    else { return nil }
    readers[index].knowsStall = true
    readers[index].continuation = nil
    return (continuation, error)
  }

  /// Removes a reader, unless it was removed before. Returns it, and whether it was the last one before the end.
  mutating func leave(_ number: UInt64) -> (reader: Reader, abandonsBody: Bool)? {
    guard let index = index(of: number) else { return nil }
    let reader = remove(at: index)
    let abandonsBody = readers.isEmpty && !isEnded && !isAbandoned
    if abandonsBody { isAbandoned = true }
    trim()
    return (reader, abandonsBody)
  }

  /// Removes a reader. After the end, the last one releases the bytes.
  @discardableResult
  private mutating func remove(at index: Int) -> Reader {
    let reader = readers.remove(at: index)
    if isEnded, readers.isEmpty {
      chunks.drop(upTo: receivedByteCount)
      destination = nil
      mode = .passing
    }
    return reader
  }

  private func index(of number: UInt64) -> Int? { readers.firstIndex { $0.number == number } }
}
