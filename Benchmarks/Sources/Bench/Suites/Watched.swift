import Foundation
import FoundationNetworking
import LMDBURLCache

/// CPU time of hits while `urlcache log --follow` watches the directory, compared with a directory that is not watched.
///
/// Two caches have the same responses, and their rounds alternate. Each of them is watched in one third of the rounds,
/// so that other differences between them do not count. In the first third no cache is watched: the ratio of these
/// rounds shows how far a median is from 1 without any cause.
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
    try compare(tool, "memory", memoryCapacity: 64 << 20, operations: 50_000)
    try compare(tool, "disk", memoryCapacity: 0, operations: 8_000)
  }

  /// - Parameter operations: Takes longer than the 100 ms for which a watching process permits events at a time. A
  ///   shorter round could lie between the recorded requests.
  private func compare(_ tool: String, _ tier: String, memoryCapacity: Int, operations: Int) throws {
    let fixture = Fixture(count: 1_000, bodyByteCount: 1 << 10)
    let sides = try ["a", "b"].map { name in
      try Side(fixture, directory: scratch.folder("watched-\(name)"), memoryCapacity: memoryCapacity)
    }
    var samples: [Case: [Double]] = [:]
    for watched in [nil] + sides.indices.map(Optional.some) {
      let watcher = try watched.map { try watch(sides[$0], with: tool) }
      for threads in Self.threadCounts {
        let operations = operations / min(threads, 2)
        let cases = sides.indices.map { index in
          BenchmarkCase(name: String(index), operations: operations, threads: threads) { thread, round in
            sides[index].load(operations, thread: thread, round: round)
          }
        }
        let times = Harness.compare(cases, rounds: report.isQuick ? 5 : 31)
        for index in sides.indices {
          // Without a watched cache, the second one takes its place.
          let isCompared = index == watched ?? 1
          samples[Case(threads: threads, isControl: watched == nil, isCompared: isCompared), default: []] +=
            times[String(index)] ?? []
        }
      }
      // Afterwards at most 400 more requests are recorded.
      if let watcher { endProcess(watcher) }
    }
    for threads in Self.threadCounts {
      let scenario = "1 KB, \(threads) thread\(threads == 1 ? "" : "s")"
      for isControl in [true, false] {
        let plain = samples[Case(threads: threads, isControl: isControl, isCompared: false)] ?? []
        let compared = samples[Case(threads: threads, isControl: isControl, isCompared: true)] ?? []
        let peer = Self.peer + (isControl ? "" : ", watched")
        report.add("watched", "load from \(tier)", scenario, peer, unit: "ns", compared)
        // Each round relative to the other one of the same moment, because rounds differ by more than the cost.
        report.add(
          "watched", "load from \(tier), relative to not recorded", scenario, peer, unit: "×",
          zip(plain, compared).map { $0 / $1 }, lessIsBetter: false)
      }
    }
  }

  /// The rounds of one of the two caches.
  private struct Case: Hashable {
    let threads: Int
    /// Whether no cache is watched.
    let isControl: Bool
    /// Whether this cache is compared with the other one: the watched one, if any.
    let isCompared: Bool
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
