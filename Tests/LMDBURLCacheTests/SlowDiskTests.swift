import CDiskFaults
import Dispatch
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// The disk of a process whose syncs block until a test releases them.
private enum SlowDisk {
  private static let isSlow = Atomic(false)
  private static let turnstile = DispatchSemaphore(value: 0)
  private static let waitingCount = Atomic(0)

  static func begin() {
    isSlow.store(true, ordering: .sequentiallyConsistent)
    disk_faults_install(
      { descriptor in
        SlowDisk.pass()
        return disk_faults_real_sync(descriptor)
      }, nil, nil)
  }

  private static func pass() {
    guard isSlow.load(ordering: .sequentiallyConsistent) else { return }
    waitingCount.add(1, ordering: .sequentiallyConsistent)
    turnstile.wait()
    turnstile.signal()
  }

  static func end() {
    isSlow.store(false, ordering: .sequentiallyConsistent)
    turnstile.signal()
  }

  /// The number of syncs that were blocked.
  static var heldCount: Int { waitingCount.load(ordering: .sequentiallyConsistent) }
}

@Suite("Slow disk", .timeLimit(.minutes(2)))
struct SlowDiskTests {
  // In a child process, because the disk is slow for the whole process.
  @Test("While more purges than task threads wait for the disk, hits and misses of other URLs complete")
  func purges() async {
    await #expect(processExitsWith: .success) { try await Self.loadDuringPurges() }
  }

  @Test("While purges of every kind wait for the disk, bytes(for:) streams stored and new bodies")
  func streams() async {
    await #expect(processExitsWith: .success) { try await Self.streamDuringPurges() }
  }

  private static func streamDuringPurges() async throws {
    // Larger than the bodies that are copied out of the store at once.
    let body = Data((0..<3 << 20).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) })
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], body: body) }
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("slow-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
    func open() throws -> LMDBURLCache {
      try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 512 << 20)
    }
    do {
      let cache = try open()
      for number in 0..<4 { _ = try await cache.data(from: origin.url("/hot/\(number)")) }
      #expect(cache.flush())
    }
    // Another store of the same directory, which has not verified the bodies yet.
    let cache = try open()
    SlowDisk.begin()
    let other = URL(string: "http://example.com/")!
    let scopes: [PurgeScope] = [
      .since(Date(timeIntervalSinceNow: 3600)), .host("example.com"), .prefix(other), .group("g", origin: other),
      .url(other),
    ]
    let purges = Task {
      try await withThrowingTaskGroup(of: Void.self) { group in
        for number in 0..<ProcessInfo.processInfo.activeProcessorCount {
          for scope in scopes {
            for mode in [PurgeMode.hard, .soft] { group.addTask { try await cache.purge(scope, mode: mode) } }
          }
          group.addTask { try await cache.purge(.url(origin.url("/purged/\(number)"))) }
        }
        try await group.waitForAll()
      }
    }
    while SlowDisk.heldCount == 0 { await Task.yield() }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for path in (0..<4).flatMap({ ["/hot/\($0)", "/new/\($0)"] }) {
        group.addTask {
          let (chunks, response) = try await cache.bytes(for: URLRequest(url: origin.url(path)))
          #expect((response.field("Age") != nil) == path.hasPrefix("/hot"))
          #expect(try await chunks.collect(upTo: .max) == body)
        }
      }
      try await group.waitForAll()
    }
    #expect(origin.requestCount == 8)
    SlowDisk.end()
    try await purges.value
    origin.stop()
  }

  private static func loadDuringPurges() async throws {
    let origin = try LoopbackOrigin { request in
      request.method == "GET" ? Reply(200, [("Cache-Control", "max-age=600")], request.path) : Reply(204)
    }
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("slow-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
    let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20)
    for number in 0..<20 { _ = try await cache.data(from: origin.url("/hot/\(number)")) }
    #expect(cache.flush())

    SlowDisk.begin()
    let taskCount = 4 * ProcessInfo.processInfo.activeProcessorCount
    let removals = Task {
      try await withThrowingTaskGroup(of: Void.self) { group in
        for number in 0..<taskCount {
          group.addTask { try await cache.purge(.url(origin.url("/purged/\(number)"))) }
          // An unsafe request removes responses, too.
          group.addTask { _ = try await cache.data(for: URLRequest(origin.url("/hot/19"), method: "PUT")) }
        }
        try await group.waitForAll()
      }
    }
    while SlowDisk.heldCount == 0 { await Task.yield() }
    // Each of these would block if it needed a thread that a purge blocks, or the disk.
    try await withThrowingTaskGroup(of: Void.self) { group in
      for number in 0..<200 {
        group.addTask { try await load(number, cache, origin) }
      }
      try await group.waitForAll()
    }
    #expect(SlowDisk.heldCount > 0)
    SlowDisk.end()
    try await removals.value
    #expect(!cache.isCached(origin.url("/hot/19")))
    #expect(cache.isCached(origin.url("/hot/0")))
    origin.stop()
  }

  private static func load(_ number: Int, _ cache: LMDBURLCache, _ origin: LoopbackOrigin) async throws {
    #expect(try await cache.data(from: origin.url("/hot/\(number % 19)")).0.text == "/hot/\(number % 19)")
    let new = origin.url("/new/\(number)")
    #expect(try await cache.data(from: new).0.text == "/new/\(number)")
    // The write is still pending, and its response is found.
    #expect(try await cache.load(URLRequest(url: new)).source == .hit)
  }
}
