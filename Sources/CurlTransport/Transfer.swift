import CCurl
import FoundationEssentials
import HTTPCaching

/// A request in progress: its state on the I/O thread, and the data collected by libcurl's callbacks.
///
/// `@unchecked Sendable`: the constants are set once. Only the I/O thread uses the variables; other threads only pass
/// the transfer on to it.
final class Transfer: @unchecked Sendable {
  let request: PreparedRequest
  let pool: ConnectionPool
  let exchange = Exchange()
  /// The maximum time without progress.
  let timeout: Duration

  /// Identifies the transfer in the pool's schedule, from its start to its end.
  var id: PoolSchedule.ID?
  /// Whether the transfer has ended, maybe before the pool has received it.
  var hasEnded = false
  /// libcurl's handle while it is active.
  private(set) var handle: EasyHandle?
  /// Whether receiving is paused until the reader has taken bytes.
  var isPaused = false
  /// Whether this is the second attempt.
  private(set) var isRepeated = false
  /// Whether an existing connection was rejected because it had unread bytes.
  var isRefusedByGuard = false
  /// The sockets created for this attempt.
  var sockets: [CInt] = []
  /// Whether the last attempt failed because the process or the system had no descriptor left.
  var lacksDescriptor = false
  /// Whether this attempt has a connection, and a tunnel if it needs one, so that the next line is the origin's.
  private var isConnected = false
  /// The reason why this transfer stopped libcurl.
  private var failure: CurlTransportError?
  /// The number of content bytes that this attempt has sent.
  private var sentByteCount = 0
  /// Results that are not published yet.
  private var results = Exchange.RoundResults()

  private var tunnelHead = TunnelHead()
  private var head: ResponseHeadCollector
  private var framing: ContentFraming?
  private var receivedByteCount = 0

  /// The maximum content size of a response that is held until it is complete, so that its caller is resumed once.
  static let smallByteCount = 64 << 10

  init(_ request: PreparedRequest, in pool: ConnectionPool, timeout: Duration) {
    self.request = request
    self.pool = pool
    self.timeout = timeout
    head = ResponseHeadCollector(method: request.method)
  }

  // MARK: Attempts

  /// Begins an attempt with a handle that was prepared for it.
  func begin(with handle: EasyHandle) {
    self.handle = handle
    lacksDescriptor = false
    isConnected = false
    sentByteCount = 0
    isRefusedByGuard = false
    tunnelHead = TunnelHead()
  }

  /// Records that this attempt has a connection.
  func noteConnected() { isConnected = true }

  /// Records the number of content bytes that this attempt has sent.
  ///
  /// - Returns: Whether it has sent more than before.
  func noteSent(byteCount: Int) -> Bool {
    guard byteCount > sentByteCount else { return false }
    sentByteCount = byteCount
    return true
  }

  /// Ends an attempt, and returns its handle, which the caller removes from libcurl.
  func endAttempt() -> EasyHandle? {
    defer { handle = nil }
    isPaused = false
    return handle
  }

  /// Prepares the second attempt, after a first one without any response.
  func prepareRepetition() {
    isRepeated = true
    failure = nil
    sockets = []
    head = ResponseHeadCollector(method: request.method)
  }

  /// Whether a second attempt is harmless and can succeed (RFC 9112 section 9.3.1).
  func mayRepeat(after result: CURLcode, onReusedConnection: Bool) -> Bool {
    guard !isRepeated, !head.hasBegun else { return false }
    // Then nothing was sent.
    if isRefusedByGuard { return true }
    guard request.isIdempotent else { return false }
    switch result {
    case CURLE_HTTP2, CURLE_PARTIAL_FILE, CURLE_GOT_NOTHING, CURLE_SEND_ERROR, CURLE_RECV_ERROR:
      return onReusedConnection
    default: return false
    }
  }

  /// Whether an attempt failed because the process has no descriptor left. Nothing was sent then.
  ///
  /// - Parameter isShort: Returns whether the process has none now, or had none a moment ago.
  func lacksDescriptor(after result: CURLcode, isShort: () -> Bool) -> Bool {
    guard !isConnected, failure == nil else { return false }
    switch result {
    case CURLE_COULDNT_CONNECT: return lacksDescriptor
    // A lookup, and reading certificates, need descriptors that the transport does not create.
    case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CERTPROBLEM,
      CURLE_FAILED_INIT, CURLE_OUT_OF_MEMORY:
      lacksDescriptor = lacksDescriptor || isShort()
      return lacksDescriptor
    default: return false
    }
  }

  /// The error at the end of the time limit.
  var timeoutError: CurlTransportError {
    lacksDescriptor
      ? CurlTransportError(.unavailable, "the process had no descriptor left within the time limit")
      : CurlTransportError(.timedOut, "no data arrived within the time limit")
  }

  /// Returns the result of the response; an error if its end is missing.
  ///
  /// - Parameter error: Returns the error for libcurl's code.
  func end(after result: CURLcode, _ error: () -> CurlTransportError) -> Result<Void, any Error> {
    if let failure { return .failure(failure) }
    // libcurl treats a connection that ends within a head as a complete response.
    guard result == CURLE_OK, let framing else { return .failure(error()) }
    if case .length(let length) = framing, length != receivedByteCount {
      return .failure(CurlTransportError(.connectionLost, "the length of the response differs from its Content-Length"))
    }
    return .success(())
  }

  // MARK: Callbacks

  /// Processes a line of a head or of trailers, or of a proxy's response to CONNECT.
  ///
  /// - Returns: Whether libcurl should continue.
  func receive(line: UnsafeRawBufferPointer) -> Bool {
    do {
      guard isConnected else {
        try tunnelHead.append(line)
        return true
      }
      guard let head = try head.append(line) else { return true }
      framing = head.framing
      if self.head.hasOddFraming { handle?.forbidReuse() }
      // Unless it knows a length, libcurl drops bytes that arrive together with the end of a response, and keeps the
      // connection. More may follow.
      if !head.framing.hasLength { handle?.requestNotes() }
      results.head = head
      if case .length(let length) = head.framing {
        results.content.reserveCapacity(min(length, Self.smallByteCount))
        if length > 0, length <= Self.smallByteCount { pool.hold(self) }
      }
      return true
    } catch {
      failure = error
      return false
    }
  }

  /// Processes a note of libcurl about the progress.
  func receive(note: UnsafeRawBufferPointer) {
    if note.starts(with: "Excess found".utf8) || note.starts(with: "Leftovers after chunking".utf8) {
      handle?.forbidReuse()
    }
  }

  /// The instruction to libcurl after a part of the content.
  enum ContentAction {
    case goOn
    case pause
    case stop
  }

  /// Processes a part of the content.
  func receive(content: UnsafeRawBufferPointer) -> ContentAction {
    guard let framing, framing != .noContent else {
      failure = CurlTransportError(.badServerResponse, "content arrived for a response that cannot have any")
      return .stop
    }
    guard results.content.count + exchange.unreadByteCount < Exchange.pausingByteCount else {
      isPaused = true
      pool.notePaused(self)
      return .pause
    }
    receivedByteCount += content.count
    results.content.append(contentsOf: content)
    return .goOn
  }

  // MARK: Publishing

  /// Passes the results to the waiting task.
  ///
  /// - Parameter end: The result, if the response has ended.
  /// - Returns: Whether receiving must resume at once.
  func publish(end: Result<Void, any Error>? = nil) -> Bool {
    var results = results
    self.results = Exchange.RoundResults()
    results.end = end
    results.isPaused = isPaused
    return exchange.publish(results)
  }
}
