import Foundation
import LMDB
import Synchronization

/// A directory that goes away with its owner.
final class TemporaryDirectory: Sendable {
  /// Where all of them lie. Exit tests inherit it, and die without clearing up: the first process clears it at its end.
  static let root: String = {
    let variable = "LMDB_TESTS_ROOT"
    if let inherited = ProcessInfo.processInfo.environment[variable] { return inherited }
    let root = FileManager.default.temporaryDirectory.appendingPathComponent("LMDBTests-\(UUID().uuidString)").path
    setenv(variable, root, 1)
    atexit {
      // Nothing to do about a directory that stays: the system clears it in time.
      try? FileManager.default.removeItem(atPath: TemporaryDirectory.root)
    }
    return root
  }()

  let path: String

  init() {
    path = Self.root + "/" + UUID().uuidString
    do {
      try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    } catch {
      fatalError("no temporary directory: \(error)")
    }
  }

  deinit {
    // Nothing to do about a directory that stays: the system clears it in time.
    try? FileManager.default.removeItem(atPath: path)
  }

  var dataFile: String { path + "/" + DataFile.name }

  func open(
    mapByteCount: Int = 1 << 20, _ configure: (inout Environment.Options) -> Void = { _ in }
  ) throws(LMDBError) -> Environment {
    var options = Environment.Options(mapByteCount: mapByteCount)
    configure(&options)
    return try Environment.open(directory: path, options: options)
  }
}

/// An environment in a directory of its own, with one table.
struct Fixture {
  let directory: TemporaryDirectory
  let environment: Environment
  let table: Table<BigEndianUInt64, BytesCodec>

  init(mapByteCount: Int = 1 << 20, _ configure: (inout Environment.Options) -> Void = { _ in }) throws(LMDBError) {
    directory = TemporaryDirectory()
    environment = try directory.open(mapByteCount: mapByteCount, configure)
    table = try environment.table("table", key: BigEndianUInt64.self, value: BytesCodec.self)
  }

  func put(_ keys: some Sequence<UInt64>, byteCount: Int = 8) throws(LMDBError) {
    try environment.write { transaction throws(LMDBError) in
      for key in keys { try table.put(bytes(key, byteCount), for: key, in: transaction) }
    }
  }

  func keys() throws(LMDBError) -> [UInt64] {
    try environment.read { transaction throws(LMDBError) in
      try table.withCursor(in: transaction) { cursor throws(LMDBError) in
        var keys: [UInt64] = []
        while try cursor.next() { keys.append(cursor.key!) }
        return keys
      }
    }
  }
}

func bytes(_ value: UInt64, _ count: Int = 8) -> [UInt8] {
  [UInt8](repeating: UInt8(truncatingIfNeeded: value), count: count)
}

/// What an expression that should fail throws.
func error<R>(of body: () throws(LMDBError) -> R) -> LMDBError? {
  do throws(LMDBError) {
    _ = try body()
    return nil
  } catch {
    return error
  }
}

/// SplitMix64: the same numbers for the same seed, everywhere.
struct SeededGenerator: RandomNumberGenerator {
  private var state: UInt64

  init(seed: UInt64) {
    state = seed
  }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var z = state
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }
}

/// Threads of their own, which may block; ``join()`` waits for all.
final class Threads: @unchecked Sendable {
  // Sendable: a dispatch group is made for use by many threads, and is the only property.
  private let group = DispatchGroup()

  func start(_ body: @escaping @Sendable () -> Void) {
    group.enter()
    let thread = Thread { [group] in
      body()
      group.leave()
    }
    thread.start()
  }

  func join() {
    group.wait()
  }
}

/// Lets one thread wait for another, once.
final class Signal: @unchecked Sendable {
  // Sendable: a semaphore is made for use by many threads, and is the only property.
  private let semaphore = DispatchSemaphore(value: 0)

  func send() {
    semaphore.signal()
  }

  func wait() {
    semaphore.wait()
  }
}

/// Collects what threads find wrong: an expectation outside of the test's task would not be counted.
final class Findings: Sendable {
  private let list = Mutex<[String]>([])

  func add(_ finding: String) {
    list.withLock { $0.append(finding) }
  }

  func check(_ body: () throws(LMDBError) -> Void) {
    do throws(LMDBError) { try body() } catch { add("\(error)") }
  }

  var all: [String] { list.withLock { $0 } }
}

extension Fixture {
  /// A directory with a few entries, closed again; the number of bytes of its data file.
  static func populated(_ directory: TemporaryDirectory) throws -> Int {
    do {
      let environment = try directory.open()
      let table = try environment.table("table", key: BigEndianUInt64.self, value: BytesCodec.self)
      for round in 0..<3 as Range<UInt64> {
        try environment.write { transaction throws(LMDBError) in
          for key in 0..<10 { _ = try table.put(bytes(round, 3_000), for: UInt64(key), in: transaction) }
        }
      }
    }
    return try Data(contentsOf: URL(fileURLWithPath: directory.dataFile)).count
  }
}

extension TemporaryDirectory {
  func overwriteDataFile(at offset: Int, with bytes: [UInt8]) throws {
    var data = try Data(contentsOf: URL(fileURLWithPath: dataFile))
    data.replaceSubrange(offset..<(offset + bytes.count), with: bytes)
    try data.write(to: URL(fileURLWithPath: dataFile))
  }
}
