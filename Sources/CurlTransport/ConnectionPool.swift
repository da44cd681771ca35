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
  /// The decisions on what happens next.
  private var schedule: PoolSchedule
  /// The transfers in the schedule, by the indices of their IDs.
  private var transfers: [Transfer?] = []
  private var connections = KnownConnections()
  /// Whether a transfer waits since the last round because the process has no descriptor left.
  private var hasFoundShortage = false

  init(_ configuration: CurlTransport.Configuration, poller: SocketPoller, clock: LoopClock) {
    self.configuration = configuration
    self.poller = poller
    self.clock = clock
    schedule = PoolSchedule(
      PoolSchedule.Settings(
        limits: OriginQueues.Limits(configuration), idleConnectionTimeout: configuration.idleConnectionTimeout,
        maximumConnections: configuration.maximumConnections, triesNextAddress: LoadedLibcurl.triesNextAddress))
  }

  private func transfer(_ id: PoolSchedule.ID) -> Transfer {
    guard let transfer = transfers[id.index] else { preconditionFailure("The schedule has no transfer that has ended") }
    return transfer
  }

  // MARK: Commands

  /// Accepts a transfer, which starts as soon as its origin and the pool have capacity.
  func start(_ transfer: Transfer) {
    // A transfer that was cancelled immediately may arrive only now.
    guard !transfer.hasEnded else { return }
    let id = schedule.add(origin: transfer.request.origin, timeout: transfer.timeout, at: clock.now)
    transfer.id = id
    if id.index == transfers.count { transfers.append(transfer) } else { transfers[id.index] = transfer }
    startWaiting()
  }

  /// Cancels a transfer without reporting an error, because its waiting task has received one already.
  func cancel(_ transfer: Transfer) {
    end(transfer)
    startWaiting()
  }

  /// Resumes receiving of a paused transfer.
  func resumeReceiving(_ transfer: Transfer) {
    guard let id = transfer.id, let handle = transfer.handle, schedule.resume(id, at: clock.now) else { return }
    transfer.isPaused = false
    // Calls the callback for data that was received already, and may pause again.
    curl_easy_pause(handle.curl, CURLPAUSE_CONT)
  }

  /// Ends all transfers and closes all connections.
  func close() {
    for transfer in transfers {
      guard let transfer else { continue }
      end(transfer)
      transfer.exchange.fail(CurlTransportError(.unavailable, "the transport has ended"))
    }
    closeConnections()
  }

  // MARK: The loop

  /// The next time at which ``runTimers()`` has work.
  var nextTime: MonotonicTime { schedule.nextTime }

  /// Passes an event of a socket to libcurl.
  func act(on descriptor: CInt, _ condition: CInt) {
    guard let library else { return }
    var running: CInt = 0
    curl_multi_socket_action(library.multi, descriptor, condition, &running)
  }

  /// Runs the actions that are due.
  func runTimers() {
    let now = clock.now
    for action in PoolSchedule.Action.allCases where schedule.takeDue(action, at: now) {
      switch action {
      case .callLibrary: act(on: ccurl_timeout_socket(), 0)
      case .examineConnecting: examineConnecting()
      case .endLate: endLate(at: now)
      case .releaseHeld: break
      case .closeConnections: closeConnections()
      case .endShortage:
        limitConnections()
        startWaiting()
      }
    }
  }

  /// Ends the transfers that libcurl has finished, and starts waiting ones in their place.
  ///
  /// If the process has no descriptor left, call ``takeShortage()`` and ``releaseIdleConnections()`` before the latter.
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
    if hasFinished, !hasFoundShortage { startWaiting() }
    return hasFinished
  }

  /// Returns whether a transfer found no descriptor left since the last call.
  func takeShortage() -> Bool {
    defer { hasFoundShortage = false }
    return hasFoundShortage
  }

  /// Closes idle connections because the process has no descriptor left, and starts the transfers that wait.
  ///
  /// While others are in use, libcurl closes one idle connection for each new one, and one whenever a transfer ends.
  func releaseIdleConnections() {
    if schedule.isIdle {
      closeConnections()
    } else {
      schedule.noteShortage(at: clock.now)
      limitConnections()
    }
    startWaiting()
  }

  /// Publishes the results of the loop's round.
  ///
  /// - Returns: Whether a transfer resumed as a result, so that there may be more work.
  func publish() -> Bool {
    let ready = schedule.takeResults(at: clock.now)
    guard !ready.isEmpty else { return false }
    var goesOn = false
    for id in ready {
      let transfer = transfer(id)
      if transfer.publish() {
        resumeReceiving(transfer)
        goesOn = true
      } else {
        schedule.yieldPlaceIfPaused(id)
      }
    }
    startWaiting()
    return goesOn
  }

  /// Makes libcurl try the next address of a host after a failed or slow attempt.
  private func examineConnecting() {
    guard let library else { return }
    var running: CInt = 0
    ccurl_act_on_all(library.multi, &running)
  }

  private func endLate(at now: MonotonicTime) {
    for id in schedule.takeLate(at: now) {
      let transfer = transfer(id)
      transfer.exchange.fail(transfer.timeoutError)
      end(transfer)
    }
    startWaiting()
  }

  // MARK: Transfers

  private func startWaiting() {
    while let id = schedule.nextToBegin() { begin(transfer(id)) }
  }

  /// Begins an attempt of a transfer that has capacity.
  private func begin(_ transfer: Transfer) {
    guard let library = library ?? openLibrary(), let handle = EasyHandle() else { return abandon(transfer) }
    handle.prepare(transfer, of: self, configuration, share: library.share)
    transfer.begin(with: handle)
    limitConnections()
    guard curl_multi_add_handle(library.multi, handle.curl) == CURLM_OK else {
      // libcurl does not have the handle.
      _ = transfer.endAttempt()
      return abandon(transfer)
    }
  }

  private func abandon(_ transfer: Transfer) {
    end(transfer)
    transfer.exchange.fail(CurlTransportError(.unavailable, "libcurl has no memory or descriptor left"))
  }

  private func finish(_ transfer: Transfer, _ result: CURLcode) {
    guard let handle = transfer.handle, let id = transfer.id else { return }
    if transfer.lacksDescriptor(after: result, isShort: { schedule.isShort || !poller.hasDescriptorLeft() }) {
      takeBack(transfer)
      hasFoundShortage = true
      return schedule.postpone(id, connectionCount: connections.count, at: clock.now)
    }
    let mayRepeat = transfer.mayRepeat(after: result, onReusedConnection: handle.hasReusedConnection)
    let end = transfer.end(after: result) { handle.error(result) }
    takeBack(transfer)
    if mayRepeat {
      schedule.endAttempt(of: id)
      transfer.prepareRepetition()
      // Without queueing, because it has waited for its turn already.
      schedule.beginAttempt(of: id)
      return begin(transfer)
    }
    _ = transfer.publish(end: end)
    self.end(transfer)
  }

  /// Removes a transfer from libcurl, which makes no further calls for it.
  private func takeBack(_ transfer: Transfer) {
    guard let handle = transfer.endAttempt(), let library else { return }
    curl_multi_remove_handle(library.multi, handle.curl)
  }

  /// Ends a transfer, unless it has ended, in any state.
  private func end(_ transfer: Transfer) {
    guard !transfer.hasEnded else { return }
    transfer.hasEnded = true
    takeBack(transfer)
    guard let id = transfer.id else { return }
    transfers[id.index] = nil
    schedule.remove(id, at: clock.now)
    limitConnections()
  }

  /// Limits the number of connections, and of idle ones.
  private func limitConnections() {
    guard let library else { return }
    ccurl_multi_set_long(library.multi, CURLMOPT_MAXCONNECTS, schedule.openConnectionLimit)
    ccurl_multi_set_long(library.multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, schedule.totalConnectionLimit)
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
    guard let library else { return }
    curl_multi_cleanup(library.multi)
    curl_share_cleanup(library.share)
    self.library = nil
    poller.forget(self)
    connections = KnownConnections()
    schedule.noteClosed()
  }

  // MARK: Calls from libcurl

  /// Records that a transfer has received data.
  func noteActivity(of transfer: Transfer) {
    if let id = transfer.id { schedule.noteActivity(of: id, at: clock.now) }
  }

  /// Records that a transfer has sent content.
  func noteSending(of transfer: Transfer) {
    if let id = transfer.id { schedule.noteSending(of: id, at: clock.now) }
  }

  /// Records that the response of a transfer is small.
  func hold(_ transfer: Transfer) {
    if let id = transfer.id { schedule.hold(id) }
  }

  /// Records that a transfer receives nothing until it is resumed.
  func notePaused(_ transfer: Transfer) {
    if let id = transfer.id { schedule.notePaused(id) }
  }

  func watch(_ descriptor: CInt, for wanted: CInt) {
    let wasConnecting = poller.watch(descriptor, for: wanted, of: self)
    if wasConnecting { schedule.noteLostConnectingSocket() }
  }

  func setTimer(milliseconds: Int) {
    // A call before the deadline would have no effect.
    if milliseconds > 0 { clock.update() }
    schedule.setTimer(milliseconds < 0 ? .never : clock.now.advanced(by: .milliseconds(milliseconds)))
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
  /// It must not use an existing connection that may have unread bytes, in the socket or in TLS. They would be taken
  /// for its response.
  func mayUse(_ connection: ConnectionEnds, for transfer: Transfer) -> Bool {
    if let id = transfer.id { schedule.noteConnected(id) }
    transfer.noteConnected()
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
