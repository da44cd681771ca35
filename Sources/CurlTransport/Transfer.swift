import CCurl
import FoundationEssentials
import HTTPCaching

/// One request on its way: what the I/O thread knows of it, and what libcurl's callbacks gather.
///
/// `@unchecked Sendable`: the constants are set once. The variables are the I/O thread's alone; other threads only pass
/// the transfer on to it.
final class Transfer: @unchecked Sendable {
  enum Phase {
    /// The pool has not seen it.
    case new
    /// Waits for a place.
    case waiting
    /// libcurl has it.
    case active
    case ended
  }

  enum Hold {
    case none
    case wanted
    /// The pool knows of it.
    case listed
  }

  let request: PreparedRequest
  let pool: ConnectionPool
  let exchange = Exchange()
  /// How long it waits while nothing comes.
  let timeout: Duration

  var phase = Phase.new
  /// Where it is among the pool's active transfers.
  var activeIndex = 0
  /// libcurl's handle, while it is active.
  private(set) var handle: EasyHandle?
  /// When something last came or went.
  var lastActivity = MonotonicTime.never
  /// The number of bytes of content sent when that was last looked at.
  var sentByteCount = 0
  /// Whether libcurl has no connection for it yet.
  var isConnecting = false
  /// Whether receiving has paused until the reader has taken something.
  var isPaused = false
  /// Whether this is the second attempt.
  private(set) var isRepeated = false
  /// Whether a connection of the pool was not used because it had unread bytes.
  var isRefusedByGuard = false
  /// The sockets that were made for this attempt.
  var sockets: [CInt] = []
  /// Why this transfer stopped libcurl.
  private var failure: CurlTransportError?
  /// What has come and is not published yet.
  private var news = Exchange.News()
  /// Whether the pool knows that there is something to publish.
  var isTouched = false
  /// Whether a small response is held back, to be published as a whole.
  var hold = Hold.none

  private var head: ResponseHeadCollector
  private var framing: ContentFraming?
  private var receivedByteCount = 0

  /// Content up to this size is worth waiting a moment for, so that its caller is woken once.
  static let smallByteCount = 64 << 10
  /// How long it is waited for. The caller of a slow response gets its head after this.
  static let holdingTime = Duration.milliseconds(5)

  init(_ request: PreparedRequest, in pool: ConnectionPool, timeout: Duration) {
    self.request = request
    self.pool = pool
    self.timeout = timeout
    head = ResponseHeadCollector(method: request.method)
  }

  // MARK: Attempts

  /// Begins an attempt with a handle that is set up for it.
  func begin(with handle: EasyHandle) {
    phase = .active
    self.handle = handle
    isConnecting = true
  }

  /// Ends an attempt; the handle may be used for others.
  func endAttempt() -> EasyHandle? {
    defer { handle = nil }
    isPaused = false
    return handle
  }

  /// Makes it ready for the second attempt, after a first one that brought nothing.
  func prepareRepetition() {
    isRepeated = true
    isRefusedByGuard = false
    failure = nil
    sockets = []
    sentByteCount = 0
    head = ResponseHeadCollector(method: request.method)
  }

  /// Whether a second attempt can do no harm, and may do better (RFC 9112 section 9.3.1).
  func mayRepeat(after result: CURLcode, onReusedConnection: Bool) -> Bool {
    guard !isRepeated, request.isIdempotent, !head.hasBegun else { return false }
    if isRefusedByGuard { return true }
    switch result {
    case CURLE_HTTP2, CURLE_PARTIAL_FILE, CURLE_GOT_NOTHING, CURLE_SEND_ERROR, CURLE_RECV_ERROR:
      return onReusedConnection
    default: return false
    }
  }

  /// How the response has ended by libcurl's account; an error if its end is missing.
  ///
  /// - Parameter error: The error that libcurl's code stands for.
  func end(after result: CURLcode, _ error: () -> CurlTransportError) -> Result<Void, any Error> {
    if let failure { return .failure(failure) }
    // libcurl takes a connection that ends within a head for a complete response.
    guard result == CURLE_OK, let framing else { return .failure(error()) }
    if case .length(let length) = framing, length != receivedByteCount {
      return .failure(CurlTransportError(.connectionLost, "the response is not as long as announced"))
    }
    return .success(())
  }

  // MARK: Callbacks

  /// Takes a line of a head, or of trailers.
  ///
  /// - Returns: whether libcurl is to go on.
  func receive(line: UnsafeRawBufferPointer) -> Bool {
    do {
      guard let head = try head.append(line) else { return true }
      framing = head.framing
      if self.head.hasOddFraming, let handle { ccurl_set_long(handle.curl, CURLOPT_FORBID_REUSE, 1) }
      news.head = head
      if case .length(let length) = head.framing {
        news.content.reserveCapacity(min(length, Self.smallByteCount))
        if length > 0, length <= Self.smallByteCount { hold = .wanted }
      }
      return true
    } catch {
      failure = error
      return false
    }
  }

  /// What libcurl is to do after a piece of the content.
  enum Answer {
    case goOn
    case pause
    case stop
  }

  /// Takes a piece of the content.
  func receive(content: UnsafeRawBufferPointer) -> Answer {
    guard let framing, framing != .noContent else {
      failure = CurlTransportError(.badServerResponse, "content came where there can be none")
      return .stop
    }
    guard news.content.count + exchange.unreadByteCount < Exchange.pausingByteCount else {
      isPaused = true
      return .pause
    }
    receivedByteCount += content.count
    news.content.append(contentsOf: content)
    return .goOn
  }

  // MARK: Publishing

  /// Hands what has come to whoever waits for it.
  ///
  /// - Parameter end: The end, if it has come.
  /// - Returns: whether receiving must go on at once.
  func publish(end: Result<Void, any Error>? = nil) -> Bool {
    hold = .none
    var news = news
    self.news = Exchange.News()
    news.end = end
    news.isPaused = isPaused
    return exchange.publish(news)
  }
}
