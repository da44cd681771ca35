import CacheModel

/// The decisions of a connection pool as a value: which transfer starts, what is due and when, and which results are
/// published.
///
/// It calls nothing. ``ConnectionPool`` tells it what happens, and carries out what it returns. Only the I/O thread
/// uses it.
struct PoolSchedule {
  /// Identifies a transfer. The index is used again after its end, the serial number is not.
  struct ID: Hashable {
    let index: Int
    fileprivate let serial: Int
  }

  /// An action of the pool that depends on the time. When several are due, this is their order.
  enum Action: CaseIterable {
    /// Calls libcurl, which has asked for it.
    case callLibrary
    /// Calls libcurl to examine the connections in progress.
    case examineConnecting
    /// Ends the transfers that ``takeLate(at:)`` returns.
    case endLate
    /// Publishes the held results, which ``takeResults(at:)`` then returns.
    case releaseHeld
    /// Closes all connections, because no transfer has used any for a while.
    case closeConnections
    /// Starts transfers that wait because the process had no descriptor left.
    case endShortage
  }

  /// The properties that depend on the configuration and on libcurl.
  struct Settings {
    var limits: OriginQueues.Limits
    var idleConnectionTimeout: Duration
    var maximumConnections: Int
    /// Whether libcurl tries the next address of a host by itself.
    var triesNextAddress: Bool
  }

  /// The state of a small response, which is held until it is complete, so that its caller is resumed once.
  private enum Hold {
    /// The response is not held.
    case none
    /// The response is to be held from the end of this round on.
    case wanted
    case held
  }

  private struct Transfer {
    let id: ID
    /// Whether it has not ended.
    var isPresent = true
    let origin: String
    let timeout: Duration
    var lastActivity: MonotonicTime
    var isActive = false
    /// Its index in the list of active transfers.
    var activeIndex = 0
    /// Whether libcurl has no connection for it yet.
    var isConnecting = false
    /// Whether receiving is paused until the reader has taken bytes.
    var isPaused = false
    /// The number of open connections when its last attempt found no descriptor left.
    var connectionCountAtShortage: Int?
    /// Whether its place at the origin was given to other requests while it is paused.
    var hasYieldedPlace = false
    /// Whether it is in the list of those with results.
    var isTouched = false
    var hold = Hold.none
  }

  /// The time between calls of libcurl while it connects.
  ///
  /// Versions before 8.4 try the next address of a host only when they are called, but do not request the call.
  static let examinationInterval = Duration.milliseconds(250)
  /// The maximum time to hold a response. After this, the caller of a slow response receives its head.
  static let holdingTime = Duration.milliseconds(5)

  /// The time for which a lack of descriptors limits the connections, until more are tried.
  static let shortageTime = Duration.milliseconds(250)

  private let settings: Settings
  /// All transfers, by the indices of their IDs. An ended one stays until its index is used again.
  ///
  /// The elements are not optional, because reading a property of an optional struct copies the struct, and counts its
  /// references. Some methods are called for each line of a response.
  private var transfers: [Transfer] = []
  private var freeIndices: [Int] = []
  private var lastSerial = 0
  private var active: [ID] = []
  private var queues: OriginQueues
  /// Transfers that may have results to publish.
  private var touched: [ID] = []
  /// Transfers with small responses, which are published when they are complete.
  private var held: [ID] = []

  /// The time at which libcurl wants a call.
  private var timer = MonotonicTime.never
  /// The time at which the next transfer may be late.
  private var timeoutCheck = MonotonicTime.never
  /// The time at which the held results are published.
  private var publication = MonotonicTime.never
  /// The time at which the connections in progress are examined.
  private var examination = MonotonicTime.never
  private var connectingCount = 0
  private var hasLostConnectingSocket = false
  /// The time at which all connections are closed.
  private var closing = MonotonicTime.never
  /// The time at which a lack of descriptors no longer limits the connections; ``never`` if it does not.
  private var shortageEnd = MonotonicTime.never

  init(_ settings: Settings) {
    self.settings = settings
    queues = OriginQueues(settings.limits)
  }

  // MARK: Starting and ending

  /// Adds a waiting transfer. It starts when ``nextToBegin()`` returns it.
  mutating func add(origin: String, timeout: Duration, at now: MonotonicTime) -> ID {
    lastSerial += 1
    let id = ID(index: freeIndices.popLast() ?? transfers.count, serial: lastSerial)
    let transfer = Transfer(id: id, origin: origin, timeout: timeout, lastActivity: now)
    if id.index == transfers.count { transfers.append(transfer) } else { transfers[id.index] = transfer }
    expectProgress(of: id, at: now)
    queues.append(id, at: origin)
    return id
  }

  /// Returns the transfer to begin next; nil if none is waiting, or there is no capacity.
  mutating func nextToBegin() -> ID? {
    guard let id = queues.popFirst() else { return nil }
    closing = .never
    transfers[id.index].isActive = true
    transfers[id.index].activeIndex = active.count
    active.append(id)
    beginAttempt(of: id)
    return id
  }

  /// Begins an attempt of an active transfer.
  mutating func beginAttempt(of id: ID) { setConnecting(id, true) }

  /// Ends an attempt of a transfer that libcurl had.
  mutating func endAttempt(of id: ID) {
    transfers[id.index].isPaused = false
    setConnecting(id, false)
  }

  /// Records that libcurl has a connection for a transfer.
  mutating func noteConnected(_ id: ID) { setConnecting(id, false) }

  private mutating func setConnecting(_ id: ID, _ isConnecting: Bool) {
    guard transfers[id.index].isConnecting != isConnecting else { return }
    transfers[id.index].isConnecting = isConnecting
    connectingCount += isConnecting ? 1 : -1
  }

  /// Removes a transfer that has ended, and releases its capacity.
  mutating func remove(_ id: ID, at now: MonotonicTime) {
    guard isPresent(id) else { return }
    endAttempt(of: id)
    transfers[id.index].isPresent = false
    freeIndices.append(id.index)
    let transfer = transfers[id.index]
    guard transfer.isActive else { return queues.noteEnded(id, at: transfer.origin) }
    deactivate(id, at: now)
    queues.releaseCapacity(at: transfer.origin, hasYieldedPlace: transfer.hasYieldedPlace)
  }

  private mutating func deactivate(_ id: ID, at now: MonotonicTime) {
    transfers[id.index].isActive = false
    let place = transfers[id.index].activeIndex
    if let last = active.popLast(), last != id {
      active[place] = last
      transfers[last.index].activeIndex = place
    }
    if active.isEmpty { closing = now.advanced(by: settings.idleConnectionTimeout) }
  }

  /// Whether no transfer is active, so that no connection is in use.
  var isIdle: Bool { active.isEmpty }

  /// The maximum number of connections that stay open after their transfers. libcurl counts those in use as well.
  var openConnectionLimit: Int {
    let idle = isShort ? 0 : max(1, settings.maximumConnections)
    return max(1, min(totalConnectionLimit, idle < .max - active.count ? active.count + idle : .max))
  }

  /// The number of connections from which on libcurl closes an idle one for each new one.
  ///
  /// There is one, because fewer transfers are active.
  var totalConnectionLimit: Int { max(1, min(queues.ceiling, Int(CInt.max))) }

  // MARK: Lack of descriptors

  /// Whether the process had no descriptor left a moment ago.
  var isShort: Bool { shortageEnd != .never }

  /// Returns an active transfer to its queue, because the process has no descriptor left for it.
  ///
  /// It starts again at once if an idle connection can be closed for it, and otherwise when a transfer ends, or after
  /// ``shortageTime``.
  ///
  /// - Parameter connectionCount: The number of open connections, in use and idle.
  mutating func postpone(_ id: ID, connectionCount: Int, at now: MonotonicTime) {
    endAttempt(of: id)
    guard transfers[id.index].isActive else { return }
    // If closing an idle connection did not help, only the end of a transfer, or time, will.
    let hasHelped = transfers[id.index].connectionCountAtShortage.map { connectionCount < $0 } ?? true
    transfers[id.index].connectionCountAtShortage = connectionCount
    deactivate(id, at: now)
    queues.ceiling = min(queues.ceiling, hasHelped ? max(connectionCount, active.count) : active.count)
    queues.putBack(id, at: transfers[id.index].origin)
    noteShortage(at: now)
  }

  /// Records that the process has no descriptor left, maybe for the connections of another pool.
  mutating func noteShortage(at now: MonotonicTime) { shortageEnd = now.advanced(by: Self.shortageTime) }

  // MARK: Progress

  private func isPresent(_ id: ID) -> Bool {
    transfers[id.index].isPresent && transfers[id.index].id == id
  }

  private mutating func expectProgress(of id: ID, at now: MonotonicTime) {
    timeoutCheck = min(timeoutCheck, now.advanced(by: transfers[id.index].timeout))
  }

  /// Records that a transfer has received data.
  mutating func noteActivity(of id: ID, at now: MonotonicTime) {
    transfers[id.index].lastActivity = now
    touch(id)
  }

  /// Records that a transfer has sent content.
  mutating func noteSending(of id: ID, at now: MonotonicTime) { transfers[id.index].lastActivity = now }

  /// Records that a transfer has results to publish.
  private mutating func touch(_ id: ID) {
    guard !transfers[id.index].isTouched else { return }
    transfers[id.index].isTouched = true
    touched.append(id)
  }

  /// Records that the response of a transfer is small, so that it is published when it is complete.
  mutating func hold(_ id: ID) { transfers[id.index].hold = .wanted }

  /// Records that receiving is paused.
  mutating func notePaused(_ id: ID) { transfers[id.index].isPaused = true }

  /// Resumes a paused transfer. It does not wait again, even at a limit.
  ///
  /// - Returns: Whether it was paused.
  mutating func resume(_ id: ID, at now: MonotonicTime) -> Bool {
    guard transfers[id.index].isPaused else { return false }
    transfers[id.index].isPaused = false
    transfers[id.index].lastActivity = now
    if transfers[id.index].hasYieldedPlace {
      transfers[id.index].hasYieldedPlace = false
      queues.reclaimPlace(at: transfers[id.index].origin)
    }
    expectProgress(of: id, at: now)
    return true
  }

  // MARK: Publishing

  /// Returns the transfers whose results are to be published at the end of the loop's round, in the order of their
  /// results.
  mutating func takeResults(at now: MonotonicTime) -> [ID] {
    if touched.isEmpty { return [] }
    var round = touched
    touched = []
    round.removeAll { id in
      guard isPresent(id) else { return true }
      transfers[id.index].isTouched = false
      guard transfers[id.index].hold == .wanted else { return transfers[id.index].hold == .held }
      transfers[id.index].hold = .held
      if held.isEmpty { publication = now.advanced(by: Self.holdingTime) }
      held.append(id)
      return true
    }
    return round
  }

  /// Gives the place of a transfer to other requests if it stays paused after its results were published.
  mutating func yieldPlaceIfPaused(_ id: ID) {
    guard transfers[id.index].isPaused, !transfers[id.index].hasYieldedPlace else { return }
    transfers[id.index].hasYieldedPlace = true
    queues.yieldPlace(at: transfers[id.index].origin)
  }

  // MARK: Times

  /// Sets the time at which libcurl wants a call.
  mutating func setTimer(_ time: MonotonicTime) { timer = time }

  /// Records that a socket that was connecting is no longer watched.
  mutating func noteLostConnectingSocket() {
    if connectingCount > 0 { hasLostConnectingSocket = true }
  }

  /// The next time at which an action is due.
  var nextTime: MonotonicTime {
    min(timer, timeoutCheck, min(publication, connectingCount > 0 ? examination : .never, min(closing, shortageEnd)))
  }

  /// Returns whether an action is due, and sets the time of the next one.
  mutating func takeDue(_ action: Action, at now: MonotonicTime) -> Bool {
    switch action {
    case .callLibrary: return Self.take(&timer, at: now)
    case .examineConnecting: return takeExamination(at: now)
    case .endLate: return timeoutCheck <= now
    case .releaseHeld:
      guard Self.take(&publication, at: now) else { return false }
      for id in held where isPresent(id) {
        transfers[id.index].hold = .none
        touch(id)
      }
      held.removeAll(keepingCapacity: true)
      return true
    case .closeConnections: return Self.take(&closing, at: now) && active.isEmpty
    case .endShortage:
      guard Self.take(&shortageEnd, at: now) else { return false }
      queues.ceiling = settings.limits.ceiling
      for index in transfers.indices { transfers[index].connectionCountAtShortage = nil }
      return true
    }
  }

  private static func take(_ time: inout MonotonicTime, at now: MonotonicTime) -> Bool {
    guard time <= now else { return false }
    time = .never
    return true
  }

  private mutating func takeExamination(at now: MonotonicTime) -> Bool {
    if settings.triesNextAddress { return false }
    let isDue = connectingCount > 0 && (examination <= now || hasLostConnectingSocket)
    hasLostConnectingSocket = false
    if connectingCount == 0 {
      examination = .never
    } else if isDue || examination == .never {
      examination = now.advanced(by: Self.examinationInterval)
    }
    return isDue
  }

  /// Returns the transfers that have made no progress within their time limits.
  mutating func takeLate(at now: MonotonicTime) -> [ID] {
    var next = MonotonicTime.never
    var late: [ID] = []
    for index in transfers.indices {
      let transfer = transfers[index]
      guard transfer.isPresent, !transfer.isPaused else { continue }
      let limit = transfer.lastActivity.advanced(by: transfer.timeout)
      if limit <= now { late.append(transfer.id) } else { next = min(next, limit) }
    }
    // Limit the rate of checks, because many transfers may time out shortly after each other.
    timeoutCheck = next == .never ? .never : max(next, now.advanced(by: .milliseconds(10)))
    return late
  }

  /// Records that all connections are closed.
  mutating func noteClosed() {
    closing = .never
    timer = .never
    examination = .never
  }
}
