import Glibc

/// A thread that must be joined.
struct OriginThread: Sendable {
  private final class Work: Sendable {
    let body: @Sendable () -> Void
    init(_ body: @escaping @Sendable () -> Void) { self.body = body }
  }

  let id: pthread_t

  /// Runs `body` on a new thread.
  ///
  /// - Throws: `OriginError` if the system has no thread left.
  init(_ body: @escaping @Sendable () -> Void) throws(OriginError) {
    var attributes = pthread_attr_t()
    pthread_attr_init(&attributes)
    defer { pthread_attr_destroy(&attributes) }
    // Hundreds of threads may run. One megabyte is enough for a handler, and little address space.
    pthread_attr_setstacksize(&attributes, 1 << 20)
    var id = pthread_t()
    let work = Unmanaged.passRetained(Work(body))
    let failure = pthread_create(
      &id, &attributes,
      { work in
        // Never nil, because it is the pointer passed below.
        if let work { Unmanaged<Work>.fromOpaque(work).takeRetainedValue().body() }
        return nil
      }, work.toOpaque())
    guard failure == 0 else {
      work.release()
      throw OriginError(function: "pthread_create", number: failure)
    }
    self.id = id
  }

  /// Waits for the end of the thread. Call this once.
  func join() {
    pthread_join(id, nil)
  }
}
