import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import ResponseStore
import Testing

/// Every public number at its limits: what it is used for works, or throws, or traps with a message.
@Suite("Public numbers at their limits", .timeLimit(.minutes(5)))
struct PublicNumberTests {
  static let integers = [0, 1, -1, .max, .min]
  static let seconds: [Double] = [
    0, 1, -1, .greatestFiniteMagnitude, -.greatestFiniteMagnitude, .infinity, -.infinity, .nan,
  ]
  static let durations: [Duration] = [.zero, .nanoseconds(1), .seconds(-1), .seconds(Int64.max), .seconds(Int64.min)]

  @Test("A number of the transport at its limits works, or leads to an error", arguments: TransportNumber.allCases)
  func transport(number: TransportNumber) async {
    await #expect(processExitsWith: .success) { [number = number as TransportNumber] in
      let origin = try LoopbackOrigin(handler: reply)
      for value in number.values {
        var configuration = CurlTransport.Configuration()
        configuration.proxy = .none
        number.set(value, &configuration)
        let transport = CurlTransport(configuration)
        for path in paths {
          let request = OutgoingRequest(
            head: RequestHead(url: origin.url(path)), timeLimit: number == .requestTimeLimit ? value.duration : nil)
          do {
            let body = try await transport.send(request).body.collect(upTo: .max)
            #expect(body == Data("hello".utf8), "\(number) \(value)")
          } catch let error as CurlTransportError {
            #expect([.timedOut, .excessiveExpansion].contains(error.code), "\(number) \(value): \(error)")
          }
        }
      }
    }
  }

  @Test("A number of the cache at its limits works, or leads to an error", arguments: CacheNumber.allCases)
  func cache(number: CacheNumber) async {
    await #expect(processExitsWith: .success) { [number = number as CacheNumber] in
      let origin = try LoopbackOrigin(handler: reply)
      for value in number.values {
        let directory = FileManager.default.temporaryDirectory.appending(path: "numbers-\(UUID().uuidString)")
        defer { try? FileManager.default.removeItem(at: directory) }  // A leftover harms nothing.
        var setup = CacheSetup()
        number.set(value, &setup)
        let made = Result {
          try LMDBURLCache(
            directory: directory, memoryCapacity: setup.memoryCapacity, diskCapacity: setup.diskCapacity,
            options: setup.options)
        }
        if case .failure(let error) = made {
          #expect(number == .diskCapacity && (error as? StoreError)?.code == .invalidArgument, "\(number) \(value)")
          continue
        }
        let cache = try made.get()
        if let interval = setup.minCacheInterval { cache.minCacheInterval = interval }
        let configuration = URLSessionConfiguration.ephemeral.caching(with: cache)
        setup.configure(configuration)
        let session = URLSession(configuration: configuration)
        for path in paths {
          var request = URLRequest(url: origin.url(path))
          if let timeout = setup.requestTimeout { request.timeoutInterval = timeout }
          for _ in 0..<2 {
            do {
              #expect(try await cache.data(for: request).0 == Data("hello".utf8), "\(number) \(value)")
              #expect(try await session.data(for: request).0 == Data("hello".utf8), "\(number) \(value)")
              let chunks = try await cache.bytes(for: request).0
              #expect(try await chunks.collect(upTo: .max) == Data("hello".utf8), "\(number) \(value)")
            } catch let error as URLError {
              #expect(error.code == .timedOut, "\(number) \(value): \(error)")
            }
            cache.flush()
          }
        }
        try await cache.purge(.all, mode: .soft, timeout: number == .purgeTimeout ? value.duration : nil)
        _ = cache.statistics
        cache.memoryCapacity = setup.memoryCapacity
        cache.diskCapacity = setup.diskCapacity
      }
    }
  }

  @Test(
    "A number of a caching client on a store at its limits works, or leads to an error",
    arguments: ClientNumber.allCases)
  func client(number: ClientNumber) async {
    await #expect(processExitsWith: .success) { [number = number as ClientNumber] in
      let gate = Gate()
      let origin = try LoopbackOrigin { $0.path == "/held" ? reply(to: $0).held(at: gate) : reply(to: $0) }
      for value in number.values {
        let directory = FileManager.default.temporaryDirectory.appending(path: "numbers-\(UUID().uuidString)")
        defer { try? FileManager.default.removeItem(at: directory) }  // A leftover harms nothing.
        var options = ResponseStore.Options(capacityByteCount: 8 << 20)
        var caching = CachingOptions()
        var bodyLimit = 16 << 20
        number.set(value, &options, &caching, &bodyLimit)
        let store: ResponseStore
        do { store = try ResponseStore.open(directory: directory.path, options: options) } catch {
          #expect(number == .openTimeout, "\(number) \(value): \(error)")
          continue
        }
        // Uses the store that is open.
        let cache = try ResponseCache(
          directory: directory.path, memoryCapacity: 0, diskCapacity: options.capacityByteCount)
        let client = CachingClient(storage: cache, options: caching, maximumBodyByteCount: bodyLimit)
        let transport = CurlTransport()
        await withTaskGroup(of: Void.self) { group in
          // Followers wait for the first request.
          for path in ["/held", "/held", "/held"] + paths + paths {
            var request = CachingClientRequest(head: RequestHead(url: origin.url(path)))
            number.set(value, &request)
            group.addTask { [request] in
              do {
                let body = try await client.respond(to: request, over: transport).body.collect(upTo: .max)
                #expect(body == Data("hello".utf8) || body == Data("target".utf8), "\(number) \(value)")
              } catch CachingClientError.timedOut, CachingClientError.tooManyRedirects {
                #expect([.timeLimit, .maximumRedirectCount].contains(number), "\(number) \(value)")
              } catch let error as CurlTransportError {
                #expect(error.code == .timedOut && number == .timeLimit, "\(number) \(value): \(error)")
              } catch {
                Issue.record("\(number) \(value): \(error)")
              }
            }
          }
          gate.open()
        }
        try? store.flush()  // With a time limit of zero, a flush may fail.
        if !number.mayFailStore { #expect(!store.hasFailed, "\(number) \(value)") }
        store.remove(.everything)
        store.close()
      }
    }
  }

  @Test(
    "A capacity that is negative or too small traps with a message, also in release builds", arguments: Trap.allCases)
  func traps(trap: Trap) async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      [trap = trap as Trap] in
      let directory = FileManager.default.temporaryDirectory.appending(path: "numbers-\(UUID().uuidString)")
      defer { try? FileManager.default.removeItem(at: directory) }  // A leftover harms nothing.
      try trap.run(directory)
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    // The message of `precondition` exists in debug builds only.
    #expect(text.contains("Fatal error: LMDBURLCache: \(trap.message)"), "\(text.prefix(500))")
  }
}

private let paths = ["/fresh", "/stale", "/heuristic", "/gzip", "/validated", "/failing"]

private func reply(to request: RecordedRequest) -> Reply {
  switch request.path {
  case "/fresh", "/held": return Reply(200, [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")], "hello")
  case "/stale": return Reply(200, [("Cache-Control", "max-age=0, stale-while-revalidate=1")], "hello")
  case "/heuristic": return Reply(200, [("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")], "hello")
  case "/gzip":
    // "hello" in gzip.
    let bytes: [UInt8] = [
      0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0, 0x86, 0xa6, 0x10, 0x36, 5, 0, 0, 0,
    ]
    return Reply(200, [("Content-Encoding", "gzip")], body: Data(bytes))
  case "/validated":
    return request["If-None-Match"] == nil
      ? Reply(200, [("Cache-Control", "no-cache"), ("ETag", "\"1\"")], "hello") : Reply(304, [("ETag", "\"1\"")])
  case "/failing":
    return request["If-None-Match"] == nil
      ? Reply(200, [("Cache-Control", "max-age=0, stale-if-error=600"), ("ETag", "\"1\"")], "hello")
      : Reply(503, [], "hello")
  case "/redirect": return Reply(302, [("Location", "/target")], "hello")
  default: return Reply(200, [], "target")
  }
}

/// A value of any of the types of numbers.
struct NumberValue: CustomStringConvertible {
  var integer = 0
  var seconds = 0.0
  var duration = Duration.zero
  var description: String

  static let integers = PublicNumberTests.integers.map { NumberValue(integer: $0, description: "\($0)") }
  static let seconds = PublicNumberTests.seconds.map { NumberValue(seconds: $0, description: "\($0)") }
  static let durations = PublicNumberTests.durations.map { NumberValue(duration: $0, description: "\($0.components)") }
  /// Those that do not trap.
  static let counts = integers.filter { $0.integer >= 0 }
}

enum TransportNumber: String, CaseIterable, Codable {
  case maximumConnectionsPerOrigin, maximumConnections, maximumExpansionFactor
  case timeout, connectTimeout, idleConnectionTimeout, maximumConnectionAge, requestTimeLimit

  var values: [NumberValue] {
    switch self {
    case .maximumConnectionsPerOrigin, .maximumConnections, .maximumExpansionFactor: NumberValue.integers
    default: NumberValue.durations
    }
  }

  func set(_ value: NumberValue, _ configuration: inout CurlTransport.Configuration) {
    switch self {
    case .maximumConnectionsPerOrigin: configuration.maximumConnectionsPerOrigin = value.integer
    case .maximumConnections: configuration.maximumConnections = value.integer
    case .maximumExpansionFactor: configuration.maximumExpansionFactor = value.integer
    case .timeout: configuration.timeout = value.duration
    case .connectTimeout: configuration.connectTimeout = value.duration
    case .idleConnectionTimeout: configuration.idleConnectionTimeout = value.duration
    case .maximumConnectionAge: configuration.maximumConnectionAge = value.duration
    case .requestTimeLimit: break
    }
  }
}

struct CacheSetup {
  var options = LMDBURLCache.Options()
  var memoryCapacity = 1 << 20
  var diskCapacity = 8 << 20
  var minCacheInterval: TimeInterval?
  var requestTimeout: TimeInterval?
  var configure: (URLSessionConfiguration) -> Void = { _ in }
}

enum CacheNumber: String, CaseIterable, Codable {
  case memoryCapacity, diskCapacity, maximumStoredBodyByteCount, minCacheInterval, overriddenLifetime, ruleLifetime
  case overriddenStaleAfter
  case requestTimeout, timeoutIntervalForRequest, timeoutIntervalForResource, httpMaximumConnectionsPerHost
  case curlTimeout, purgeTimeout

  var values: [NumberValue] {
    switch self {
    case .memoryCapacity, .diskCapacity: NumberValue.counts
    case .maximumStoredBodyByteCount: NumberValue.integers
    // Foundation's own sessions trap with the others, without this library.
    case .httpMaximumConnectionsPerHost: NumberValue.counts
    case .curlTimeout, .purgeTimeout: NumberValue.durations
    default: NumberValue.seconds
    }
  }

  func set(_ value: NumberValue, _ setup: inout CacheSetup) {
    let seconds = value.seconds
    let integer = value.integer
    switch self {
    case .memoryCapacity: setup.memoryCapacity = integer
    case .diskCapacity: setup.diskCapacity = integer
    case .maximumStoredBodyByteCount: setup.options.maximumStoredBodyByteCount = integer
    case .minCacheInterval: setup.minCacheInterval = seconds
    case .overriddenLifetime: setup.options.overrides = { _ in RequestOverrides(lifetime: seconds) }
    case .overriddenStaleAfter: setup.options.overrides = { _ in RequestOverrides(staleAfter: seconds) }
    case .ruleLifetime:
      // A lifetime that is none is an error here.
      if let rules = try? CachingRules([CachingRule(name: "all", lifetime: seconds)]) { setup.options.rules = rules }
    case .requestTimeout: setup.requestTimeout = seconds
    case .timeoutIntervalForRequest: setup.configure = { $0.timeoutIntervalForRequest = seconds }
    case .timeoutIntervalForResource: setup.configure = { $0.timeoutIntervalForResource = seconds }
    case .httpMaximumConnectionsPerHost: setup.configure = { $0.httpMaximumConnectionsPerHost = integer }
    case .curlTimeout:
      var configuration = CurlTransport.Configuration()
      configuration.timeout = value.duration
      setup.options.transport = .curl(configuration)
    case .purgeTimeout: break
    }
  }
}

enum ClientNumber: String, CaseIterable, Codable {
  case commitDelay, queueByteCount, fullQueueTimeout, openTimeout, stallTimeout, capacityByteCount
  case heuristicFraction, heuristicMaximum, defaultLifetime, staleIfErrorByDefault
  case maximumBodyByteCount, timeLimit, maximumRedirectCount, staleAfter, holdOff, coalescingTimeout

  var values: [NumberValue] {
    switch self {
    case .capacityByteCount: NumberValue.integers.filter { $0.integer > 1 }
    case .maximumBodyByteCount: NumberValue.counts
    case .queueByteCount, .maximumRedirectCount: NumberValue.integers
    case .heuristicFraction, .heuristicMaximum, .defaultLifetime, .staleIfErrorByDefault: NumberValue.seconds
    default: NumberValue.durations
    }
  }

  /// Whether operations that wait for another thread may fail at once.
  var mayFailStore: Bool { self == .stallTimeout }

  func set(
    _ value: NumberValue, _ options: inout ResponseStore.Options, _ caching: inout CachingOptions,
    _ bodyLimit: inout Int
  ) {
    switch self {
    case .commitDelay: options.commitDelay = value.duration
    case .queueByteCount: options.queueByteCount = value.integer
    case .fullQueueTimeout: options.fullQueueTimeout = value.duration
    case .openTimeout: options.openTimeout = value.duration
    case .stallTimeout: options.stallTimeout = value.duration
    case .capacityByteCount: options.capacityByteCount = value.integer
    case .heuristicFraction: caching.heuristicFraction = value.seconds
    case .heuristicMaximum: caching.heuristicMaximum = value.seconds
    case .defaultLifetime: caching.defaultLifetime = value.seconds
    case .staleIfErrorByDefault: caching.staleIfErrorByDefault = value.seconds
    case .staleAfter: caching.staleAfter = value.duration
    case .holdOff: caching.holdOff = value.duration...value.duration
    case .coalescingTimeout: caching.coalescingTimeout = value.duration
    case .maximumBodyByteCount: bodyLimit = value.integer
    case .timeLimit, .maximumRedirectCount: break
    }
  }

  func set(_ value: NumberValue, _ request: inout CachingClientRequest) {
    switch self {
    case .timeLimit: request.timeLimit = value.duration
    case .maximumRedirectCount:
      request = CachingClientRequest(
        head: RequestHead(url: URL(string: "/redirect", relativeTo: request.head.url)!.absoluteURL))
      request.maximumRedirectCount = value.integer
    default: break
    }
  }
}

/// A number that is refused where it is set.
enum Trap: String, CaseIterable, Codable {
  case memoryCapacity, diskCapacity, laterMemoryCapacity, laterDiskCapacity, storeCapacity, laterStoreCapacity,
    bodyLimit

  var message: String {
    switch self {
    case .memoryCapacity, .laterMemoryCapacity: "the memory capacity of a cache cannot be negative"
    case .diskCapacity, .laterDiskCapacity: "the disk capacity of a cache cannot be negative"
    case .storeCapacity, .laterStoreCapacity: "a response store needs a capacity of at least"
    case .bodyLimit: "the maximum size of a body cannot be negative"
    }
  }

  func run(_ directory: URL) throws {
    func makeCache(memoryCapacity: Int = 0, diskCapacity: Int = 0) throws -> LMDBURLCache {
      try LMDBURLCache(directory: directory, memoryCapacity: memoryCapacity, diskCapacity: diskCapacity)
    }
    func makeStore(capacity: Int = 8 << 20) throws -> ResponseStore {
      try ResponseStore.open(directory: directory.path, options: ResponseStore.Options(capacityByteCount: capacity))
    }
    switch self {
    case .memoryCapacity: _ = try makeCache(memoryCapacity: -1)
    case .diskCapacity: _ = try makeCache(diskCapacity: -1)
    case .laterMemoryCapacity: try makeCache().memoryCapacity = -1
    case .laterDiskCapacity: try makeCache().diskCapacity = -1
    case .storeCapacity: _ = try makeStore(capacity: -1)
    case .laterStoreCapacity: try makeStore().capacityByteCount = 0
    case .bodyLimit: _ = CachingClient(storage: try makeCache().storage, maximumBodyByteCount: -1)
    }
  }
}
