import CCurl
import Glibc
import Synchronization

/// A reference to a pool that keeps the I/O thread running.
///
/// Releasing it ends the pool's transfers and closes its connections.
package final class ConnectionPoolHandle: Sendable {
  let pool: ConnectionPool
  private let thread: IOThread

  /// Opens a pool, and starts the I/O thread unless it runs.
  ///
  /// - Throws: `CurlTransportError` if the process has no thread or descriptor left, was forked, or is exiting.
  package init(_ configuration: CurlTransport.Configuration) throws(CurlTransportError) {
    thread = try IOThread.beginUse()
    pool = thread.makePool(configuration)
  }

  /// Opens a pool on a thread that the caller runs and stops.
  init(_ configuration: CurlTransport.Configuration, on thread: IOThread) {
    self.thread = thread
    pool = thread.makePool(configuration)
  }

  deinit {
    thread.post(.close(pool))
  }

  /// Passes a command to the I/O thread.
  ///
  /// - Returns: False if the process is exiting.
  @discardableResult
  func post(_ command: IOThread.Command) -> Bool { thread.post(command) }
}

extension IOThread {
  private struct Registry {
    /// The thread for new pools.
    var current: IOThread?
    /// The number of pools of this thread.
    var useCount = 0
    /// The running threads. A thread that is no longer `current` may still be closing connections.
    var running: [pthread_t] = []
    var isExiting = false
  }

  private static let registry = Mutex(Registry())
  private static let isForkedChild = Atomic(false)

  /// The number of running I/O threads.
  package static var runningCount: Int { registry.withLock { $0.running.count } }

  /// Checks that the process was not forked: a child has the sockets of its parent, but not the thread.
  ///
  /// - Throws: `CurlTransportError` in a forked child.
  static func checkProcess() throws(CurlTransportError) {
    guard !isForkedChild.load(ordering: .relaxed) else {
      throw CurlTransportError(.unavailable, "the process was forked")
    }
  }

  /// Returns the thread for a new pool. Each call must be matched by ``endUse(of:)``.
  static func beginUse() throws(CurlTransportError) -> IOThread {
    try LoadedLibcurl.check()
    guard prepareProcess else { throw CurlTransportError(.unavailable, "libcurl could not be set up") }
    try checkProcess()
    return try registry.withLock { (registry) throws(CurlTransportError) in
      guard !registry.isExiting else { throw CurlTransportError(.unavailable, "the process is exiting") }
      let thread: IOThread
      if let current = registry.current {
        thread = current
      } else {
        thread = try IOThread()
        guard let id = thread.start() else {
          throw CurlTransportError(.unavailable, "the process has no thread left")
        }
        registry.running.append(id)
        registry.current = thread
      }
      registry.useCount += 1
      return thread
    }
  }

  /// Ends a use of the thread.
  ///
  /// - Returns: Whether the thread has no pool left and must end.
  static func endUse(of thread: IOThread) -> Bool {
    registry.withLock { registry in
      guard registry.current === thread else { return false }
      registry.useCount -= 1
      guard registry.useCount == 0 else { return false }
      registry.current = nil
      return true
    }
  }

  /// Starts the thread; nil if the system refuses. The thread blocks signals, which the program's own threads receive.
  private func start() -> pthread_t? {
    let reference = Unmanaged.passRetained(self)
    var all = sigset_t()
    var before = sigset_t()
    sigfillset(&all)
    // The signals of a crash must be delivered to the thread that crashed.
    for signal in [SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT] { sigdelset(&all, signal) }
    pthread_sigmask(SIG_BLOCK, &all, &before)
    defer { pthread_sigmask(SIG_SETMASK, &before, nil) }
    var id = pthread_t()
    let code = pthread_create(
      &id, nil,
      { argument in
        guard let argument else { return nil }
        let thread = Unmanaged<IOThread>.fromOpaque(argument).takeRetainedValue()
        thread.run()
        IOThread.noteEnd()
        return nil
      }, reference.toOpaque())
    guard code == 0 else {
      reference.release()
      return nil
    }
    return id
  }

  /// Unregisters a thread at its end. Threads are joined only when the process exits.
  private static func noteEnd() {
    registry.withLock { registry in
      guard !registry.isExiting else { return }
      let me = pthread_self()
      registry.running.removeAll { pthread_equal($0, me) != 0 }
      pthread_detach(me)
    }
  }

  // MARK: The process

  /// Initializes libcurl once, and registers handlers for forking and exiting.
  private static let prepareProcess: Bool = {
    guard curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK else { return false }
    pthread_atfork(nil, nil) { IOThread.isForkedChild.store(true, ordering: .relaxed) }
    // Register after libcurl's initialization, so that this runs before OpenSSL's handler releases data in use.
    atexit { IOThread.stopAtExit() }
    return true
  }()

  private static func stopAtExit() {
    guard !isForkedChild.load(ordering: .relaxed) else { return }
    let (current, running) = registry.withLock { registry in
      registry.isExiting = true
      return (registry.current, registry.running)
    }
    current?.post(.stop)
    for id in running where pthread_equal(id, pthread_self()) == 0 { pthread_join(id, nil) }
  }
}
