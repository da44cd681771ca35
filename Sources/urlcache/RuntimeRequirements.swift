import Glibc

/// The needs of the Swift runtime and libdispatch that the system must meet.
///
/// Without it they end the process with a signal, or wait forever for a thread.
enum RuntimeRequirements {
  /// The open files without which the threads of libdispatch cannot begin to work.
  private static let minimumFileCount: rlim_t = 32
  /// The threads besides the first one that libdispatch starts before a command runs.
  private static let minimumThreadCount = 3

  /// Call this before the first task. Costs some hundred microseconds.
  ///
  /// - Throws: `ToolError` that names what is missing.
  static func check() throws(ToolError) {
    try checkFileLimit()
    try checkProcessFiles()
    try checkThreads()
  }

  private static func checkFileLimit() throws(ToolError) {
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    guard limit.rlim_cur >= minimumFileCount else {
      throw ToolError("The limit of open files is \(limit.rlim_cur), and the tool needs \(minimumFileCount).")
    }
  }

  private static func checkProcessFiles() throws(ToolError) {
    for file in ["/proc/self/cmdline", "/proc/self/task"] {
      let descriptor = open(file, O_RDONLY | O_CLOEXEC)
      guard descriptor >= 0 else {
        throw ToolError(
          "\(file), which the Swift runtime needs, cannot be opened: \(String(cString: strerror(errno))).")
      }
      close(descriptor)
    }
  }

  /// Starts as many threads at the same time as libdispatch needs, which tries again forever if it cannot.
  private static func checkThreads() throws(ToolError) {
    let gate = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
    pthread_mutex_init(gate, nil)
    pthread_mutex_lock(gate)
    var threads: [pthread_t] = []
    var code: CInt = 0
    while threads.count < minimumThreadCount, code == 0 {
      var thread = pthread_t()
      // The thread ends when the gate opens.
      let body: @convention(c) (UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? = { gate in
        guard let gate = gate?.assumingMemoryBound(to: pthread_mutex_t.self) else { return nil }
        pthread_mutex_lock(gate)
        pthread_mutex_unlock(gate)
        return nil
      }
      code = pthread_create(&thread, nil, body, gate)
      if code == 0 { threads.append(thread) }
    }
    pthread_mutex_unlock(gate)
    for thread in threads { pthread_join(thread, nil) }
    pthread_mutex_destroy(gate)
    gate.deallocate()
    guard code == 0 else {
      throw ToolError(
        "The system cannot start another thread: \(String(cString: strerror(code))). Raise the limits on threads and "
          + "memory (ulimit -u and -v), or end some threads.")
    }
  }
}
