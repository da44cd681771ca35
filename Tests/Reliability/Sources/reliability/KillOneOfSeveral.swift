import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import StoreContract
import Synchronization

/// Kills one of several processes that store, repeatedly, while every processor is busy.
///
/// A process that is killed while it waits for the write lock, or has just received it, must not keep the others from
/// writing. After each kill, each of the others must complete a flush that began after the kill. What a killed process
/// has left of a body that arrived counts against the capacity until another one frees it.
///
/// Three processes are the fewest with which a waiting one can be forgotten. A fourth would soon wake it.
struct KillOneOfSeveral {
  static let processCount = 3
  static let capacity = 8 << 20
  private static let keyCount = 400

  let setting: RunConfiguration
  let directory: String
  private var storePath: String { directory + "/store" }
  private var countsPath: String { directory + "/counts" }

  func run(killCount: Int) -> Bool {
    makeDirectory(directory)
    let started = now()
    let counts = FlushCounts(path: countsPath)
    let load = (0..<2 * max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)))).map {
      Child.start(["burn"], outputPath: directory + "/load.\($0)")
    }
    var children = (0..<Self.processCount).map { start($0) }
    var random = SeededRandom(setting.seed)
    var (doneCount, stuckCount, endedCount, longest) = (0, 0, 0, 0.0)
    // Wait until all have opened the store.
    var stuck = counts.stuck(among: Set(0..<Self.processCount))
    for round in 0..<killCount where stuck.isEmpty || round > 0 {
      doneCount += 1
      let victim = random.below(Self.processCount)
      usleep(UInt32(random.below(4000)))
      children[victim].kill(SIGKILL)
      if children[victim].wait() != .signaled(SIGKILL) {
        endedCount += 1
        say("kill: a storing process ended in round \(round): \(children[victim].output)")
      }
      let began = now()
      stuck = counts.stuck(among: Set(0..<Self.processCount).subtracting([victim]))
      stuckCount += stuck.count
      for number in stuck {
        say("kill: process \(number) does not complete a flush after round \(round): \(children[number].output)")
        children[number].kill(SIGKILL)
        _ = children[number].wait()
        children[number] = restart(number, counts)
      }
      longest = max(longest, now() - began)
      children[victim] = restart(victim, counts)
      if round % 100 == 99 { say("kill: one of several, \(round + 1) of \(killCount)") }
    }
    for child in children + load {
      child.kill(SIGKILL)
      _ = child.wait()
    }
    let (end, output) = Child.run(
      ["tiers-check", storePath, "\(Self.capacity)"], outputPath: directory + "/checker.log")
    if end != .exited(0) { say("kill: the checker \(end): \(output)") }
    let isGood = doneCount > 0 && counts.total > 0 && stuckCount == 0 && endedCount == 0 && end == .exited(0)
    setting.report(
      "kill: 1 of \(Self.processCount) storing processes on busy processors",
      "\(doneCount) kills (seed \(setting.seed)), \(counts.total) flushes, \(stuckCount) of the other processes could not "
        + "flush again, \(Int(longest * 1000)) ms at most until all had; \(Int(now() - started)) s: "
        + (isGood ? "OK" : "FAILED"))
    return isGood
  }

  private func start(_ number: Int) -> Child {
    Child.start(["store-and-flush", storePath, countsPath, "\(number)"], outputPath: directory + "/storing.\(number)")
  }

  private func restart(_ number: Int, _ counts: FlushCounts) -> Child {
    counts.reset(number)
    return start(number)
  }

  // MARK: Child processes

  /// Stores and flushes until the process is killed. Its writer thread always has something to write.
  static func storeAndFlush(_ directory: String, countsPath: String, number: Int) throws(StoreError) -> Never {
    let counts = FlushCounts(path: countsPath)
    var options = Scenarios.options(capacity)
    options.commitDelay = .zero
    // Small, so that the queue is always full and a flush is short.
    options.queueByteCount = 256 << 10
    let store = try ResponseStore.open(directory: directory, options: options)
    startThread {
      var random = SeededRandom(UInt64(getpid()))
      while true {
        let response = CacheableResponse(
          status: 200, fields: HeaderFields([]), body: Data(repeating: 7, count: 100),
          freshness: Content.freshness(at: Date()), vary: VaryKey(fields: []))
        store.store(response, for: RequestKey(urlString: "http://a.example/\(random.below(keyCount))")!)
      }
    }
    startThread { while true { storeInPieces(in: store) } }
    while true {
      counts.begin(number)
      do throws(StoreError) { try store.flush() } catch { fail("flush failed: \(error)") }
      counts.end(number)
      let excess = store.excessByteCount
      if excess > 0 { fail("\(excess) bytes on disk above the capacity and its 10%") }
    }
  }

  /// Stores a body of up to 1.6 MB in pieces, unless the store has no space for it.
  private static func storeInPieces(in store: ResponseStore) {
    let body = store.makeIncomingBody()
    for _ in 0..<Int.random(in: 1...16) {
      guard body.write([Data(repeating: 7, count: 100_000)]) else { return }
      usleep(200)
    }
    guard body.complete() else { return }
    let head = CacheableResponse(
      status: 200, fields: HeaderFields([]), body: Data(), freshness: Content.freshness(at: Date()),
      vary: VaryKey(fields: []))
    _ = body.store(
      head, for: RequestKey(urlString: "http://large.example/\(Int.random(in: 0..<8))")!, attachment: nil, askedAt: nil,
      by: nil)
  }

  /// Keeps a processor busy until the process is killed, also if the process that started it is gone.
  static func burn() -> Never {
    let parent = getppid()
    while getppid() == parent { for _ in 0..<100_000 { _ = SeededRandom.mixed(1) } }
    exit(0)
  }
}

/// How many flushes each process has begun and ended, in a file that all of them map.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and every access to it is atomic.
final class FlushCounts: @unchecked Sendable {
  private static let byteCount = 4096
  private let words: UnsafeMutablePointer<Atomic<UInt64>>

  init(path: String) {
    let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    guard descriptor >= 0, ftruncate(descriptor, off_t(Self.byteCount)) == 0,
      let memory = mmap(nil, Self.byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), memory != MAP_FAILED
    else { fail("cannot map \(path)") }
    close(descriptor)
    words = memory.assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  deinit { munmap(words, Self.byteCount) }

  private func begun(_ number: Int) -> UInt64 { words[2 + 2 * number].load(ordering: .sequentiallyConsistent) }
  private func ended(_ number: Int) -> UInt64 { words[3 + 2 * number].load(ordering: .sequentiallyConsistent) }

  func begin(_ number: Int) { words[2 + 2 * number].wrappingAdd(1, ordering: .sequentiallyConsistent) }

  func end(_ number: Int) {
    words[3 + 2 * number].wrappingAdd(1, ordering: .sequentiallyConsistent)
    words[0].wrappingAdd(1, ordering: .sequentiallyConsistent)
  }

  /// The number of flushes of all processes.
  var total: UInt64 { words[0].load(ordering: .sequentiallyConsistent) }

  /// Begins to count for a process that replaces one that has ended.
  func reset(_ number: Int) {
    for index in 2...3 { words[index + 2 * number].store(0, ordering: .sequentiallyConsistent) }
  }

  /// Waits until each process has ended a flush that it begins from now on. Returns those that do not within 30
  /// seconds.
  func stuck(among numbers: Set<Int>) -> Set<Int> {
    let deadline = now() + 30
    let targets = numbers.map { (number: $0, count: begun($0) + 1) }
    var waiting = targets
    while !waiting.isEmpty, now() < deadline {
      waiting.removeAll { ended($0.number) >= $0.count }
      usleep(200)
    }
    return Set(waiting.map(\.number))
  }
}
