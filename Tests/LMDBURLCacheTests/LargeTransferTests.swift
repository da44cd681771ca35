import CDiskFaults
import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// A disk that becomes full.
private enum FillingDisk {
  private static let leftByteCount = Atomic(Int.max)

  /// Lets writes to files fail after this many bytes.
  static func fail(after byteCount: Int) {
    leftByteCount.store(byteCount, ordering: .sequentiallyConsistent)
    disk_faults_install(
      nil,
      { descriptor, bytes, count, offset in
        FillingDisk.isFull(descriptor, writing: count) ? -1 : disk_faults_real_write(descriptor, bytes, count, offset)
      },
      { descriptor, pieces, count in
        let byteCount = (0..<Int(count)).reduce(0) { $0 + (pieces?[$1].iov_len ?? 0) }
        return FillingDisk.isFull(descriptor, writing: byteCount)
          ? -1 : disk_faults_real_write_vector(descriptor, pieces, count)
      })
  }

  static func becomeFree() { leftByteCount.store(.max, ordering: .sequentiallyConsistent) }

  static var isFull: Bool { leftByteCount.load(ordering: .sequentiallyConsistent) < 0 }

  private static func isFull(_ descriptor: CInt, writing byteCount: Int) -> Bool {
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return false }
    guard leftByteCount.subtract(byteCount, ordering: .sequentiallyConsistent).newValue < 0 else { return false }
    errno = ENOSPC
    return true
  }
}

/// Large bodies, from an origin through a cache to their readers.
@Suite("Large transfers", .timeLimit(.minutes(2)))
struct LargeTransferTests {
  /// A body repeats this block.
  private static let block = Data((0..<1 << 20).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) })

  private static func reply(blockCount: Int, control: String = "max-age=600") -> Reply {
    let fields = [("Cache-Control", control), ("ETag", "\"1\"")]
    return Reply(200, fields, parts: Array(repeating: .bytes(block), count: blockCount))
  }

  /// Reads a body to its end, compares it, and calls `pause` after each chunk. Returns the number of its bytes.
  private static func read(_ chunks: ResponseBodyStream, pause: () -> Void = {}) async throws -> Int {
    var position = 0
    for try await chunk in chunks {
      var rest = chunk[...]
      while !rest.isEmpty {
        let start = position % block.count
        let part = rest.prefix(block.count - start)
        guard part == block[start..<start + part.count] else { throw URLError(.cannotDecodeRawData) }
        rest = rest.dropFirst(part.count)
        position += part.count
      }
      pause()
    }
    return position
  }

  /// The memory of this process that is no file's, in bytes.
  private static var privateByteCount: Int {
    let text = (try? String(contentsOfFile: "/proc/self/status", encoding: .utf8)) ?? ""
    let line = text.split(separator: "\n").first { $0.hasPrefix("RssAnon:") }
    return (line?.split(whereSeparator: \.isWhitespace).dropFirst().first).flatMap { Int($0) }.map { $0 << 10 } ?? .max
  }

  /// The highest sizes during a test, in bytes.
  private final class Highest: Sendable {
    private let values = Mutex((memory: 0, disk: 0))
    var memory: Int { values.withLock { $0.memory } }
    var disk: Int { values.withLock { $0.disk } }

    func note(memory: Int, disk: Int) {
      values.withLock { $0 = (max($0.memory, memory), max($0.disk, disk)) }
    }
  }

  // In a child process, whose memory is measured.
  @Test("Ten transfers at once of twice the capacity stay within 110% of it, and take 8 MB of memory each")
  func tenTransfers() async {
    await #expect(processExitsWith: .success) { try await Self.readTenBodies() }
  }

  private static func readTenBodies() async throws {
    let capacity = 192 << 20
    try await withCache(memory: 0, disk: capacity, origin: { _ in reply(blockCount: 40) }) { fixture, origin in
      let cache = fixture.cache
      let store = try #require(cache.core.store)
      _ = try await read(try await cache.bytes(for: URLRequest(url: origin.url("/first"))).0)
      let before = privateByteCount
      let highest = Highest()
      try await withThrowingTaskGroup(of: Int.self) { group in
        for number in 0..<10 {
          group.addTask {
            let (chunks, _) = try await cache.bytes(for: URLRequest(url: origin.url("/\(number)")))
            return try await read(chunks) {
              highest.note(memory: privateByteCount, disk: store.diskByteCount)
            }
          }
        }
        for try await byteCount in group { #expect(byteCount == 40 << 20) }
      }
      #expect(highest.memory - before <= 80_000_000)
      #expect(highest.disk <= capacity / 10 * 11)
    }
  }

  // In a child process, because the disk is full for the whole process.
  @Test(
    "If the disk becomes full while a body arrives, the caller gets all of it, and nothing is stored until it is free")
  func fullDisk() async {
    await #expect(processExitsWith: .success) { try await Self.readOnFullDisk() }
  }

  private static func readOnFullDisk() async throws {
    try await withCache(memory: 0, disk: 64 << 20, origin: { _ in reply(blockCount: 12) }) { fixture, origin in
      let (cache, url) = (fixture.cache, origin.url("/large"))
      let store = try #require(cache.core.store)
      for isFull in [true, false] {
        if isFull { FillingDisk.fail(after: 5 << 20) }
        let (chunks, _) = try await cache.bytes(for: URLRequest(url: url))
        #expect(try await read(chunks) == 12 << 20)
        #expect(FillingDisk.isFull == isFull)
        FillingDisk.becomeFree()
        await cache.finishBackgroundWork()
        #expect(cache.isCached(url) == !isFull)
      }
      // Without the search for what killed processes have left, which takes ten seconds.
      #expect(try await waitInTask(within: .seconds(8)) { store.unfinishedBodyCount == 0 })
      #expect(origin.requestCount == 2)
    }
  }

  @Test("A body is stored although its only reader does not read, and the reader gets it later")
  func unread() async throws {
    try await withCache(memory: 0, disk: 64 << 20, origin: { _ in Self.reply(blockCount: 12) }) { fixture, origin in
      let url = origin.url("/large")
      let (chunks, _) = try await fixture.cache.bytes(for: URLRequest(url: url))
      #expect(try await waitInTask { fixture.cache.isCached(url) })
      #expect(try await Self.read(chunks) == 12 << 20)
      #expect(origin.requestCount == 1)
    }
  }
  // The stored body cannot be read once the response is removed, which must be before the caller has it.
  @Test(
    "A large response that its validation forbids to store is delivered whole, and not kept",
    arguments: LargeLoad.allCases, [CachingOptions.Mode.private, .shared])
  func forbiddenByValidation(way: LargeLoad, mode: CachingOptions.Mode) async throws {
    try await withCache(memory: 0, disk: 64 << 20) { options in
      options.caching.mode = mode
    } origin: { request in
      if request["If-None-Match"] != nil { return Reply(304, [("Cache-Control", "no-store"), ("ETag", "\"1\"")]) }
      return Self.reply(blockCount: 3, control: "no-cache")
    } _: { fixture, origin in
      let (cache, request) = (fixture.cache, URLRequest(url: origin.url("/large")))
      _ = try await way.load(request, cache)
      #expect(cache.isCached(request.url!))
      let (body, _) = try await way.load(request, cache)
      #expect(body == Self.block + Self.block + Self.block)
      #expect(!cache.isCached(request.url!))
      #expect(origin.requestCount == 3)
    }
  }
}
