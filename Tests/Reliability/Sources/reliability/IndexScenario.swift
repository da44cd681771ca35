import Glibc
import LMDB

/// The changes during which a process is killed.
enum IndexScenario: String, CaseIterable {
  case store, replace, remove, growth, rebuild, mixed

  /// Returns the digest of a key.
  ///
  /// Most scenarios use digests that collide: three keys share one, and all home cells are close together, so that
  /// records displace each other. Growth and rebuild use well-distributed digests.
  var digest: @Sendable (UInt64) -> UInt64 {
    switch self {
    case .store, .replace, .remove, .mixed: { IndexPrototype.spread($0 / 3) >> 4 }
    case .growth, .rebuild: IndexPrototype.spread
    }
  }

  var keyCount: UInt64 { 400 }

  /// The boots of the first and the last process; they differ for a rebuild, which begins after a reboot.
  var firstBoot: Boot { .current }
  var lastBoot: Boot { self == .rebuild ? Boot(high: 7, low: 7) : .current }

  func open(_ directory: String, boot: Boot = .current) throws(LMDBError) -> IndexPrototype {
    try IndexPrototype(directory: directory, boot: boot, digest: digest)
  }

  private func versions(_ keys: some Sequence<UInt64>, _ version: UInt64) -> [(key: UInt64, version: UInt64)] {
    keys.map { ($0, version) }
  }

  /// Stores the rows that exist before the change.
  func prepare(_ prototype: IndexPrototype) throws {
    let count: UInt64 =
      switch self {
      case .store, .replace, .remove, .mixed: 60
      case .growth: 330
      case .rebuild: 60
      }
    try require(try prototype.store(versions(0..<count, 1)), "no space")
  }

  /// Makes the change.
  func run(_ prototype: IndexPrototype) throws {
    let isDone =
      switch self {
      case .store: try prototype.store(versions(60..<70, 1))
      // Some keys occur twice in the same transaction.
      case .replace: try prototype.store(versions([3, 4, 5, 6, 4, 40], 2) + versions([5, 59], 3))
      case .remove: try prototype.remove([0, 1, 2, 17, 30, 31, 59])
      case .growth: try grow(prototype)
      case .rebuild: try rebuild(prototype)
      case .mixed:
        try prototype.store(versions(stride(from: 0, to: 90, by: 7), 2)) && prototype.remove([0, 1, 2, 56, 63, 77])
          && prototype.store(versions([0, 8, 9, 56, 100], 3))
      }
    try require(isDone, "no space")
  }

  /// Stores, replaces and removes keys while their rows are copied to a larger file, and until it is in use.
  private func grow(_ prototype: IndexPrototype) throws -> Bool {
    for key in stride(from: 330 as UInt64, to: 366, by: 9) {
      guard try prototype.store(versions(key..<key + 9, 1)), try prototype.remove([key - 300, key - 200]),
        try prototype.store(versions([key - 250, key - 150], 2))
      else { return false }
    }
    try require(prototype.file.current?.cellCount == 1024, "the index did not grow")
    return true
  }

  /// Stores new versions of keys whose older rows the rebuild has not reached yet.
  private func rebuild(_ prototype: IndexPrototype) throws -> Bool {
    _ = try prototype.settle()
    try require(try prototype.store(versions([2, 30, 50], 2)), "no space")
    _ = try prototype.rebuild(limit: 20)
    try require(try prototype.store(versions([2, 10, 55], 3)), "no space")
    _ = try prototype.remove([10])
    while try prototype.rebuild(limit: 20) {}
    return true
  }

  /// Checks the index after a kill and throws if it is wrong.
  ///
  /// - Parameter isSettled: Whether the checker takes the write lock first, as every process does that opens or writes.
  func check(_ prototype: IndexPrototype, isSettled: Bool) throws {
    if isSettled { try require(try prototype.settle(), "the index cannot be opened") }
    while true {
      let mayMiss = !isSettled || prototype.file.current?.isComplete != true
      if let wrong = try prototype.findWrongLookup(keyCount: keyCount, mayMiss: mayMiss) { throw IndexFailure(wrong) }
      guard isSettled else { return }
      guard mayMiss else { break }
      _ = try prototype.rebuild(limit: 7)
    }
    if let difference = try prototype.findDifference() { throw IndexFailure(difference) }
    // The store must work as before.
    try require(try prototype.store(versions([1, 61, 399], 9)) && prototype.remove([61, 20]), "no space")
    if let wrong = try prototype.findWrongLookup(keyCount: keyCount, mayMiss: false) ?? prototype.findDifference() {
      throw IndexFailure("afterwards \(wrong)")
    }
  }

  /// Runs the child process, which kills itself at the given step.
  func runChild(_ directory: String, step: Int) throws {
    let prototype = try open(directory, boot: lastBoot)
    nonisolated(unsafe) var count = 0
    onIndexStep = {
      count += 1
      if count == step { kill(getpid(), SIGKILL) }
    }
    try run(prototype)
  }
}
