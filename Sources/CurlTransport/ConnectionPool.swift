import CCurl

/// The transfers of one ``CurlTransport``, and its connections: libcurl's multi handle and what belongs to it.
///
/// `@unchecked Sendable`: after `init` it is used by the I/O thread alone; other threads only pass it on.
final class ConnectionPool: @unchecked Sendable {
  /// libcurl's part: a `CURLM`, and a `CURLSH` by which a TLS session that one handle has made serves the others.
  private struct Library {
    let multi: UnsafeMutableRawPointer
    let share: UnsafeMutableRawPointer
  }

  let configuration: CurlTransport.Configuration
  private let poller: SocketPoller
  private let clock: LoopClock
  /// Made for the first transfer, and dropped with all connections when there has been none for some time.
  private var library: Library?
  private var idleHandles: [EasyHandle] = []
  private var active: [Transfer] = []
  private var queues: OriginQueues
  private var connections = KnownConnections()
  /// Transfers of which something may be published.
  private var touched: [Transfer] = []
  /// Transfers whose small responses are held back until they are complete.
  private var held: [Transfer] = []

  /// When libcurl wants to be called.
  private var timer = MonotonicTime.never
  /// When a transfer may have waited too long.
  private var timeoutCheck = MonotonicTime.never
  /// When the first of ``held`` is to be published.
  private var publication = MonotonicTime.never
  /// When libcurl is to look at connections that are still being made.
  private var nudge = MonotonicTime.never
  private var connectingCount = 0
  private var hasLostConnectingSocket = false
  /// When all connections are closed, as none has been used.
  private var closing = MonotonicTime.never

  /// Some versions of libcurl go on to the next address of a host only when they are called, for which they do not ask.
  private static let nudgeInterval = Duration.milliseconds(250)

  init(_ configuration: CurlTransport.Configuration, poller: SocketPoller, clock: LoopClock) {
    self.configuration = configuration
    self.poller = poller
    self.clock = clock
    queues = OriginQueues(
      maximumPerOrigin: configuration.maximumConnectionsPerOrigin, maximum: configuration.maximumConnections)
  }

  // MARK: Commands

  /// Takes a transfer, which starts as soon as there is a place for it.
  func start(_ transfer: Transfer) {
    // One that was cancelled at once may be seen only now.
    guard transfer.phase == .new else { return }
    transfer.phase = .waiting
    transfer.lastActivity = clock.now
    timeoutCheck = min(timeoutCheck, clock.now.advanced(by: transfer.timeout))
    queues.append(transfer)
    startWaiting()
  }

  /// Ends a transfer without a word: whoever waited for it knows.
  func cancel(_ transfer: Transfer) {
    switch transfer.phase {
    case .ended: break
    case .new: transfer.phase = .ended
    case .waiting:
      transfer.phase = .ended
      queues.noteEnded(transfer)
    case .active:
      takeBack(transfer)
      end(transfer)
      startWaiting()
    }
  }

  /// Lets a paused transfer receive.
  func readOn(_ transfer: Transfer) {
    guard transfer.phase == .active, transfer.isPaused, let handle = transfer.handle else { return }
    transfer.isPaused = false
    transfer.lastActivity = clock.now
    timeoutCheck = min(timeoutCheck, clock.now.advanced(by: transfer.timeout))
    // Calls the callback for what has been received already, which may pause once more.
    curl_easy_pause(handle.curl, CURLPAUSE_CONT)
  }

  /// Ends all transfers, and closes all connections.
  func close() {
    let error = CurlTransportError(.unavailable, "the transport has ended")
    queues.forEachWaiting { transfer in
      transfer.phase = .ended
      transfer.exchange.fail(error)
    }
    for transfer in active {
      takeBack(transfer)
      transfer.phase = .ended
      transfer.exchange.fail(error)
    }
    active = []
    closeConnections()
  }

  // MARK: The loop

  /// The next time at which ``runTimers()`` has something to do.
  var nextTime: MonotonicTime { min(timer, timeoutCheck, min(publication, nudge, closing)) }

  /// Tells libcurl what happened to a socket.
  func act(on descriptor: CInt, _ condition: CInt) {
    guard let library else { return }
    var running: CInt = 0
    curl_multi_socket_action(library.multi, descriptor, condition, &running)
  }

  /// Does what is due.
  func runTimers() {
    let now = clock.now
    if timer <= now {
      timer = .never
      act(on: ccurl_timeout_socket(), 0)
    }
    nudgeConnecting()
    if timeoutCheck <= now { checkTimeouts() }
    if publication <= now { releaseHeld() }
    if closing <= now { closeConnections() }
  }

  /// Ends the transfers with which libcurl is done, and starts those that get their places.
  ///
  /// - Returns: whether there were any.
  func finishTransfers() -> Bool {
    guard let library else { return false }
    var hasFinished = false
    var result = CURLE_OK
    while let curl = ccurl_next_finished(library.multi, &result) {
      hasFinished = true
      var pointer: UnsafeMutableRawPointer?
      ccurl_get_pointer(curl, CURLINFO_PRIVATE, &pointer)
      guard let pointer else { continue }
      finish(Unmanaged<Transfer>.fromOpaque(pointer).takeUnretainedValue(), result)
    }
    if hasFinished { startWaiting() }
    return hasFinished
  }

  /// Publishes what the round has brought.
  ///
  /// - Returns: whether a transfer went on because of it, so that there may be more to do.
  func publish() -> Bool {
    guard !touched.isEmpty else { return false }
    var goesOn = false
    let transfers = touched
    touched = []
    for transfer in transfers {
      transfer.isTouched = false
      switch transfer.hold {
      case .listed: break
      case .wanted:
        transfer.hold = .listed
        if held.isEmpty { publication = clock.now.advanced(by: Transfer.holdingTime) }
        held.append(transfer)
      case .none where transfer.publish():
        readOn(transfer)
        goesOn = true
      case .none: break
      }
    }
    return goesOn
  }

  /// Lets libcurl try the next address of a host when an attempt has failed, or has taken some time.
  private func nudgeConnecting() {
    if connectingCount > 0, nudge <= clock.now || hasLostConnectingSocket, let library {
      nudge = .never
      var running: CInt = 0
      ccurl_act_on_all(library.multi, &running)
    }
    hasLostConnectingSocket = false
    if connectingCount == 0 {
      nudge = .never
    } else if nudge == .never {
      nudge = clock.now.advanced(by: Self.nudgeInterval)
    }
  }

  private func releaseHeld() {
    publication = .never
    let transfers = held
    held = []
    for transfer in transfers where transfer.phase == .active {
      transfer.hold = .none
      touch(transfer)
    }
  }

  // MARK: Transfers

  private func startWaiting() {
    while let transfer = queues.popFirst() {
      closing = .never
      begin(transfer)
    }
  }

  private func begin(_ transfer: Transfer) {
    guard let library = library ?? openLibrary(), let handle = idleHandles.popLast() ?? EasyHandle() else {
      return abandon(transfer)
    }
    handle.prepare(transfer, of: self, configuration, share: library.share)
    transfer.begin(with: handle)
    transfer.activeIndex = active.count
    active.append(transfer)
    connectingCount += 1
    guard curl_multi_add_handle(library.multi, handle.curl) == CURLM_OK else {
      takeBack(transfer)
      removeFromActive(transfer)
      return abandon(transfer)
    }
  }

  /// Ends a transfer that has a place but could not be started.
  private func abandon(_ transfer: Transfer) {
    transfer.phase = .ended
    queues.freePlace(of: transfer)
    transfer.exchange.fail(CurlTransportError(.unavailable, "libcurl has no memory or descriptor left"))
  }

  private func finish(_ transfer: Transfer, _ result: CURLcode) {
    guard let handle = transfer.handle else { return }
    let mayRepeat = transfer.mayRepeat(after: result, onReusedConnection: handle.hasReusedConnection)
    let end = transfer.end(after: result) { handle.error(result) }
    takeBack(transfer)
    if mayRepeat {
      removeFromActive(transfer)
      transfer.prepareRepetition()
      // In the same place: it has waited for its turn already.
      return begin(transfer)
    }
    _ = transfer.publish(end: end)
    self.end(transfer)
  }

  /// Takes a transfer from libcurl, which makes no call for it from here on.
  private func takeBack(_ transfer: Transfer) {
    setConnecting(transfer, false)
    guard let handle = transfer.endAttempt() else { return }
    if let library { curl_multi_remove_handle(library.multi, handle.curl) }
    if idleHandles.count < configuration.maximumConnections { idleHandles.append(handle) }
  }

  /// Frees the place of a transfer that libcurl no longer has.
  private func end(_ transfer: Transfer) {
    transfer.phase = .ended
    removeFromActive(transfer)
    queues.freePlace(of: transfer)
    if active.isEmpty { closing = clock.now.advanced(by: configuration.idleConnectionTimeout) }
  }

  private func removeFromActive(_ transfer: Transfer) {
    let last = active.removeLast()
    guard last !== transfer else { return }
    active[transfer.activeIndex] = last
    last.activeIndex = transfer.activeIndex
  }

  private func setConnecting(_ transfer: Transfer, _ isConnecting: Bool) {
    guard transfer.isConnecting != isConnecting else { return }
    transfer.isConnecting = isConnecting
    connectingCount += isConnecting ? 1 : -1
  }

  // MARK: Timeouts

  private func checkTimeouts() {
    let now = clock.now
    var next = MonotonicTime.never
    var late: [Transfer] = []
    func check(_ transfer: Transfer) {
      let limit = transfer.lastActivity.advanced(by: transfer.timeout)
      if limit <= now { late.append(transfer) } else { next = min(next, limit) }
    }
    for transfer in active where !transfer.isPaused {
      // libcurl makes no call when content is sent.
      if let count = transfer.handle?.sentByteCount, count > transfer.sentByteCount {
        transfer.sentByteCount = count
        transfer.lastActivity = now
      }
      check(transfer)
    }
    queues.forEachWaiting(check)
    // Not for each of many transfers whose times come one shortly after another.
    timeoutCheck = next == .never ? .never : max(next, now.advanced(by: .milliseconds(10)))
    for transfer in late {
      transfer.exchange.fail(CurlTransportError(.timedOut, "nothing came within the time limit"))
      cancel(transfer)
    }
  }

  // MARK: Library

  private func openLibrary() -> Library? {
    guard let multi = curl_multi_init(), let share = curl_share_init() else { return nil }
    ccurl_share(share, CURL_LOCK_DATA_SSL_SESSION)
    let pointer = Unmanaged.passUnretained(self).toOpaque()
    ccurl_multi_set_pointer(multi, CURLMOPT_SOCKETDATA, pointer)
    ccurl_multi_set_socket_callback(multi, Callbacks.socketInterest)
    ccurl_multi_set_pointer(multi, CURLMOPT_TIMERDATA, pointer)
    ccurl_multi_set_timer_callback(multi, Callbacks.timer)
    ccurl_multi_set_long(multi, CURLMOPT_MAXCONNECTS, max(1, configuration.maximumConnections))
    library = Library(multi: multi, share: share)
    return library
  }

  private func closeConnections() {
    guard active.isEmpty, let library else { return }
    // The handles first: they refer to the share.
    idleHandles = []
    curl_multi_cleanup(library.multi)
    curl_share_cleanup(library.share)
    self.library = nil
    poller.forget(self)
    connections = KnownConnections()
    timer = .never
    nudge = .never
    closing = .never
  }

  // MARK: libcurl's calls

  /// Notes that a transfer has something to publish.
  func touch(_ transfer: Transfer) {
    guard !transfer.isTouched else { return }
    transfer.isTouched = true
    touched.append(transfer)
  }

  /// Notes that something of a transfer has come.
  func noteActivity(of transfer: Transfer) {
    transfer.lastActivity = clock.now
    touch(transfer)
  }

  func watch(_ descriptor: CInt, for wanted: CInt) {
    let wasConnecting = poller.watch(descriptor, for: wanted, of: self)
    if wasConnecting, connectingCount > 0 { hasLostConnectingSocket = true }
  }

  func setTimer(milliseconds: Int) {
    // Too early a call would be lost.
    timer =
      switch milliseconds {
      case ..<0: .never
      case 0: clock.now
      default: .now.advanced(by: .milliseconds(milliseconds))
      }
  }

  func opened(_ descriptor: CInt, for transfer: Transfer) {
    poller.opened(descriptor)
    transfer.sockets.append(descriptor)
  }

  func closed(_ descriptor: CInt) {
    poller.closed(descriptor)
    connections.remove(descriptor)
  }

  /// Whether a transfer may send its request on a connection: not on a kept one with unread bytes, which would be taken
  /// for its response.
  func mayUse(_ connection: ConnectionEnds, for transfer: Transfer) -> Bool {
    setConnecting(transfer, false)
    guard let handle = transfer.handle, handle.hasReusedConnection else {
      connections.add(connection, among: transfer.sockets)
      return true
    }
    guard connections.isSilent(connection) else {
      transfer.isRefusedByGuard = true
      return false
    }
    return true
  }
}
