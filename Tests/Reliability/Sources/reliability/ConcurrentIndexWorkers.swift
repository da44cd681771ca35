import Glibc
import LMDB

/// Two writing processes, which are repeatedly killed at random times and restarted, and two reading processes.
///
/// Only one process writes a key. The expected state of a key has a word for the change that has begun and one for
/// the change that has returned: twice the version, plus one if the key was removed.
/// A key that no process is changing must be found with its version.
struct ConcurrentIndexWorkers {
  static let keyCount = 3000
  static let writerCount = 2
  let directory: String

  private var expectedStatePath: String { directory + "/expectedState" }
  private var store: String { directory + "/store" }

  func run(seconds: Double, seed: UInt64) throws -> String {
    makeDirectory(directory)
    makeDirectory(store)
    _ = ExpectedState(path: expectedStatePath, keyCount: Self.keyCount)
    var random = SeededRandom(seed)
    let end = now() + seconds
    func start(_ role: String, _ number: Int) -> Child {
      let arguments = ["index-crowd", directory, role, "\(number)", "\(Int(max(end - now(), 0) * 1000))"]
      return Child.start(arguments, outputPath: "\(directory)/\(role)\(number).log")
    }
    var writers = (0..<Self.writerCount).map { start("write", $0) }
    let readers = (0..<2).map { start("read", $0) }
    var killCount = 0
    while now() < end - 0.5 {
      usleep(UInt32(random.below(150_000)))
      let number = random.below(Self.writerCount)
      writers[number].kill(SIGKILL)
      let ended = writers[number].wait()
      try require(ended == .signaled(SIGKILL), "a writer \(ended): \(writers[number].output)")
      killCount += 1
      // Sometimes make a process distrust the index file, so that it is recreated during lookups.
      if random.isBelow(0.1) { try require(start("distrust", 0).wait() == .exited(0), "a file was not recreated") }
      writers[number] = start("write", number)
    }
    for child in writers + readers {
      let ended = child.wait()
      try require(ended == .exited(0), "a process \(ended): \(child.output)")
    }
    let prototype = try IndexPrototype(directory: store)
    try require(try prototype.settle(), "the index cannot be opened")
    while try prototype.rebuild(limit: 500) {}
    if let wrong = try prototype.findWrongLookup(keyCount: UInt64(Self.keyCount), mayMiss: false)
      ?? prototype.findDifference()
    {
      throw IndexFailure(wrong)
    }
    let counts = readers.map { $0.output.split(separator: "\n").last ?? "" }.joined(separator: "; ")
    return "\(killCount) kills, \(prototype.file.current?.cellCount ?? 0) cells; readers: \(counts)"
  }

  func work(_ role: String, number: Int, seconds: Double) throws {
    let expectedState = ExpectedState(path: expectedStatePath, keyCount: Self.keyCount)
    let boot = role == "distrust" ? Boot(high: 1, low: 1) : .current
    let prototype = try IndexPrototype(directory: store, boot: boot)
    try require(try prototype.settle(), "the index cannot be opened")
    if role == "distrust" { return }
    if role == "write" {
      try write(prototype, expectedState, number, until: now() + seconds)
    } else {
      try read(prototype, expectedState, until: now() + seconds)
    }
  }

  private func write(_ prototype: IndexPrototype, _ expectedState: ExpectedState, _ number: Int, until end: Double)
    throws
  {
    var random = SeededRandom(UInt64(getpid()))
    let keys = stride(from: number, to: Self.keyCount, by: Self.writerCount).map { $0 }
    // After a kill, only the rows show whether an unfinished change of a key was committed.
    var versions: [UInt64: UInt64] = [:]
    for row in try prototype.allRows().values { versions[row.key] = max(versions[row.key] ?? 0, row.version) }
    for key in keys where expectedState[.started, key] != expectedState[.returned, key] {
      expectedState[.started, key] = versions[UInt64(key)].map { $0 * 2 } ?? expectedState[.started, key] | 1
      expectedState[.returned, key] = expectedState[.started, key]
    }
    // Use more and more keys, so that the index grows.
    var range = 50 + random.below(keys.count - 50)
    var next = UInt64(now() * 1000) << 16
    while now() < end {
      range = min(range + 2, keys.count)
      let chosen = Set((0..<(1 + random.below(12))).map { _ in keys[random.below(range)] })
      let isRemoval = random.isBelow(0.2)
      next += 1
      for key in chosen { expectedState[.started, key] = isRemoval ? expectedState[.started, key] | 1 : next * 2 }
      if isRemoval {
        while try !prototype.remove(chosen.map { UInt64($0) }) { _ = try prototype.rebuild(limit: 500) }
      } else {
        try require(try prototype.store(chosen.map { (UInt64($0), next) }), "no space")
      }
      for key in chosen { expectedState[.returned, key] = expectedState[.started, key] }
      _ = try prototype.rebuild(limit: 100)
    }
  }

  private func read(_ prototype: IndexPrototype, _ expectedState: ExpectedState, until end: Double) throws {
    var random = SeededRandom(UInt64(getpid()))
    var (hits, misses, changing) = (0, 0, 0)
    while now() < end {
      let key = random.below(Self.keyCount)
      let (returned, started) = (expectedState[.returned, key], expectedState[.started, key])
      let wasComplete = prototype.file.current?.isComplete == true
      let found = try prototype.lookup(UInt64(key))
      let isComplete = prototype.file.current?.isComplete == true
      let startedAfter = expectedState[.started, key]
      if let found { try require(found * 2 >= returned / 2 * 2, "key \(key): \(found) is older than \(returned / 2)") }
      if returned == started, started == startedAfter {
        let expected = returned == 0 || returned % 2 == 1 ? nil : returned / 2
        if found != expected, found != nil || (wasComplete && isComplete) {
          throw IndexFailure("key \(key): \(found ?? 0) was found instead of \(expected ?? 0)")
        }
        if found == nil { misses += 1 } else { hits += 1 }
      } else {
        changing += 1
      }
    }
    print("\(hits) hits, \(misses) misses, \(changing) lookups during a change")
  }
}
