import CCurl
import Glibc
import Synchronization

/// Keeps a pool, and with it the I/O thread. When the last reference goes, the pool's transfers end and its connections
/// close.
final class ConnectionPoolHandle: Sendable {
  let pool: ConnectionPool
  private let thread: IOThread

  /// Opens a pool, and starts the I/O thread if it does not run.
  ///
  /// - Throws: `CurlTransportError` if the process has no thread or descriptor left, was forked, or ends.
  init(_ configuration: CurlTransport.Configuration) throws(CurlTransportError) {
    thread = try IOThread.beginUse()
    pool = thread.makePool(configuration)
  }

  deinit {
    thread.post(.close(pool))
  }

  /// Passes a command to the I/O thread.
  ///
  /// - Returns: false if the process is about to end.
  @discardableResult
  func post(_ command: IOThread.Command) -> Bool { thread.post(command) }
}

extension IOThread {
  private struct Registry {
    /// The thread that new pools get.
    var current: IOThread?
    /// The number of its pools.
    var useCount = 0
    /// The threads that have not ended yet. One that is about to end may still be closing connections.
    var running: [pthread_t] = []
    var isExiting = false
  }

  private static let registry = Mutex(Registry())
  private static let isForkedChild = Atomic(false)

  /// The number of I/O threads that have not ended.
  static var runningCount: Int { registry.withLock { $0.running.count } }

  /// - Throws: `CurlTransportError` in a forked child, which has the sockets of its parent, but not the thread.
  static func checkProcess() throws(CurlTransportError) {
    guard !isForkedChild.load(ordering: .relaxed) else {
      throw CurlTransportError(.unavailable, "the process was forked")
    }
  }

  /// The thread for one more pool. Each call is matched by one of ``endUse(of:)``.
  static func beginUse() throws(CurlTransportError) -> IOThread {
    guard prepareProcess else { throw CurlTransportError(.unavailable, "libcurl could not be set up") }
    try checkProcess()
    return try registry.withLock { (registry) throws(CurlTransportError) in
      guard !registry.isExiting else { throw CurlTransportError(.unavailable, "the process is about to end") }
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

  /// - Returns: whether the thread has no pool left, and ends.
  static func endUse(of thread: IOThread) -> Bool {
    registry.withLock { registry in
      guard registry.current === thread else { return false }
      registry.useCount -= 1
      guard registry.useCount == 0 else { return false }
      registry.current = nil
      return true
    }
  }

  /// Starts the thread; nil if the system has no place for one. Signals are left to the program's own threads.
  private func start() -> pthread_t? {
    let reference = Unmanaged.passRetained(self)
    var all = sigset_t()
    var before = sigset_t()
    sigfillset(&all)
    // A crash belongs to the thread that crashed.
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

  /// Called at the end of a thread. It is joined only when the process ends.
  private static func noteEnd() {
    registry.withLock { registry in
      guard !registry.isExiting else { return }
      let me = pthread_self()
      registry.running.removeAll { pthread_equal($0, me) != 0 }
      pthread_detach(me)
    }
  }

  // MARK: The process

  /// Sets libcurl up, once, and what must happen when the process forks or ends.
  private static let prepareProcess: Bool = {
    guard curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK else { return false }
    pthread_atfork(nil, nil) { IOThread.isForkedChild.store(true, ordering: .relaxed) }
    // After libcurl, and so before OpenSSL's own handler takes away what the thread is using.
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
