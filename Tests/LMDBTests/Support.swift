import Foundation
import LMDB
import Synchronization

/// A temporary directory that is removed when this object is released.
final class TemporaryDirectory: Sendable {
  /// The parent of all temporary directories, in memory, where syncs cost nothing.
  ///
  /// Exit tests inherit it and end without cleaning up. The first process removes it when it exits.
  static let root: String = {
    let variable = "LMDB_TESTS_ROOT"
    if let inherited = ProcessInfo.processInfo.environment[variable] { return inherited }
    let root = memoryDirectory(for: 64 << 20)
    setenv(variable, root, 1)
    atexit {
      // Ignore failures: the system cleans its temporary directory.
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
    // Ignore failures: the system cleans its temporary directory.
    try? FileManager.default.removeItem(atPath: path)
  }

  var dataFile: String { path + "/" + DataFile.name }

  func open(
    mapByteCount: Int = 1 << 20, _ configure: (inout LMDBEnvironment.Options) -> Void = { _ in }
  ) throws(LMDBError) -> LMDBEnvironment {
    var options = LMDBEnvironment.Options(mapByteCount: mapByteCount)
    configure(&options)
    return try LMDBEnvironment.open(directory: path, options: options)
  }
}

/// An environment with one table, in a new temporary directory.
struct Fixture {
  let directory: TemporaryDirectory
  let environment: LMDBEnvironment
  let table: Table<BigEndianUInt64Codec, BytesCodec>

  init(mapByteCount: Int = 1 << 20, _ configure: (inout LMDBEnvironment.Options) -> Void = { _ in }) throws(LMDBError) {
    directory = TemporaryDirectory()
    environment = try directory.open(mapByteCount: mapByteCount, configure)
    table = try environment.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
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

/// Returns the error that `body` throws, or nil if it throws none.
func error<R>(of body: () throws(LMDBError) -> R) -> LMDBError? {
  do throws(LMDBError) {
    _ = try body()
    return nil
  } catch {
    return error
  }
}

/// Threads that may block; ``join()`` waits until all have ended.
final class Threads: @unchecked Sendable {
  // Sendable: the only property is a dispatch group, which is thread-safe.
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

/// A signal for which one thread waits, once.
final class Signal: @unchecked Sendable {
  // Sendable: the only property is a semaphore, which is thread-safe.
  private let semaphore = DispatchSemaphore(value: 0)

  func send() {
    semaphore.signal()
  }

  func wait() {
    semaphore.wait()
  }
}

/// Collects the failures of threads, because an expectation outside the test's task would not be counted.
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
  /// Writes a few entries to a directory, closes it and returns the size of its data file in bytes.
  static func populated(_ directory: TemporaryDirectory) throws -> Int {
    do {
      let environment = try directory.open()
      let table = try environment.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
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
