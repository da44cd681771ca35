import Foundation
import FoundationNetworking
import LMDBURLCache
import Synchronization

/// The memory and the open descriptors after many requests, some of them cancelled, and the memory while a large body
/// is streamed.
struct Memory {
  let report: Report
  let scratch: Scratch

  private static let caller = "LMDBURLCache"

  func run() async throws {
    let size = report.isQuick ? 64 << 20 : 1 << 30
    let origin = try LargeFileOrigin(folder: scratch.folder("memory"), largeByteCount: size)
    defer { origin.stop() }
    try await cancelledRequests(origin)
    try await streams(origin, byteCount: size)
    try await slowDelegates(origin, byteCount: size)
  }

  // MARK: Many requests

  /// Measures requests of 64 callers: 75% are hits, 25% misses, and 1% misses that are cancelled at a random time.
  private func cancelledRequests(_ origin: LargeFileOrigin) async throws {
    let count = report.isQuick ? 20_000 : 1_000_000
    let callers = 64
    var options = LMDBURLCache.Options()
    options.log = { _ in }
    let folder = try scratch.folder("memory-cache")
    // The first cache opens descriptors that the process keeps.
    _ = try await LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("memory-first")), memoryCapacity: 1 << 20, diskCapacity: 4 << 20,
      options: options
    ).data(for: URLRequest(url: origin.small(0)))
    usleep(500_000)
    let idle = Process.openDescriptorCount
    // The capacities are small, so that both tiers are full after a tenth of the requests.
    var opened: LMDBURLCache? = try LMDBURLCache(
      directory: URL(fileURLWithPath: folder), memoryCapacity: 4 << 20, diskCapacity: 32 << 20, options: options)
    let counts = Counts()
    var memory: [Double] = []
    for tenth in 1...10 {
      guard let cache = opened else { break }
      let end = count * tenth / 10
      await withTaskGroup(of: Void.self) { group in
        for _ in 0..<callers {
          group.addTask { await Self.load(from: origin, through: cache, until: end, counts) }
        }
      }
      counts.next.store(end, ordering: .relaxed)
      memory.append(Process.residentMegabytes)
    }
    let scenario = "\(count.formatted()) requests, 1% cancelled"
    guard counts.failed.load(ordering: .relaxed) == 0 else {
      throw BenchError("\(counts.failed.load(ordering: .relaxed)) requests failed that were not cancelled")
    }
    report.add(
      "memory", "requests that ended by cancellation", scenario, Self.caller, unit: "requests",
      [
        Double(counts.cancelled.load(ordering: .relaxed))
      ])
    report.add("memory", "resident memory, second tenth", scenario, Self.caller, unit: "MB", [memory[1]])
    report.add("memory", "resident memory, last tenth", scenario, Self.caller, unit: "MB", [memory[9]])
    opened = nil
    // The transport closes its persistent connections on its own thread.
    let deadline = now() + 10_000_000_000
    var left = Process.openDescriptorCount - idle
    while left > 0, now() < deadline {
      usleep(10_000)
      left = Process.openDescriptorCount - idle
    }
    report.add("memory", "descriptors left", scenario, Self.caller, unit: "descriptors", [Double(left)])
  }

  private static func load(
    from origin: LargeFileOrigin, through cache: LMDBURLCache, until end: Int, _ counts: Counts
  ) async {
    while case let number = counts.next.add(1, ordering: .relaxed).oldValue, number < end {
      let isMiss = number % 4 == 0
      let request = URLRequest(url: isMiss ? origin.small(number) : origin.small(-1 - number % 100))
      let load = Task { try await cache.data(for: request) }
      if number % 100 == 0 {
        // Cancel within twice the time of a miss.
        try? await Task.sleep(for: .microseconds(Int.random(in: 0..<40_000)))  // This task is never cancelled.
        load.cancel()
      }
      do {
        _ = try await load.value
      } catch {
        if number % 100 == 0 {
          counts.cancelled.add(1, ordering: .relaxed)
        } else {
          counts.failed.add(1, ordering: .relaxed)
        }
      }
    }
  }

  private final class Counts: Sendable {
    let next = Atomic<Int>(0)
    let cancelled = Atomic<Int>(0)
    let failed = Atomic<Int>(0)
  }

  // MARK: Large bodies

  private func streams(_ origin: LargeFileOrigin, byteCount: Int) async throws {
    let folder = try scratch.folder("memory-stream")
    var options = LMDBURLCache.Options()
    options.maximumStoredBodyByteCount = 2 * byteCount
    func open(_ options: LMDBURLCache.Options) throws -> LMDBURLCache {
      try LMDBURLCache(
        directory: URL(fileURLWithPath: folder), memoryCapacity: 4 << 20, diskCapacity: 24 * byteCount,
        options: options)
    }
    // Store the large response.
    let request = URLRequest(url: origin.large)
    try await store(request, in: open(options))
    let storing = try open(options)
    // What storing took is released by then.
    try await Task.sleep(for: .seconds(2))
    let idle = Process.residentMegabytes
    try await stream("hit", storing, request, byteCount: byteCount, idle: idle)
    guard storing.statistics.requests.hits == 1 else { throw BenchError("the large body was not stored") }
    // This cache does not store the body, as it is larger than the limit.
    let passing = try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("memory-pass")), memoryCapacity: 4 << 20, diskCapacity: 1 << 30)
    try await stream("miss", passing, request, byteCount: byteCount, idle: Process.residentMegabytes)
  }

  /// Loads a large body with tasks whose delegate receives it at 100 MB/s, and measures the peak memory.
  private func slowDelegates(_ origin: LargeFileOrigin, byteCount: Int) async throws {
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("memory-delegate")), memoryCapacity: 4 << 20, diskCapacity: 1 << 30
    )
    let plain = URLSessionConfiguration.ephemeral
    plain.urlCache = nil
    for (name, configuration) in [("caching URLSession", plain.caching(with: cache)), ("bare URLSession", plain)] {
      let delegate = SlowDelegate()
      let session = URLSession(configuration: configuration, delegate: delegate, delegateQueue: nil)
      let idle = Process.residentMegabytes
      session.dataTask(with: origin.large).resume()
      var highest = idle
      while !delegate.hasEnded.load(ordering: .acquiring) {
        highest = max(highest, Process.residentMegabytes)
        try await Task.sleep(for: .milliseconds(20))
      }
      let received = delegate.byteCount.load(ordering: .relaxed)
      guard received == byteCount else { throw BenchError("of \(byteCount) bytes \(received) came to \(name)") }
      session.invalidateAndCancel()
      report.add(
        "memory", "resident memory beyond idle", "\(byteCount >> 20) MiB to a delegate, 100 MB/s", name, unit: "MB",
        [highest - idle])
    }
  }

  private final class SlowDelegate: NSObject, URLSessionDataDelegate {
    let byteCount = Atomic<Int>(0)
    let hasEnded = Atomic<Bool>(false)

    func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
      byteCount.add(data.count, ordering: .relaxed)
      usleep(UInt32(data.count / 100))
    }

    func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
      hasEnded.store(true, ordering: .releasing)
    }
  }

  private func store(_ request: URLRequest, in cache: LMDBURLCache) async throws {
    let (chunks, _) = try await cache.bytes(for: request)
    for try await _ in chunks {}
    let deadline = now() + 60_000_000_000
    while cache.statistics.requests.stored == 0, now() < deadline { usleep(10_000) }
    guard cache.flush() else { throw BenchError("the large body could not be stored") }
  }

  /// Streams a response at 20 MB/s and measures the peak memory.
  private func stream(
    _ kind: String, _ cache: LMDBURLCache, _ request: URLRequest, byteCount: Int, idle: Double
  ) async throws {
    var highest = Process.residentMegabytes
    let (chunks, _) = try await cache.bytes(for: request)
    var received = 0
    let start = now()
    for try await chunk in chunks {
      received += chunk.count
      highest = max(highest, Process.residentMegabytes)
      let due = start + UInt64(Double(received) / 20e6 * 1e9)
      if case let present = now(), due > present { try await Task.sleep(for: .nanoseconds(due - present)) }
    }
    guard received == byteCount else { throw BenchError("of \(byteCount) bytes \(received) came") }
    report.add(
      "memory", "resident memory beyond idle", "\(byteCount >> 20) MiB by bytes(for:), \(kind), 20 MB/s", Self.caller,
      unit: "MB", [highest - idle])
  }
}

extension Process {
  /// The number of open descriptors of this process.
  fileprivate static var openDescriptorCount: Int {
    (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").count) ?? 0
  }

  /// The resident memory of this process, including mapped files.
  fileprivate static var residentMegabytes: Double {
    var buffer = [UInt8](repeating: 0, count: 128)
    let descriptor = open("/proc/self/statm", O_RDONLY)
    defer { close(descriptor) }
    let count = max(read(descriptor, &buffer, buffer.count), 0)
    let fields = String(decoding: buffer.prefix(count), as: UTF8.self).split(separator: " ")
    return fields.count > 1 ? (Double(fields[1]) ?? 0) * Double(sysconf(CInt(_SC_PAGESIZE))) / 1e6 : 0
  }
}

/// An nginx on loopback with a small file under any number of URLs, and a large one.
private final class LargeFileOrigin: Sendable {
  private let server = Process()
  private let port = Process.serverPort(3)

  init(folder: String, largeByteCount: Int) throws {
    let root = folder + "/files"
    try FileManager.default.createDirectory(atPath: root, withIntermediateDirectories: true)
    try Data(count: 2 << 10).write(to: URL(fileURLWithPath: root + "/small.bin"))
    let large = open(root + "/large.bin", O_CREAT | O_WRONLY, 0o644)
    guard large >= 0, ftruncate(large, largeByteCount) == 0 else { throw BenchError("the large file: \(errno)") }
    Glibc.close(large)
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log off; sendfile on; tcp_nopush on; keepalive_requests 10000000; open_file_cache max=16;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        server { listen 127.0.0.1:\(port) backlog=1024; root \(root); add_header Cache-Control "max-age=3600"; }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
  }

  private func url(_ path: String) -> URL {
    guard let url = URL(string: "http://127.0.0.1:\(port)\(path)") else { fatalError("no URL: \(path)") }
    return url
  }

  func small(_ number: Int) -> URL { url("/small.bin?n=\(number)") }
  var large: URL { url("/large.bin") }

  func stop() { endProcess(server) }
}
