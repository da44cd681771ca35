import CCurl
import CacheModel

/// The transfers and connections of a ``CurlTransport``: libcurl's multi handle and its data.
///
/// `@unchecked Sendable`: after `init` only the I/O thread uses it; other threads only pass it on.
final class ConnectionPool: @unchecked Sendable {
  /// libcurl's objects: a `CURLM`, and a `CURLSH` through which handles share TLS sessions.
  private struct Library {
    let multi: UnsafeMutableRawPointer
    let share: UnsafeMutableRawPointer
  }

  let configuration: CurlTransport.Configuration
  private let poller: SocketPoller
  private let clock: LoopClock
  /// Created for the first transfer, and released with all connections after a time without transfers.
  private var library: Library?
  private var active: [Transfer] = []
  private var queues: OriginQueues
  private var connections = KnownConnections()
  /// Transfers that may have results to publish.
  private var touched: [Transfer] = []
  /// Transfers with small responses, which are published when they are complete.
  private var held: [Transfer] = []

  /// The time at which libcurl wants a call.
  private var timer = MonotonicTime.never
  /// The time at which the next transfer may time out.
  private var timeoutCheck = MonotonicTime.never
  /// The time at which the transfers of ``held`` are published.
  private var publication = MonotonicTime.never
  /// The time at which libcurl is called to examine connections in progress; see ``nudgeInterval``.
  private var nudge = MonotonicTime.never
  private var connectingCount = 0
  private var hasLostConnectingSocket = false
  /// The time at which all connections are closed, because no transfer has used any.
  private var closing = MonotonicTime.never

  /// The time between calls of libcurl while it connects.
  ///
  /// Versions before 8.4 try the next address of a host only when they are called, but do not request the call.
  private static let nudgeInterval = Duration.milliseconds(250)

  init(_ configuration: CurlTransport.Configuration, poller: SocketPoller, clock: LoopClock) {
    self.configuration = configuration
    self.poller = poller
    self.clock = clock
    queues = OriginQueues(OriginQueues.Limits(configuration))
  }

  // MARK: Commands

  /// Accepts a transfer, which starts as soon as its origin and the pool have capacity.
  func start(_ transfer: Transfer) {
    // A transfer that was cancelled immediately may arrive only now.
    guard transfer.phase == .new else { return }
    transfer.phase = .waiting
    transfer.lastActivity = clock.now
    timeoutCheck = min(timeoutCheck, clock.now.advanced(by: transfer.timeout))
    queues.append(transfer)
    startWaiting()
  }

  /// Cancels a transfer without reporting an error, because its waiting task has received one already.
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

  /// Resumes receiving of a paused transfer.
  func resumeReceiving(_ transfer: Transfer) {
    guard transfer.phase == .active, transfer.isPaused, let handle = transfer.handle else { return }
    transfer.isPaused = false
    queues.reclaimPlace(of: transfer)
    transfer.lastActivity = clock.now
    timeoutCheck = min(timeoutCheck, clock.now.advanced(by: transfer.timeout))
    // Calls the callback for data that was received already, and may pause again.
    curl_easy_pause(handle.curl, CURLPAUSE_CONT)
  }

  /// Ends all transfers and closes all connections.
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

  /// The next time at which ``runTimers()`` has work.
  var nextTime: MonotonicTime { min(timer, timeoutCheck, min(publication, nudge, closing)) }

  /// Passes an event of a socket to libcurl.
  func act(on descriptor: CInt, _ condition: CInt) {
    guard let library else { return }
    var running: CInt = 0
    curl_multi_socket_action(library.multi, descriptor, condition, &running)
  }

  /// Runs the actions that are due.
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

  /// Ends the transfers that libcurl has finished, and starts waiting ones in their place.
  ///
  /// - Returns: Whether any transfer was finished.
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

  /// Publishes the results of the loop's round.
  ///
  /// - Returns: Whether a transfer resumed as a result, so that there may be more work.
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
        resumeReceiving(transfer)
        goesOn = true
      case .none where transfer.isPaused: queues.yieldPlace(of: transfer)
      case .none: break
      }
    }
    startWaiting()
    return goesOn
  }

  /// Makes libcurl try the next address of a host after a failed or slow attempt.
  private func nudgeConnecting() {
    if LoadedLibcurl.triesNextAddress { return }
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
    guard let library = library ?? openLibrary(), let handle = EasyHandle() else {
      return abandon(transfer)
    }
    handle.prepare(transfer, of: self, configuration, share: library.share)
    transfer.begin(with: handle)
    transfer.activeIndex = active.count
    active.append(transfer)
    limitConnections()
    connectingCount += 1
    guard curl_multi_add_handle(library.multi, handle.curl) == CURLM_OK else {
      takeBack(transfer)
      removeFromActive(transfer)
      return abandon(transfer)
    }
  }

  /// Ends a transfer that has left the queue but could not be started.
  private func abandon(_ transfer: Transfer) {
    transfer.phase = .ended
    queues.releaseCapacity(of: transfer)
    transfer.exchange.fail(CurlTransportError(.unavailable, "libcurl has no memory or descriptor left"))
    closeWhenIdle()
  }

  private func finish(_ transfer: Transfer, _ result: CURLcode) {
    guard let handle = transfer.handle else { return }
    let mayRepeat = transfer.mayRepeat(after: result, onReusedConnection: handle.hasReusedConnection)
    let end = transfer.end(after: result) { handle.error(result) }
    takeBack(transfer)
    if mayRepeat {
      removeFromActive(transfer)
      transfer.prepareRepetition()
      // Restart it without queueing, because it has waited for its turn already.
      return begin(transfer)
    }
    _ = transfer.publish(end: end)
    self.end(transfer)
  }

  /// Removes a transfer from libcurl, which makes no further calls for it.
  private func takeBack(_ transfer: Transfer) {
    setConnecting(transfer, false)
    guard let handle = transfer.endAttempt() else { return }
    if let library { curl_multi_remove_handle(library.multi, handle.curl) }
  }

  /// Releases the capacity of a transfer that was removed from libcurl.
  private func end(_ transfer: Transfer) {
    transfer.phase = .ended
    removeFromActive(transfer)
    queues.releaseCapacity(of: transfer)
    closeWhenIdle()
  }

  /// Sets the time at which all connections are closed, if no transfer is active.
  private func closeWhenIdle() {
    if active.isEmpty { closing = clock.now.advanced(by: configuration.idleConnectionTimeout) }
  }

  private func removeFromActive(_ transfer: Transfer) {
    let last = active.removeLast()
    if last !== transfer {
      active[transfer.activeIndex] = last
      last.activeIndex = transfer.activeIndex
    }
    limitConnections()
  }

  /// Limits the number of idle connections. libcurl counts the used ones as well.
  private func limitConnections() {
    guard let library else { return }
    ccurl_multi_set_long(library.multi, CURLMOPT_MAXCONNECTS, active.count + max(1, configuration.maximumConnections))
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
      // libcurl calls no callback when content is sent.
      if let count = transfer.handle?.sentByteCount, count > transfer.sentByteCount {
        transfer.sentByteCount = count
        transfer.lastActivity = now
      }
      check(transfer)
    }
    queues.forEachWaiting(check)
    // Limit the rate of checks, because many transfers may time out shortly after each other.
    timeoutCheck = next == .never ? .never : max(next, now.advanced(by: .milliseconds(10)))
    for transfer in late {
      transfer.exchange.fail(CurlTransportError(.timedOut, "no data arrived within the time limit"))
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
    library = Library(multi: multi, share: share)
    return library
  }

  private func closeConnections() {
    closing = .never
    guard active.isEmpty, let library else { return }
    curl_multi_cleanup(library.multi)
    curl_share_cleanup(library.share)
    self.library = nil
    poller.forget(self)
    connections = KnownConnections()
    timer = .never
    nudge = .never
  }

  // MARK: Calls from libcurl

  /// Marks a transfer as having results to publish.
  func touch(_ transfer: Transfer) {
    guard !transfer.isTouched else { return }
    transfer.isTouched = true
    touched.append(transfer)
  }

  /// Records that a transfer has received data.
  func noteActivity(of transfer: Transfer) {
    transfer.lastActivity = clock.now
    touch(transfer)
  }

  func watch(_ descriptor: CInt, for wanted: CInt) {
    let wasConnecting = poller.watch(descriptor, for: wanted, of: self)
    if wasConnecting, connectingCount > 0 { hasLostConnectingSocket = true }
  }

  func setTimer(milliseconds: Int) {
    // A call before the deadline would have no effect.
    if milliseconds > 0 { clock.update() }
    timer = milliseconds < 0 ? .never : clock.now.advanced(by: .milliseconds(milliseconds))
  }

  func opened(_ descriptor: CInt, for transfer: Transfer) {
    poller.opened(descriptor)
    transfer.sockets.append(descriptor)
  }

  func closed(_ descriptor: CInt) {
    poller.closed(descriptor)
    connections.remove(descriptor)
  }

  /// Whether a transfer may send its request on a connection.
  ///
  /// It must not use an existing connection that may have unread bytes, in the socket or in TLS. They would be taken for
  /// its response.
  func mayUse(_ connection: ConnectionEnds, for transfer: Transfer) -> Bool {
    setConnecting(transfer, false)
    guard let handle = transfer.handle, handle.hasReusedConnection else {
      connections.add(connection, among: transfer.sockets)
      return true
    }
    guard connections.isSilent(connection), handle.isDecryptionDrained(usesTLS: transfer.request.usesTLS) else {
      transfer.isRefusedByGuard = true
      return false
    }
    return true
  }
}
