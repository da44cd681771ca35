import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import Synchronization
import Testing

/// The exit status and output of the tool.
struct ToolResult {
  /// The exit code, or the signal's number if `wasKilled`.
  let status: Int32
  /// Whether a signal ended the tool.
  let wasKilled: Bool
  let output: String
  let errors: String

  /// The standard output as JSON.
  func json() throws -> [String: Any] {
    try #require(try JSONSerialization.jsonObject(with: Data(output.utf8)) as? [String: Any])
  }
}

/// Runs the built executable, with a directory in memory that is removed with this object.
final class Tool {
  let root: URL
  private let ownsRoot: Bool

  /// The path of the tool, which is in the directory of the test bundle.
  static let executable = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
    .deletingLastPathComponent().appendingPathComponent("urlcache")

  /// The sanitizer options of the tests, because the tool is built with the same sanitizer, if any.
  private static let sanitizerOptions = ProcessInfo.processInfo.environment.filter {
    $0.key == "ASAN_OPTIONS" || $0.key == "TSAN_OPTIONS"
  }

  /// Uses the directory of another `Tool`, which removes it.
  init(root: URL) {
    self.root = root
    ownsRoot = false
  }

  init() throws {
    root = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
    ownsRoot = true
    try FileManager.default.createDirectory(at: root, withIntermediateDirectories: true)
  }

  deinit {
    // Ignore failures: the system cleans its temporary directory.
    if ownsRoot { try? FileManager.default.removeItem(at: root) }
  }

  func path(_ name: String) -> String { root.appendingPathComponent(name).path }

  /// Starts the tool and returns the process; it has no input, and its output is discarded, unless handles are given.
  func start(
    _ arguments: [String], standardInput: Any? = nil, standardOutput: Any? = nil, standardError: Any? = nil
  ) throws -> Process {
    let process = Process()
    process.executableURL = Self.executable
    process.arguments = arguments
    process.environment = [
      "PATH": "/usr/bin:/bin", "HOME": root.path, "XDG_CACHE_HOME": path("caches"), "TMPDIR": root.path, "TZ": "UTC",
    ].merging(Self.sanitizerOptions) { $1 }
    process.standardInput = standardInput ?? FileHandle.nullDevice
    process.standardOutput = standardOutput ?? FileHandle.nullDevice
    process.standardError = standardError ?? FileHandle.nullDevice
    // A test runs on a thread that blocks signals, and the tool would inherit that.
    var (none, blocked) = (sigset_t(), sigset_t())
    sigemptyset(&none)
    pthread_sigmask(SIG_SETMASK, &none, &blocked)
    defer { pthread_sigmask(SIG_SETMASK, &blocked, nil) }
    try process.run()
    return process
  }

  /// Runs the tool and waits until it exits.
  ///
  /// Its output goes to files, because a pipe could fill up.
  func run(_ arguments: String..., output: FileHandle? = nil) throws -> ToolResult {
    try run(arguments, output: output)
  }

  func run(_ arguments: [String], input: FileHandle? = nil, output: FileHandle? = nil) throws -> ToolResult {
    let names = ["out", "err"].map { path("\($0)-\(UUID().uuidString)") }
    let handles = try names.map { name in
      #expect(FileManager.default.createFile(atPath: name, contents: nil))
      return try #require(FileHandle(forWritingAtPath: name))
    }
    let process = try start(
      arguments, standardInput: input, standardOutput: output ?? handles[0], standardError: handles[1])
    process.waitUntilExit()
    let texts = try names.map { name in
      defer { unlink(name) }
      return String(decoding: try Data(contentsOf: URL(fileURLWithPath: name)), as: UTF8.self)
    }
    return ToolResult(
      status: process.terminationStatus, wasKilled: process.terminationReason == .uncaughtSignal, output: texts[0],
      errors: texts[1])
  }

  // MARK: Caches

  /// A response to store in a test cache.
  struct Stored {
    let url: String
    var body = "body"
    var status = 200
    /// The time of storing, in seconds after ``Tool/epoch``.
    var delay: TimeInterval = 0
    var fields = ["Cache-Control": "max-age=86400"]
    /// The header fields of the request.
    var requestFields: [String: String] = [:]
  }

  /// The earliest storing time: 2026-01-02 03:04:05 UTC.
  static let epoch = Date(timeIntervalSince1970: 1_767_323_045)

  /// Creates a cache that stores the responses and returns its directory.
  func makeCache(_ responses: [Stored], capacity: Int = 20 << 20) throws -> String {
    let directory = path("cache")
    let now = Mutex(Self.epoch)
    var options = LMDBURLCache.Options()
    options.clock = { now.withLock { $0 } }
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: 1 << 20, diskCapacity: capacity, options: options)
    // Store every response on disk, regardless of its freshness lifetime.
    cache.minCacheInterval = 0
    for response in responses {
      now.withLock { $0 = Self.epoch + response.delay }
      let url = try #require(URL(string: response.url))
      let head = try #require(
        HTTPURLResponse(url: url, statusCode: response.status, httpVersion: "HTTP/1.1", headerFields: response.fields))
      var request = URLRequest(url: url)
      request.allHTTPHeaderFields = response.requestFields
      cache.storeCachedResponse(
        CachedURLResponse(response: head, data: Data(response.body.utf8)), for: request)
      #expect(cache.flush())
    }
    return directory
  }

  /// Creates a cache with many small responses of one host, stored one second apart, and returns its directory.
  ///
  /// Their ages are about 10 days and 12 hours, so that within a test no age gets another number of digits or units.
  func makeCache(count: Int) throws -> String {
    let directory = path("cache")
    let now = Mutex(Date() - (10 * 86_400 + 12.5 * 3600))
    var options = LMDBURLCache.Options()
    options.clock = { now.withLock { $0 } }
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: 1 << 20, diskCapacity: 64 << 20, options: options)
    for number in 0..<count {
      now.withLock { $0 += 1 }
      let url = try #require(URL(string: "http://a.example/\(number)"))
      let head = try #require(
        HTTPURLResponse(
          url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: ["Cache-Control": "max-age=86400"]))
      cache.storeCachedResponse(
        CachedURLResponse(response: head, data: Data("\(number)".utf8)), for: URLRequest(url: url))
    }
    #expect(cache.flush())
    return directory
  }

  /// Returns the URLs that `list` prints, in its order.
  func urls(in directory: String, sortedBy order: String = "url", _ arguments: String...) throws -> [String] {
    let entries =
      try run(["list", directory, "--sort", order, "--json"] + arguments).json()["entries"] as? [[String: Any]]
    return try #require(entries).compactMap { $0["url"] as? String }
  }
}
