import Glibc
import Synchronization

/// The longest that calls took, by kind.
final class Stalls: Sendable {
  /// In seconds.
  struct Longest {
    var call = 0.0
    /// The longest in one call that its thread was asleep, for a lock or the disk. The rest of a call the thread runs, or is kept from its
    /// processor by other threads, the kernel, or what else runs on the machine's host.
    var wait = 0.0
  }

  struct Kinds {
    var read = Longest()
    var store = Longest()
    /// What a thread does that leaves the store alone.
    var pause = Longest()
  }

  private let longest = Mutex(Kinds())
  private let over = Atomic<Bool>(false)
  private let paced = Atomic<Bool>(false)

  /// Whether the storing thread takes its time.
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

  /// The longest since the last time this was asked.
  func take() -> Kinds {
    longest.withLock { longest in
      defer { longest = Kinds() }
      return longest
    }
  }
}

/// Times the calls of the thread that made it.
struct CallTimer: ~Copyable {
  private struct Times {
    var now: Double
    var processor: Double
    var queued: Double
    /// How often the thread gave up its processor by itself.
    var sleepCount: Int
  }

  private let stalls: Stalls
  /// The second number in it: the nanoseconds that the thread was ready and had no processor.
  private let statistics = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)

  init(_ stalls: Stalls) { self.stalls = stalls }

  deinit {
    if statistics >= 0 { close(statistics) }
  }

  /// Runs a call, and returns the seconds that it took.
  @discardableResult
  func time(_ kind: WritableKeyPath<Stalls.Kinds, Stalls.Longest>, _ call: () -> Void) -> Double {
    let before = times()
    call()
    let seconds = now() - before.now
    guard seconds > 0.0005 else { return seconds }
    let after = times()
    var longest = Stalls.Longest(call: seconds)
    if after.sleepCount != before.sleepCount {
      // Also what the host took away meanwhile, which nothing tells apart.
      longest.wait = max(0, seconds - (after.processor - before.processor) - (after.queued - before.queued))
    }
    stalls.add(longest, kind)
    return seconds
  }

  /// Looks at the clock until the seconds are over.
  func spin(_ kind: WritableKeyPath<Stalls.Kinds, Stalls.Longest>, seconds: Double) {
    time(kind) {
      let end = now() + seconds
      while now() < end {}
    }
  }

  private func times() -> Times {
    var usage = rusage()
    // RUSAGE_THREAD, which the C library shows to GNU sources only.
    getrusage(1, &usage)
    var processor = timespec()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor)
    return Times(
      now: now(), processor: Double(processor.tv_sec) + Double(processor.tv_nsec) / 1e9, queued: queuedSeconds(),
      sleepCount: usage.ru_nvcsw)
  }

  /// 0 where the kernel does not count it.
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
