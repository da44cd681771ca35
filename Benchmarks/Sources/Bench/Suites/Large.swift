import CachingClient
import CachingStorage
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

/// A body of 2 GB through a cache of 10 GB on disk: while it arrives, as a hit, and for 100 readers at once.
///
/// Compared with a plain download to a file over the same transport, with nginx's `proxy_cache`, and with reading the
/// file. nginx is the origin and sends the file by `sendfile`. Each measurement has a process of its own, so that its
/// peak memory is its own. All files are on one disk.
struct Large {
  let report: Report
  let scratch: Scratch

  private var byteCount: Int { report.isQuick ? 256_000_000 : 2_000_000_000 }
  private var sharedByteCount: Int { report.isQuick ? 64_000_000 : 1_000_000_000 }
  private var rounds: Int { report.isQuick ? 1 : 3 }

  func run() async throws {
    let folder = try scratch.folder("large")
    let origin = try LargeOrigin(folder: folder, sizes: [byteCount, sharedByteCount])
    defer { origin.stop() }
    try transfers(origin)
    try hits(origin)
    try readers(origin)
  }

  // MARK: Transfers and hits

  private func transfers(_ origin: LargeOrigin) throws {
    let modes: [LargeLoad.Mode] = [.file, .transport, .values, .bytes, .proxy]
    var results: [LargeLoad.Mode: [LargeLoad.Result]] = [:]
    for _ in 0..<rounds {
      for mode in modes { results[mode, default: []].append(try transfer(mode, origin)) }
    }
    let files = results[.file, default: []]
    for mode in modes {
      let own = results[mode, default: []]
      add("transfer", byteCount, mode, own)
      if mode != .file {
        add("transfer, relative to a file", byteCount, mode, "×", zip(own, files).map { $0.rate / $1.rate })
      }
      if mode.isCache { add("stored bodies", byteCount, mode, "%", own.map { $0.isStored ? 100 : 0 }) }
    }
  }

  /// Transfers the body with an empty cache.
  private func transfer(_ mode: LargeLoad.Mode, _ origin: LargeOrigin) throws -> LargeLoad.Result {
    let folder = try scratch.folder("large-cache")
    defer { try? scratch.remove(folder) }
    guard mode == .proxy else { return try LargeLoad.run(mode, origin.url(byteCount), folder, byteCount) }
    let proxy = try LargeProxy(of: origin, folder: folder)
    defer { proxy.stop() }
    var result = try LargeLoad.run(mode, proxy.url(byteCount), folder, byteCount)
    result.peakMegabytes = proxy.peakMegabytes
    result.isStored = try LargeLoad.run(mode, proxy.url(byteCount), folder, byteCount).isStored
    return result
  }

  private func hits(_ origin: LargeOrigin) throws {
    let folder = try scratch.folder("large-cache")
    defer { try? scratch.remove(folder) }
    let stored = try LargeLoad.run(.values, origin.url(byteCount), folder, byteCount)
    guard stored.isStored else {
      // A slow disk is no error. Without the body there are no hits.
      report.add("large", "stored bodies", scenario(byteCount), "for hits", unit: "%", [0], lessIsBetter: false)
      return
    }
    let modes: [LargeLoad.Mode] = [.readFile, .values, .bytes]
    var results: [LargeLoad.Mode: [LargeLoad.Result]] = [:]
    // The first round reads both into the page cache.
    for round in 0...rounds {
      for mode in modes {
        let result = try LargeLoad.run(
          mode, mode == .readFile ? origin.file(byteCount) : origin.url(byteCount), folder, byteCount, expectsHit: true)
        if round > 0 { results[mode, default: []].append(result) }
      }
    }
    let files = results[.readFile, default: []]
    for mode in modes {
      let own = results[mode, default: []]
      add("hit", byteCount, mode, own)
      if mode != .readFile {
        add("hit, relative to the file", byteCount, mode, "×", zip(own, files).map { $0.rate / $1.rate })
      }
    }
  }

  // MARK: Readers

  private func readers(_ origin: LargeOrigin) throws {
    var results: [LargeLoad.Result] = []
    var transferCounts: [Double] = []
    for _ in 0..<rounds {
      let folder = try scratch.folder("large-cache")
      let before = try origin.requestCount(sharedByteCount)
      results.append(try LargeLoad.run(.readers, origin.url(sharedByteCount), folder, sharedByteCount))
      transferCounts.append(Double(try origin.requestCount(sharedByteCount) - before))
      try scratch.remove(folder)
    }
    add("100 readers of one transfer", sharedByteCount, .readers, results)
    add("transfers for 100 readers", sharedByteCount, .readers, "requests", transferCounts, lessIsBetter: true)
    add("stored bodies", sharedByteCount, .readers, "%", results.map { $0.isStored ? 100 : 0 })
  }

  // MARK: Rows

  private func scenario(_ byteCount: Int) -> String { "\(byteCount / 1_000_000) MB" }

  private func add(_ measure: String, _ byteCount: Int, _ mode: LargeLoad.Mode, _ results: [LargeLoad.Result]) {
    add(measure, byteCount, mode, "MB per second", results.map(\.rate))
    add(measure + ", processor time", byteCount, mode, "ms", results.map(\.processorMilliseconds), lessIsBetter: true)
    add(
      measure + ", peak memory beyond idle", byteCount, mode, "MB", results.map { $0.peakMegabytes },
      lessIsBetter: true)
  }

  private func add(
    _ measure: String, _ byteCount: Int, _ mode: LargeLoad.Mode, _ unit: String, _ samples: [Double],
    lessIsBetter: Bool = false
  ) {
    report.add(
      "large", measure, scenario(byteCount), mode.rawValue, unit: unit, samples, lessIsBetter: lessIsBetter)
  }
}

// MARK: - A process

/// A load in a process of its own.
enum LargeLoad {
  static let command = "large-load"

  enum Mode: String, Codable {
    /// A download without a cache, each chunk of which is written to a file.
    case file = "CurlTransport to a file"
    /// A download without a cache, whose chunks are dropped.
    case transport = "CurlTransport alone"
    case values = "CachingClient.respond(to:over:)"
    case bytes = "LMDBURLCache.bytes(for:)"
    /// A download from a cache in another process.
    case proxy = "nginx proxy_cache"
    case readFile = "read(2) of the file"
    case readers = "CachingClient.respond(to:over:), 100 readers"

    var isCache: Bool { [.values, .bytes, .proxy].contains(self) }
  }

  struct Result: Codable {
    /// In MB per second, for one reader.
    var rate = 0.0
    var processorMilliseconds = 0.0
    /// The peak of the resident memory beyond that before the load, including mapped files.
    var peakMegabytes = 0.0
    var isStored = false
    var isHit = false
  }

  private struct Work: Codable {
    var mode: Mode
    /// The URL, or the path of the file.
    var source: String
    var folder: String
    var byteCount: Int
  }

  /// Runs a load in a new process.
  static func run(
    _ mode: Mode, _ source: String, _ folder: String, _ byteCount: Int, expectsHit: Bool = false
  ) throws -> Result {
    // What was written before does not count.
    sync()
    let output = Pipe()
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
    let work = Work(mode: mode, source: source, folder: folder, byteCount: byteCount)
    process.arguments = [command, String(decoding: try JSONEncoder().encode(work), as: UTF8.self)]
    process.standardOutput = output
    try process.run()
    let data = output.fileHandleForReading.readDataToEndOfFile()
    process.waitUntilExit()
    guard process.terminationStatus == 0 else { throw BenchError("the load by \(mode.rawValue) failed") }
    let result = try JSONDecoder().decode(Result.self, from: data)
    if expectsHit, mode != .readFile, !result.isHit { throw BenchError("\(mode.rawValue) was no hit") }
    return result
  }

  /// The work of the process.
  static func work(_ words: [String]) async throws {
    guard let text = words.first else { throw BenchError("\(command) lacks arguments") }
    let work = try JSONDecoder().decode(Work.self, from: Data(text.utf8))
    let load = try prepare(work)
    // Threads and memory that every load needs.
    try await Task.sleep(for: .milliseconds(100))
    let idle = try MemoryPeak()
    let (start, processor) = (now(), processTime())
    var result = Result()
    try await load(&result)
    result.rate = Double(work.byteCount) / 1e6 / (Double(now() - start) / 1e9)
    result.processorMilliseconds = (processTime() - processor) / 1000
    result.peakMegabytes = try idle.megabytesBeyond()
    FileHandle.standardOutput.write(try JSONEncoder().encode(result))
  }

  private static func prepare(_ work: Work) throws -> (inout Result) async throws -> Void {
    let url = URL(string: work.source) ?? URL(fileURLWithPath: work.source)
    let transport = CurlTransport(CurlTransport.Configuration())
    var options = ResponseCache.Options()
    options.log = { FileHandle.standardError.write(Data("\($0)\n".utf8)) }
    switch work.mode {
    case .file, .transport, .proxy:
      let descriptor = work.mode == .file ? open(work.folder + "/download", O_CREAT | O_WRONLY, 0o644) : -1
      return { result in
        let response = try await transport.send(OutgoingRequest(head: RequestHead(url: url)))
        try await check(work) { count in
          for try await chunk in response.body {
            if descriptor >= 0 { try write(chunk, to: descriptor) }
            count += chunk.count
          }
        }
        result.isStored = response.head.fields["X-Cache"] == "HIT"
      }
    case .readFile:
      let descriptor = open(work.source, O_RDONLY)
      guard descriptor >= 0 else { throw BenchError("\(work.source): \(errno)") }
      let buffer = UnsafeMutableRawPointer.allocate(byteCount: 256 << 10, alignment: 4096)
      return { _ in
        try await check(work) { total in
          while case let count = read(descriptor, buffer, 256 << 10), count > 0 { total += count }
        }
      }
    case .values:
      let client = CachingClient(try cache(work))
      return { result in
        let response = try await client.respond(to: request(url), over: transport)
        try await check(work) { count in for try await chunk in response.body { count += chunk.count } }
        result.isHit = response.source == .hit
        result.isStored = response.storage == .stored
      }
    case .bytes:
      let cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: work.folder), memoryCapacity: 4 << 20, diskCapacity: diskCapacity)
      return { result in
        let (chunks, response) = try await cache.bytes(for: URLRequest(url: url))
        try await check(work) { count in for try await chunk in chunks { count += chunk.count } }
        result.isHit = response.cacheProvenance?.source == .hit
        result.isStored = response.cacheProvenance?.storage == .stored
      }
    case .readers:
      let client = CachingClient(try cache(work))
      return { result in
        let outcomes = try await withThrowingTaskGroup(of: Bool.self) { group in
          for _ in 0..<100 {
            group.addTask {
              let response = try await client.respond(to: request(url), over: transport)
              try await check(work) { count in for try await chunk in response.body { count += chunk.count } }
              return response.storage == .stored
            }
          }
          return try await group.reduce(into: []) { $0.append($1) }
        }
        result.isStored = outcomes.contains(true)
      }
    }
  }

  private static let diskCapacity = 10_000_000_000

  private static func cache(_ work: Work) throws -> ResponseCache {
    try ResponseCache(directory: work.folder, memoryCapacity: 4 << 20, diskCapacity: diskCapacity)
  }

  private static func request(_ url: URL) -> CachingClientRequest {
    var request = CachingClientRequest(head: RequestHead(url: url))
    request.readsBodyInPieces = true
    return request
  }

  private static func check(_ work: Work, _ count: (inout Int) async throws -> Void) async throws {
    var byteCount = 0
    try await count(&byteCount)
    guard byteCount == work.byteCount else { throw BenchError("of \(work.byteCount) bytes \(byteCount) came") }
  }

  private static func write(_ chunk: Data, to descriptor: CInt) throws {
    try chunk.withUnsafeBytes { bytes in
      var rest = bytes[...]
      while !rest.isEmpty {
        let count = Glibc.write(descriptor, UnsafeRawBufferPointer(rebasing: rest).baseAddress, rest.count)
        guard count > 0 else { throw BenchError("write: \(errno)") }
        rest = rest.dropFirst(count)
      }
    }
  }
}

/// The peak of a process's resident memory since it was reset.
private struct MemoryPeak {
  private let path: String
  private let idle: Double

  /// Resets the peak.
  init(of process: String = "self") throws {
    path = "/proc/\(process)"
    let descriptor = open(path + "/clear_refs", O_WRONLY)
    defer { close(descriptor) }
    guard descriptor >= 0, write(descriptor, "5", 1) == 1 else { throw BenchError("clear_refs: \(errno)") }
    idle = try Self.megabytes("VmRSS:", path)
  }

  func megabytesBeyond() throws -> Double { try Self.megabytes("VmHWM:", path) - idle }

  private static func megabytes(_ name: String, _ path: String) throws -> Double {
    let status = String(decoding: FileManager.default.contents(atPath: path + "/status") ?? Data(), as: UTF8.self)
    let line = status.split(separator: "\n").first { $0.hasPrefix(name) }
    guard let kilobytes = line.flatMap({ Double($0.filter(\.isNumber)) }) else { throw BenchError("no \(name)") }
    return kilobytes * 1024 / 1e6
  }
}

// MARK: - Servers

/// An nginx on loopback with files of some sizes, which stay fresh for an hour.
private final class LargeOrigin {
  private let server = Process()
  private let folder: String
  let port = 42_080 + Int(getpid()) % 10_000

  init(folder: String, sizes: [Int]) throws {
    self.folder = folder
    for size in Set(sizes) {
      let file = open(Self.file(size, folder), O_CREAT | O_WRONLY, 0o644)
      defer { close(file) }
      let block = (0..<1 << 17).map { UInt64(truncatingIfNeeded: $0) &* 0x9E37_79B9_7F4A_7C15 }
      var rest = size
      while rest > 0 {
        let count = block.withUnsafeBytes { write(file, $0.baseAddress, min(rest, $0.count)) }
        guard count > 0 else { throw BenchError("the large file: \(errno)") }
        rest -= count
      }
    }
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log \(folder)/access.log; sendfile on; tcp_nopush on;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        server { listen 127.0.0.1:\(port); root \(folder); add_header Cache-Control "max-age=3600"; }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
  }

  private static func file(_ size: Int, _ folder: String) -> String { "\(folder)/\(size).bin" }
  func file(_ size: Int) -> String { Self.file(size, folder) }
  func url(_ size: Int) -> String { "http://127.0.0.1:\(port)/\(size).bin" }

  /// The number of requests for a file so far.
  func requestCount(_ size: Int) throws -> Int {
    usleep(200_000)
    let log = String(decoding: try Data(contentsOf: URL(fileURLWithPath: folder + "/access.log")), as: UTF8.self)
    return log.split(separator: "\n").count { $0.contains("GET /\(size).bin ") }
  }

  func stop() { endProcess(server) }
}

/// An nginx with `proxy_cache` in front of the origin.
private final class LargeProxy {
  private let server = Process()
  private let port: Int
  private let idle: MemoryPeak

  init(of origin: LargeOrigin, folder: String) throws {
    port = origin.port + 10_000
    chmod(folder, 0o755)
    let configuration = """
      daemon off; master_process off; pid \(folder)/pid; error_log \(folder)/error.log; user root;
      events { worker_connections 4096; }
      http {
        access_log off; sendfile on; tcp_nopush on;
        client_body_temp_path \(folder); proxy_temp_path \(folder); fastcgi_temp_path \(folder);
        uwsgi_temp_path \(folder); scgi_temp_path \(folder);
        proxy_cache_path \(folder)/cache keys_zone=large:1m max_size=10g use_temp_path=off;
        server {
          listen 127.0.0.1:\(port);
          location / {
            proxy_pass http://127.0.0.1:\(origin.port); proxy_http_version 1.1; proxy_cache large;
            add_header X-Cache $upstream_cache_status;
          }
        }
      }
      """
    try server.runNginx(configuration: configuration, folder: folder)
    idle = try MemoryPeak(of: "\(server.processIdentifier)")
  }

  func url(_ size: Int) -> String { "http://127.0.0.1:\(port)/\(size).bin" }

  var peakMegabytes: Double {
    // It can be read while the process runs.
    (try? idle.megabytesBeyond()) ?? 0
  }

  func stop() { endProcess(server) }
}
