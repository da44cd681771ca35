import Foundation
import FoundationNetworking
import LMDBURLCache
import Synchronization

/// A server program: concurrent tasks load from an origin on the same machine; 95% of the responses can be stored.
struct Servers {
  let report: Report
  let scratch: Scratch

  private static let hotCount = 1000

  func run() async throws {
    let origin = try Nginx(folder: scratch.folder("nginx"), fileCount: Self.hotCount)
    defer { origin.stop() }
    for tasks in [1, 64] {
      let requests = report.isQuick ? 1_000 : 20_000
      try await measure("LMDBURLCache.data(for:)", origin, tasks: tasks, requests: requests) { cache, request in
        _ = try await cache.data(for: request)
      }
      var overSession = LMDBURLCache.Options()
      overSession.transport = .urlSession(URLSessionConfiguration.default)
      try await measure(
        "LMDBURLCache.data(for:), over URLSession", origin, tasks: tasks, requests: requests, options: overSession
      ) { cache, request in
        _ = try await cache.data(for: request)
      }
      let caching = Lazy { cache in URLSession(configuration: URLSessionConfiguration.default.caching(with: cache)) }
      try await measure("URLSession, caching", origin, tasks: tasks, requests: requests) { cache, request in
        _ = try await caching.get(cache).data(for: request)
      }
      let configuration = URLSessionConfiguration.default
      configuration.urlCache = URLCache(
        memoryCapacity: 64 << 20, diskCapacity: 256 << 20, diskPath: try scratch.folder("foundation"))
      let plain = URLSession(configuration: configuration)
      try await measure("URLSession, Foundation URLCache", origin, tasks: tasks, requests: requests) { _, request in
        _ = try await plain.data(for: request)
      }
      plain.invalidateAndCancel()
    }
    try await coalescing(origin)
  }

  private func measure(
    _ name: String, _ origin: Nginx, tasks: Int, requests: Int, options: LMDBURLCache.Options = .init(),
    _ load: @escaping @Sendable (LMDBURLCache, URLRequest) async throws -> Void
  ) async throws {
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("server")), memoryCapacity: 64 << 20, diskCapacity: 256 << 20,
      options: options)
    // Load the hot URLs once, so that they are stored.
    for index in 0..<Self.hotCount { try await load(cache, URLRequest(url: origin.hot(index))) }
    guard cache.flush() else { throw BenchError("the cache could not be written") }
    let latencies = Samples()
    let start = now()
    try await withThrowingTaskGroup(of: Void.self) { group in
      for task in 0..<tasks {
        let origin = origin
        group.addTask { @Sendable in
          var random = SeededGenerator(seed: UInt64(task + 1))
          var mine: [Double] = []
          for _ in 0..<(requests / tasks) {
            let draw = Int(random.next() % 100_000)
            // One request in twenty always goes to the origin.
            let url = draw % 20 == 0 ? origin.uncacheable(draw % Self.hotCount) : origin.hot(draw % Self.hotCount)
            let began = now()
            try await load(cache, URLRequest(url: url))
            mine.append(Double(now() - began) / 1000)
          }
          latencies.add(mine)
        }
      }
      try await group.waitForAll()
    }
    let seconds = Double(now() - start) / 1e9
    let sorted = latencies.sorted
    let scenario = tasks == 1 ? "1 task" : "\(tasks) tasks"
    report.add(
      "server", "requests", scenario, name, unit: "per second", [Double(sorted.count) / seconds], lessIsBetter: false)
    for (share, label) in [(0.5, "p50"), (0.99, "p99")] {
      report.add("server", label, scenario, name, unit: "us", [percentile(sorted, share)])
    }
  }

  /// Counts the requests at the origin when a thousand tasks request the same new URL.
  private func coalescing(_ origin: Nginx) async throws {
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("coalescing")), memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
    let request = URLRequest(url: origin.fresh)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<1000 { group.addTask { _ = try await cache.data(for: request) } }
      try await group.waitForAll()
    }
    let reached = try origin.requestCount(of: request.url?.path ?? "")
    report.add(
      "server", "requests at the origin", "1,000 misses of 1 URL", "LMDBURLCache.data(for:)", unit: "requests",
      [Double(reached)])
  }
}

/// The latencies that concurrent tasks measured.
private final class Samples: Sendable {
  private let samples = Mutex<[Double]>([])
  var sorted: [Double] { samples.withLock { $0.sorted() } }
  func add(_ more: [Double]) { samples.withLock { $0 += more } }
}

/// Sessions that are created on first use, one for each cache.
private final class Lazy: Sendable {
  private let made = Mutex<[ObjectIdentifier: URLSession]>([:])
  private let make: @Sendable (LMDBURLCache) -> URLSession

  init(_ make: @escaping @Sendable (LMDBURLCache) -> URLSession) {
    self.make = make
  }

  func get(_ cache: LMDBURLCache) -> URLSession {
    made.withLock { made in
      if let session = made[ObjectIdentifier(cache)] { return session }
      let session = make(cache)
      made[ObjectIdentifier(cache)] = session
      return session
    }
  }
}

/// A private nginx on loopback: files below `/hot/` are fresh for an hour, those below `/uncacheable/` are uncacheable.
final class Nginx: @unchecked Sendable {
  // Sendable: after `init` only the process changes, and only `stop` uses it.
  private let server = Process()
  private let folder: String
  private let port = Process.serverPort(0)

  init(folder: String, fileCount: Int) throws {
    self.folder = folder
    let root = folder + "/files"
    try FileManager.default.createDirectory(atPath: root, withIntermediateDirectories: true)
    let fixture = Fixture(count: fileCount, bodyByteCount: 4 << 10)
    for index in 0..<fileCount { try fixture.body(index).write(to: URL(fileURLWithPath: "\(root)/\(index).webp")) }
    try fixture.body(0).write(to: URL(fileURLWithPath: root + "/fresh.webp"))
    // The server must be able to read the files.
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log \(folder)/access.log; types { image/webp webp; } sendfile on; keepalive_requests 1000000;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        server {
          listen 127.0.0.1:\(port);
          location /hot/ { alias \(root)/; add_header Cache-Control "max-age=3600"; }
          location /uncacheable/ { alias \(root)/; add_header Cache-Control "no-store"; }
        }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
  }

  private func url(_ path: String) -> URL {
    guard let url = URL(string: "http://127.0.0.1:\(port)\(path)") else { fatalError("no URL: \(path)") }
    return url
  }

  func hot(_ index: Int) -> URL { url("/hot/\(index).webp") }
  func uncacheable(_ index: Int) -> URL { url("/uncacheable/\(index).webp") }
  var fresh: URL { url("/hot/fresh.webp") }

  /// Returns the number of requests for a path.
  func requestCount(of path: String) throws -> Int {
    usleep(200_000)
    let log = String(decoding: try Data(contentsOf: URL(fileURLWithPath: folder + "/access.log")), as: UTF8.self)
    return log.split(separator: "\n").count { $0.contains("GET \(path) ") }
  }

  func stop() {
    endProcess(server)
  }
}
