import Foundation
import FoundationNetworking
import LMDBURLCache

/// CPU time of hits while `urlcache log --follow` watches the directory, compared with a directory that is not watched.
///
/// Two caches have the same responses, and their rounds alternate. Each of them is watched in one half of the rounds, so
/// that other differences between them do not count.
struct Watched {
  let report: Report
  let scratch: Scratch
  /// The built `urlcache`.
  let tool: String?

  private static let maximumThreadCount = 4
  private static let threadCounts = [1, maximumThreadCount]
  private static let peer = "LMDBURLCache.data(for:)"

  func run() throws {
    guard let tool else { throw BenchError("the suite watched needs --tool FILE, the built urlcache") }
    try compare(tool, "memory", memoryCapacity: 64 << 20, operations: 10_000)
    try compare(tool, "disk", memoryCapacity: 0, operations: 2_000)
  }

  private func compare(_ tool: String, _ tier: String, memoryCapacity: Int, operations: Int) throws {
    let fixture = Fixture(count: 1_000, bodyByteCount: 1 << 10)
    let sides = try ["a", "b"].map { name in
      try Side(fixture, directory: scratch.folder("watched-\(name)"), memoryCapacity: memoryCapacity)
    }
    var samples: [String: [Double]] = [:]
    let rounds = report.isQuick ? 11 : 31
    for watched in sides.indices {
      let watcher = try watch(sides[watched], with: tool)
      for threads in Self.threadCounts {
        let cases = sides.indices.map { index in
          BenchmarkCase(
            name: "\(threads), \(index == watched)", operations: operations, threads: threads
          ) { thread, round in sides[index].load(operations, thread: thread, round: round) }
        }
        samples.merge(Harness.compare(cases, rounds: rounds)) { $0 + $1 }
      }
      // Afterwards at most 400 more requests are recorded.
      endProcess(watcher)
    }
    for threads in Self.threadCounts {
      for isWatched in [false, true] {
        report.add(
          "watched", "load from \(tier)", "1 KB, \(threads) thread\(threads == 1 ? "" : "s")",
          Self.peer + (isWatched ? ", watched" : ""), unit: "ns", samples["\(threads), \(isWatched)"] ?? [])
      }
    }
  }

  /// Starts `urlcache log --follow`, and returns when requests are recorded.
  private func watch(_ side: Side, with tool: String) throws -> Process {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: tool)
    process.arguments = ["log", side.directory, "--follow"]
    process.standardInput = FileHandle.nullDevice
    process.standardOutput = FileHandle.nullDevice
    // It says how many requests are not recorded.
    process.standardError = FileHandle.nullDevice
    try process.run()
    // It creates the file of events when it begins to watch.
    let deadline = now() + 10_000_000_000
    while !FileManager.default.fileExists(atPath: side.directory + "/LMDBURLCache.events") {
      guard process.isRunning, now() < deadline else { throw BenchError("urlcache log does not watch") }
      usleep(1000)
    }
    return process
  }

  /// A cache with all responses of a fixture.
  private final class Side: Sendable {
    let directory: String
    private let cache: LMDBURLCache
    /// The requests of each thread. Otherwise the threads would change the same reference counts.
    private let requests: [[URLRequest]]

    init(_ fixture: Fixture, directory: String, memoryCapacity: Int) throws {
      self.directory = directory
      cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: directory), memoryCapacity: memoryCapacity, diskCapacity: 256 << 20)
      requests = (0..<Watched.maximumThreadCount).map { _ in
        (0..<fixture.count).map { FoundationPeer.request(fixture.url($0)) }
      }
      for (index, request) in requests[0].enumerated() {
        cache.storeCachedResponse(FoundationPeer.cachedResponse(fixture, index), for: request)
      }
      guard cache.flush() else { throw BenchError("the cache could not be written") }
    }

    /// Loads fresh responses on this thread.
    func load(_ operations: Int, thread: Int, round: Int) {
      let done = StopFlag()
      let task = Task.immediate { [cache, requests = requests[thread]] in
        for number in 0..<operations {
          let request = requests[(round * operations + number * 37) % requests.count]
          guard try await cache.data(for: request).0.count == 1 << 10 else { fatalError("missed") }
        }
        done.set()
      }
      // The task does not suspend.
      if !done.isSet { fatalError("a load was no hit") }
      withExtendedLifetime(task) {}
    }
  }
}
