import CCurl
import CacheModel
import Glibc
import Synchronization

/// The thread for all transfers of the process: only this thread calls libcurl's easy and multi functions.
///
/// It runs while a ``ConnectionPoolHandle`` exists. `@unchecked Sendable`: `inbox` has a lock; only the thread uses the
/// rest.
package final class IOThread: @unchecked Sendable {
  /// A command from another thread.
  enum Command: Sendable {
    case start(Transfer)
    case cancel(Transfer)
    case resumeReceiving(Transfer)
    case open(ConnectionPool)
    case close(ConnectionPool)
    /// The process is exiting. Nothing is cleaned up.
    case stop
  }

  private struct Inbox {
    var commands: [Command] = []
    /// Whether the thread waits, or is about to, and has not been woken.
    var isWaiting = false
    var isClosed = false
  }

  private let inbox = Mutex(Inbox())
  private let wakeUp: CInt
  private let poller: SocketPoller
  private let clock: LoopClock
  private var pools: [ConnectionPool] = []
  private var commands: [Command] = []
  private var isStopped = false

  init(clock: LoopClock = LoopClock()) throws(CurlTransportError) {
    let wakeUp = eventfd(0, CInt(EFD_NONBLOCK | EFD_CLOEXEC))
    guard wakeUp >= 0, let poller = SocketPoller(wakeUp: wakeUp) else {
      if wakeUp >= 0 { Glibc.close(wakeUp) }
      throw CurlTransportError(.unavailable, "the process has no descriptor left")
    }
    self.wakeUp = wakeUp
    self.poller = poller
    self.clock = clock
  }

  deinit {
    Glibc.close(wakeUp)
  }

  // MARK: Other threads

  /// Queues a command, and wakes the thread if it waits.
  ///
  /// - Returns: False if the thread has stopped, because the process is exiting.
  @discardableResult
  func post(_ command: Command) -> Bool {
    let wakes = inbox.withLock { inbox -> Bool? in
      guard !inbox.isClosed else { return nil }
      inbox.commands.append(command)
      defer { inbox.isWaiting = false }
      return inbox.isWaiting
    }
    guard let wakes else { return false }
    if wakes {
      var one: UInt64 = 1
      _ = write(wakeUp, &one, MemoryLayout<UInt64>.size)
    }
    return true
  }

  /// Creates a pool that this thread serves.
  func makePool(_ configuration: CurlTransport.Configuration) -> ConnectionPool {
    let pool = ConnectionPool(configuration, poller: poller, clock: clock)
    post(.open(pool))
    return pool
  }

  // MARK: The loop

  /// Serves the pools until the last of them is closed, or the process exits.
  func run() {
    while !isStopped {
      var next = MonotonicTime.never
      for pool in pools { next = min(next, pool.nextTime) }
      // A command that is posted from here on wakes the thread.
      let mayWait = inbox.withLock { inbox -> Bool in
        inbox.isWaiting = inbox.commands.isEmpty
        return inbox.isWaiting
      }
      clock.update()
      let eventCount = poller.wait(milliseconds: mayWait ? next.milliseconds(after: clock.now) : 0)
      clock.update()
      for index in 0..<eventCount { poller.handle(event: index) }
      // Do all work before the next wait, which may otherwise never end.
      repeat {
        takeCommands()
        for pool in pools { pool.runTimers() }
      } while finishTransfers() || publish()
    }
    inbox.withLock { $0.isClosed = true }
  }

  private func finishTransfers() -> Bool {
    var hasFinished = false
    var isShort = false
    for pool in pools {
      if pool.finishTransfers() { hasFinished = true }
      if pool.takeShortage() { isShort = true }
    }
    // The idle connections of one transport make space for another.
    if isShort { for pool in pools { pool.releaseIdleConnections() } }
    return hasFinished
  }

  private func publish() -> Bool {
    var goesOn = false
    for pool in pools where pool.publish() { goesOn = true }
    return goesOn
  }

  private func takeCommands() {
    inbox.withLock { inbox in
      inbox.isWaiting = false
      swap(&inbox.commands, &commands)
    }
    for command in commands {
      switch command {
      case .start(let transfer): transfer.pool.start(transfer)
      case .cancel(let transfer): transfer.pool.cancel(transfer)
      case .resumeReceiving(let transfer): transfer.pool.resumeReceiving(transfer)
      case .open(let pool): pools.append(pool)
      case .close(let pool):
        pool.close()
        pools.removeAll { $0 === pool }
        if IOThread.endUse(of: self) { isStopped = true }
      case .stop: isStopped = true
      }
    }
    commands.removeAll(keepingCapacity: true)
  }
}
