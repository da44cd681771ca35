import CRawCurl
import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import Synchronization

/// Throughput and CPU time of misses: concurrent callers request new URLs, and each response is stored.
///
/// Also for the tasks of a session that caches, over libcurl and over Foundation, and as values without Foundation's
/// types. Compared with a `URLSession` without a cache, with the transport without a cache, and with the C baseline on
/// libcurl, which store nothing. The transport without a cache is the limit for any cache in Swift tasks over this
/// thread. nginx uses the same processors.
struct Misses {
  let report: Report
  let scratch: Scratch

  private enum Peer: String, CaseIterable {
    case cache = "LMDBURLCache.data(for:)"
    case values = "CachingClient.respond(to:over:)"
    case cacheOverSession = "LMDBURLCache.data(for:), over URLSession"
    case cachingSession = "caching URLSession"
    case cachingSessionOverSession = "caching URLSession, over URLSession"
    case session = "bare URLSession"
    case transport = "CurlTransport alone"
    case loopInC = "loop in C on libcurl"
  }

  private static let sizes: [(name: String, byteCount: Int)] = [
    ("1 KB", 1 << 10), ("11 KB", usualByteCount), ("100 KB", 100 << 10),
  ]
  private static let usualByteCount = 11 << 10

  func run() async throws {
    let origin = try MissOrigin(folder: scratch.folder("misses"), sizes: Self.sizes.map(\.byteCount))
    defer { origin.stop() }
    let seconds = report.isQuick ? 0.5 : 1.0
    let rounds = report.isQuick ? 1 : 5
    for size in Self.sizes {
      // The other sizes, and TLS, differ little by the number of callers.
      let isUsual = size.byteCount == Self.usualByteCount
      for callers in isUsual && !report.isQuick ? [1, 16, 64, 256] : [64] {
        for isSecure in isUsual && callers == 64 ? [false, true] : [false] {
          try await compare(
            origin, origin.url(size.byteCount, isSecure: isSecure), callers: callers, seconds: seconds, rounds: rounds,
            scenario: "\(callers) \(callers == 1 ? "caller" : "callers"), \(size.name)\(isSecure ? ", TLS" : "")")
        }
      }
    }
  }

  /// Misses of 11 KB by `data(for:)` alone, for a profiler. `CALLERS` and `SECONDS` are in the environment.
  func profile() async throws {
    let origin = try MissOrigin(folder: scratch.folder("misses"), sizes: Self.sizes.map(\.byteCount))
    defer { origin.stop() }
    let environment = ProcessInfo.processInfo.environment
    let callers = environment["CALLERS"].flatMap { Int($0) } ?? 64
    let seconds = environment["SECONDS"].flatMap { Double($0) } ?? 5
    let outcome = try await cached(
      .curl(curlConfiguration(origin)), origin.url(Self.usualByteCount, isSecure: false), callers, seconds)
    let scenario = "\(callers) \(callers == 1 ? "caller" : "callers"), 11 KB"
    report.add(
      "profile", "misses", scenario, Peer.cache.rawValue, unit: "per second", [outcome.rate], lessIsBetter: false)
    report.add("profile", "processor time", scenario, Peer.cache.rawValue, unit: "us per miss", [outcome.cost])
  }

  private func compare(
    _ origin: MissOrigin, _ base: String, callers: Int, seconds: Double, rounds: Int, scenario: String
  ) async throws {
    var results = Peer.allCases.map { (peer: $0, rates: [Double](), costs: [Double]()) }
    // A session accepts only certificate authorities that the system trusts.
    if base.hasPrefix("https") {
      results.removeAll { [.cacheOverSession, .cachingSessionOverSession, .session].contains($0.peer) }
    }
    // Alternate the implementations, so that other load affects all of them.
    for _ in 0..<rounds {
      for index in results.indices {
        let outcome: Outcome
        switch results[index].peer {
        case .cache:
          outcome = try await cached(.curl(curlConfiguration(origin)), base, callers, seconds)
        case .values:
          outcome = try await cachedAsValues(origin, base, callers, seconds)
        case .cacheOverSession:
          outcome = try await cached(.urlSession(sessionConfiguration(callers)), base, callers, seconds)
        case .cachingSession:
          outcome = try await cached(.curl(curlConfiguration(origin)), base, callers, seconds, byTasks: true)
        case .cachingSessionOverSession:
          outcome = try await cached(.urlSession(sessionConfiguration(callers)), base, callers, seconds, byTasks: true)
        case .session:
          let session = URLSession(configuration: sessionConfiguration(callers))
          outcome = try await load(base, callers, seconds) { _ = try await session.data(for: URLRequest(url: $0)) }
          session.invalidateAndCancel()
        case .transport:
          let transport = CurlTransport(curlConfiguration(origin))
          outcome = try await load(base, callers, seconds) { url in
            let response = try await transport.send(OutgoingRequest(head: RequestHead(url: url)))
            _ = try await response.body.collect(upTo: .max)
          }
        case .loopInC:
          outcome = try measured {
            let result = raw_curl_fetch(base, CInt(callers), seconds, origin.authorityFile)
            guard result.failed == 0 else { throw BenchError("\(result.failed) fetches in C failed") }
            return result.completed
          }
        }
        results[index].rates.append(outcome.rate)
        results[index].costs.append(outcome.cost)
      }
    }
    for result in results {
      report.add(
        "misses", "misses", scenario, result.peer.rawValue, unit: "per second", result.rates, lessIsBetter: false)
    }
    for result in results {
      report.add("misses", "processor time", scenario, result.peer.rawValue, unit: "us per miss", result.costs)
    }
  }

  private func curlConfiguration(_ origin: MissOrigin) -> CurlTransport.Configuration {
    var configuration = CurlTransport.Configuration()
    configuration.certificateAuthorityFile = origin.authorityFile
    configuration.maximumConnectionsPerOrigin = 256
    return configuration
  }

  private func sessionConfiguration(_ callers: Int) -> URLSessionConfiguration {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCache = nil
    configuration.httpMaximumConnectionsPerHost = max(6, callers)
    return configuration
  }

  private func cached(
    _ transport: LMDBURLCache.Options.Transport, _ base: String, _ callers: Int, _ seconds: Double,
    byTasks: Bool = false
  ) async throws -> Outcome {
    var options = LMDBURLCache.Options()
    options.transport = transport
    let folder = try scratch.folder("misses-cache")
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: folder), memoryCapacity: 16 << 20, diskCapacity: 2 << 30, options: options)
    let session = URLSession(configuration: sessionConfiguration(callers).caching(with: cache))
    defer { session.invalidateAndCancel() }
    let outcome = try await load(base, callers, seconds) { url in
      let request = URLRequest(url: url)
      _ = byTasks ? try await session.data(for: request) : try await cache.data(for: request)
    }
    try check(cache.statistics.requests, cache.flush())
    return outcome
  }

  private func cachedAsValues(
    _ origin: MissOrigin, _ base: String, _ callers: Int, _ seconds: Double
  ) async throws -> Outcome {
    let cache = try ResponseCache(
      directory: scratch.folder("misses-cache"), memoryCapacity: 16 << 20, diskCapacity: 2 << 30)
    let client = CachingClient(cache)
    let transport = CurlTransport(curlConfiguration(origin))
    let outcome = try await load(base, callers, seconds) { url in
      let response = try await client.respond(to: CachingClientRequest(head: RequestHead(url: url)), over: transport)
      _ = try await response.body.collect(upTo: .max)
    }
    try check(cache.statistics.requests, cache.flush())
    return outcome
  }

  /// Checks that each response was stored.
  private func check(_ counts: ClientStatistics, _ isWritten: Bool) throws {
    guard counts.stored == counts.misses, counts.hits == 0 else {
      throw BenchError("of \(counts.misses) misses \(counts.stored) were stored")
    }
    guard isWritten else { throw BenchError("the cache could not be written") }
  }

  private struct Outcome {
    let rate: Double
    /// The CPU time of this process per miss, in microseconds.
    let cost: Double
  }

  private func load(
    _ base: String, _ callers: Int, _ seconds: Double, _ fetch: @escaping @Sendable (URL) async throws -> Void
  ) async throws -> Outcome {
    let counter = Counter()
    let (start, cost) = (now(), processTime())
    let end = start + UInt64(seconds * 1e9)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for _ in 0..<callers {
        group.addTask {
          while now() < end {
            guard let url = URL(string: "\(base)?i=\(counter.next())") else { throw BenchError("no URL") }
            try await fetch(url)
          }
        }
      }
      try await group.waitForAll()
    }
    return outcome(counter.count, start, cost)
  }

  private func measured(_ body: () throws -> Int) rethrows -> Outcome {
    let (start, cost) = (now(), processTime())
    return outcome(try body(), start, cost)
  }

  private func outcome(_ count: Int, _ start: UInt64, _ cost: Double) -> Outcome {
    Outcome(
      rate: Double(count) / (Double(now() - start) / 1e9), cost: (processTime() - cost) / Double(max(1, count)))
  }

}

/// Unique numbers.
private final class Counter: Sendable {
  private let number = Atomic<Int>(0)
  var count: Int { number.load(ordering: .relaxed) }
  func next() -> Int { number.add(1, ordering: .relaxed).oldValue }
}

/// A private nginx with one file of each size, over HTTP and HTTPS.
private final class MissOrigin {
  private let server = Process()
  private let port = Process.serverPort(1)
  let authorityFile: String

  init(folder: String, sizes: [Int]) throws {
    authorityFile = folder + "/certificate.pem"
    let root = folder + "/files"
    try FileManager.default.createDirectory(atPath: root, withIntermediateDirectories: true)
    for size in sizes { try Data(count: size).write(to: URL(fileURLWithPath: "\(root)/\(size).bin")) }
    // A certificate authority for this run.
    _ = try FinishedCommand.run(
      "/usr/bin/openssl",
      [
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", folder + "/key.pem", "-out",
        authorityFile,
      ])
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log off; sendfile on; tcp_nopush on; keepalive_requests 10000000; open_file_cache max=16;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        server {
          listen 127.0.0.1:\(port) backlog=1024;
          listen 127.0.0.1:\(port + 1) ssl backlog=1024;
          ssl_certificate \(authorityFile); ssl_certificate_key \(folder)/key.pem;
          root \(root); add_header Cache-Control "max-age=3600";
        }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
  }

  func url(_ byteCount: Int, isSecure: Bool) -> String {
    "\(isSecure ? "https" : "http")://127.0.0.1:\(isSecure ? port + 1 : port)/\(byteCount).bin"
  }

  func stop() {
    endProcess(server)
  }
}
