import Glibc
import Synchronization

/// Records the maximum duration of calls by kind.
final class LatencyRecorder: Sendable {
  /// Maximum durations in seconds.
  struct Longest {
    var call = 0.0
    /// The maximum time that a thread was blocked in a call, by a lock or the disk.
    ///
    /// During the rest of a call the thread runs, or other threads, the kernel or the host use its processor.
    var wait = 0.0
  }

  struct Kinds {
    var read = Longest()
    var store = Longest()
    /// A loop that does not use the store.
    var pause = Longest()
  }

  private let longest = Mutex(Kinds())
  private let over = Atomic<Bool>(false)
  private let paced = Atomic<Bool>(false)

  /// Whether the storing thread pauses between writes.
  var isPaced: Bool {
    get { paced.load(ordering: .relaxed) }
    set { paced.store(newValue, ordering: .relaxed) }
  }
  var isOver: Bool { over.load(ordering: .relaxed) }
  func end() { over.store(true, ordering: .relaxed) }

  func add(_ call: Longest, _ kind: WritableKeyPath<Kinds, Longest>) {
    longest.withLock { longest in
      longest[keyPath: kind].call = max(longest[keyPath: kind].call, call.call)
      longest[keyPath: kind].wait = max(longest[keyPath: kind].wait, call.wait)
    }
  }

  func forget(_ kind: WritableKeyPath<Kinds, Longest>) {
    longest.withLock { $0[keyPath: kind] = Longest() }
  }

  /// Returns the maximum durations since the last call.
  func take() -> Kinds {
    longest.withLock { longest in
      defer { longest = Kinds() }
      return longest
    }
  }
}

/// Measures the calls of the thread that created it.
struct CallTimer: ~Copyable {
  private struct Times {
    var now: Double
    var processor: Double
    var queued: Double
    /// The number of voluntary context switches.
    var sleepCount: Int
  }

  private let stalls: LatencyRecorder
  /// A descriptor of the scheduler statistics.
  ///
  /// The second number in them is the time that the thread waited for a processor, in nanoseconds.
  private let statistics = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)

  init(_ stalls: LatencyRecorder) { self.stalls = stalls }

  deinit {
    if statistics >= 0 { close(statistics) }
  }

  /// Runs a call and returns its duration in seconds; calls of up to 0.5 ms are not recorded.
  @discardableResult
  func time(_ kind: WritableKeyPath<LatencyRecorder.Kinds, LatencyRecorder.Longest>, _ call: () -> Void) -> Double {
    let before = times()
    call()
    let seconds = now() - before.now
    guard seconds > 0.0005 else { return seconds }
    let after = times()
    var longest = LatencyRecorder.Longest(call: seconds)
    if after.sleepCount != before.sleepCount {
      // This includes time taken by the host, which cannot be distinguished.
      longest.wait = max(0, seconds - (after.processor - before.processor) - (after.queued - before.queued))
    }
    stalls.add(longest, kind)
    return seconds
  }

  /// Reads the clock until the given time has passed.
  func spin(_ kind: WritableKeyPath<LatencyRecorder.Kinds, LatencyRecorder.Longest>, seconds: Double) {
    time(kind) {
      let end = now() + seconds
      while now() < end {}
    }
  }

  private func times() -> Times {
    var usage = rusage()
    // 1 is RUSAGE_THREAD, which the C library declares only for GNU sources.
    getrusage(1, &usage)
    var processor = timespec()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor)
    return Times(
      now: now(), processor: Double(processor.tv_sec) + Double(processor.tv_nsec) / 1e9, queued: queuedSeconds(),
      sleepCount: usage.ru_nvcsw)
  }

  /// Returns the time that the thread waited for a processor in seconds, or 0 if the kernel does not count it.
  private func queuedSeconds() -> Double {
    withUnsafeTemporaryAllocation(byteCount: 64, alignment: 1) { text in
      let count = pread(statistics, text.baseAddress, text.count - 1, 0)
      guard count > 0 else { return 0 }
      text[count] = 0
      let start = text.baseAddress?.assumingMemoryBound(to: CChar.self)
      guard let start, let space = strchr(start, CInt(UInt8(ascii: " "))) else { return 0 }
      return Double(strtoull(space, nil, 10)) / 1e9
    }
  }
}
