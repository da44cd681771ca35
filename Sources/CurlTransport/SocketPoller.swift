import CCurl
import Glibc

/// The sockets of all transfers, watched with epoll for libcurl. Only the I/O thread uses it.
///
/// Changes are collected during a round of the thread's loop and applied before the next wait, because most of them
/// cancel each other. This applies only to sockets that are known to be open: those created here and not closed since.
/// Changes of other sockets are applied at once, because libcurl closes some of them without notice, and reuses the
/// numbers of closed descriptors within a round.
///
/// The socket of an idle connection stays in epoll until an event arrives, because most are used again before.
final class SocketPoller {
  private struct Entry {
    /// The pool of the socket, which lives as long as its sockets; nil without a pool.
    var pool: Unmanaged<ConnectionPool>?
    /// The events for libcurl, and the events watched by epoll: `CURL_POLL_IN`, `CURL_POLL_OUT`, both, or 0.
    var wanted: CInt = 0
    var watched: CInt = 0
    /// Whether the socket was created here and is open.
    var isOwn = false
    var isChanged = false
  }

  private let epoll: CInt
  private let wakeUp: CInt
  private var entries: [Entry] = []
  private var changed: [CInt] = []
  private var events = [epoll_event](repeating: epoll_event(), count: 256)

  /// Creates a poller.
  ///
  /// - Parameter wakeUp: A descriptor that ends the wait at each write to it. It need not be read.
  /// - Returns: Nil if the process has no descriptor left.
  init?(wakeUp: CInt) {
    epoll = epoll_create1(CInt(EPOLL_CLOEXEC))
    self.wakeUp = wakeUp
    guard epoll >= 0 else { return nil }
    var event = epoll_event()
    event.events = EPOLLIN.rawValue | EPOLLET.rawValue
    event.data.fd = wakeUp
    epoll_ctl(epoll, EPOLL_CTL_ADD, wakeUp, &event)
  }

  deinit {
    if epoll >= 0 { close(epoll) }
  }

  // MARK: Sockets

  /// Registers a new socket without events, and forgets any earlier socket with this number.
  func opened(_ descriptor: CInt) {
    closed(descriptor)
    entries[Int(descriptor)].isOwn = true
  }

  /// Forgets a closed socket, which leaves epoll by itself.
  func closed(_ descriptor: CInt) {
    makeEntry(descriptor)
    let isChanged = entries[Int(descriptor)].isChanged
    entries[Int(descriptor)] = Entry(isChanged: isChanged)
  }

  /// Changes the watched events of a socket.
  ///
  /// - Parameter wanted: `CURL_POLL_IN`, `CURL_POLL_OUT`, `CURL_POLL_INOUT` or `CURL_POLL_REMOVE`.
  /// - Returns: Whether the socket was created here, was waiting for its connection, and is no longer watched.
  func watch(_ descriptor: CInt, for wanted: CInt, of pool: ConnectionPool) -> Bool {
    makeEntry(descriptor)
    let wanted = wanted == CURL_POLL_REMOVE ? 0 : wanted
    let before = entries[Int(descriptor)]
    entries[Int(descriptor)].wanted = wanted
    entries[Int(descriptor)].pool = wanted == 0 ? nil : Unmanaged.passUnretained(pool)
    if !before.isOwn {
      apply(descriptor)
    } else if !before.isChanged {
      entries[Int(descriptor)].isChanged = true
      changed.append(descriptor)
    }
    return before.isOwn && before.wanted == CURL_POLL_OUT && wanted == 0
  }

  /// Forgets a pool whose sockets are all closed. libcurl may have closed some of them without notice.
  func forget(_ pool: ConnectionPool) {
    let pointer = Unmanaged.passUnretained(pool).toOpaque()
    for index in entries.indices where entries[index].pool?.toOpaque() == pointer { closed(CInt(index)) }
  }

  private func makeEntry(_ descriptor: CInt) {
    while entries.count <= Int(descriptor) { entries.append(Entry()) }
  }

  /// Returns whether the process can open another descriptor.
  func hasDescriptorLeft() -> Bool {
    let copy = fcntl(wakeUp, F_DUPFD_CLOEXEC, 0)
    guard copy >= 0 else { return errno != EMFILE && errno != ENFILE }
    close(copy)
    return true
  }

  // MARK: epoll

  /// Waits for events.
  ///
  /// - Parameter milliseconds: The maximum wait; -1 waits for an event.
  /// - Returns: The number of events. Pass each to ``handle(event:)``.
  func wait(milliseconds: CInt) -> Int {
    for descriptor in changed {
      entries[Int(descriptor)].isChanged = false
      let entry = entries[Int(descriptor)]
      let isIdle = entry.wanted == 0 && entry.isOwn && entry.watched == CURL_POLL_IN
      if entry.wanted != entry.watched, !isIdle { apply(descriptor) }
    }
    changed.removeAll(keepingCapacity: true)
    return max(0, Int(epoll_wait(epoll, &events, CInt(events.count), milliseconds)))
  }

  /// Passes an event to the pool of its socket, unless it only woke the thread.
  func handle(event index: Int) {
    let descriptor = events[index].data.fd
    if descriptor == wakeUp { return }
    guard entries[Int(descriptor)].wanted != 0, let pool = entries[Int(descriptor)].pool else {
      // The connection is idle, or an earlier event of the round has removed the interest.
      if entries[Int(descriptor)].watched != 0 { apply(descriptor) }
      return
    }
    let happened = events[index].events
    var condition: CInt = 0
    if happened & EPOLLIN.rawValue != 0 { condition |= CURL_CSELECT_IN }
    if happened & EPOLLOUT.rawValue != 0 { condition |= CURL_CSELECT_OUT }
    if happened & (EPOLLERR.rawValue | EPOLLHUP.rawValue) != 0 { condition |= CURL_CSELECT_ERR }
    pool.takeUnretainedValue().act(on: descriptor, condition)
  }

  private func apply(_ descriptor: CInt) {
    let wanted = entries[Int(descriptor)].wanted
    // If a socket was closed without notice, `watched` may be wrong in either direction.
    if wanted == 0 {
      control(EPOLL_CTL_DEL, descriptor, 0)
    } else if entries[Int(descriptor)].watched == 0 {
      if !control(EPOLL_CTL_ADD, descriptor, wanted), errno == EEXIST { control(EPOLL_CTL_MOD, descriptor, wanted) }
    } else if !control(EPOLL_CTL_MOD, descriptor, wanted), errno == ENOENT {
      control(EPOLL_CTL_ADD, descriptor, wanted)
    }
    entries[Int(descriptor)].watched = wanted
  }

  @discardableResult
  private func control(_ operation: CInt, _ descriptor: CInt, _ wanted: CInt) -> Bool {
    var event = epoll_event()
    if wanted & CURL_POLL_IN != 0 { event.events |= EPOLLIN.rawValue }
    if wanted & CURL_POLL_OUT != 0 { event.events |= EPOLLOUT.rawValue }
    event.data.fd = descriptor
    return epoll_ctl(epoll, operation, descriptor, &event) == 0
  }
}
