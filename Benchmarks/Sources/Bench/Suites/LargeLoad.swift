import CachingClient
import CachingStorage
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

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
