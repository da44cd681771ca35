import Foundation
import FoundationNetworking
import LMDBURLCache

/// Latency of hits through the Foundation API: `cachedResponse(for:)`, `data(for:)` and the tasks of a session.
struct Sessions {
  let report: Report
  let scratch: Scratch

  func run() async throws {
    let fixture = Fixture(count: report.isQuick ? 1_000 : 10_000, bodyByteCount: 1 << 10)
    let onDisk = try cache("disk", memoryCapacity: 0)
    let inMemory = try cache("memory", memoryCapacity: 256 << 20)
    let requests = (0..<fixture.count).map { FoundationPeer.request(fixture.url($0)) }
    for index in 0..<fixture.count {
      let response = FoundationPeer.cachedResponse(fixture, index)
      onDisk.storeCachedResponse(response, for: requests[index])
      inMemory.storeCachedResponse(response, for: requests[index])
    }
    guard onDisk.flush(), inMemory.flush() else { throw BenchError("the cache could not be written") }
    lookups(fixture, requests, onDisk, inMemory)
    try await loads(fixture, requests, inMemory)
  }

  private func cache(_ name: String, memoryCapacity: Int) throws -> LMDBURLCache {
    try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder(name)), memoryCapacity: memoryCapacity, diskCapacity: 1 << 30)
  }

  private func lookups(
    _ fixture: Fixture, _ requests: [URLRequest], _ onDisk: LMDBURLCache, _ inMemory: LMDBURLCache
  ) {
    // Hits in memory are ten times as fast, so their rounds have more operations.
    let (operations, memoryOperations) = (500, 10_000)
    var random = SeededGenerator(seed: 5)
    let picks = random.picks(memoryOperations * 8, below: fixture.count)
    func slice(_ thread: Int, _ round: Int, _ operations: Int) -> ArraySlice<UInt32> {
      let start = (thread * 7 + round) * operations % (picks.count - operations)
      return picks[start..<(start + operations)]
    }
    let urls = requests.compactMap(\.url)
    let fields = (0..<fixture.count).map { Dictionary(uniqueKeysWithValues: fixture.fields($0)) }
    let bodies = (0..<fixture.count).map { fixture.body($0) }

    // Each thread has its own requests. Otherwise the threads would change the same reference counts.
    let requests = [requests, requests.compactMap { $0.url.map { FoundationPeer.request($0.absoluteString) } }]
    func hit(
      _ name: String, _ cache: LMDBURLCache, operations: Int, threads: Int = 1, builds: Bool = true
    ) -> BenchmarkCase {
      BenchmarkCase(name: name, operations: operations, threads: threads) { thread, round in
        var sum = 0
        for pick in slice(thread, round, operations) {
          guard let found = cache.cachedResponse(for: requests[thread][Int(pick)]) else { fatalError("missed") }
          sum &+= found.data.count
          if builds { sum &+= (found.response as? HTTPURLResponse)?.statusCode ?? 0 }
        }
        if sum == 0 { fatalError("nothing was read") }
      }
    }
    let bare = BenchmarkCase(name: "bare construction", operations: operations) { thread, round in
      var sum = 0
      for pick in slice(thread, round, operations) {
        let index = Int(pick)
        guard
          let response = HTTPURLResponse(
            url: urls[index], statusCode: 200, httpVersion: "HTTP/1.1", headerFields: fields[index])
        else { fatalError("no response") }
        let copy = bodies[index].withUnsafeBytes { Data($0) }
        let cached = CachedURLResponse(response: response, data: copy, userInfo: nil, storagePolicy: .allowed)
        sum &+= cached.data.count &+ ((cached.response as? HTTPURLResponse)?.statusCode ?? 0)
      }
      if sum == 0 { fatalError("nothing was made") }
    }
    let cases = [
      hit("LMDBURLCache, disk", onDisk, operations: operations), bare,
      hit("LMDBURLCache, disk, response not asked for", onDisk, operations: operations, builds: false),
    ]
    let rounds = report.isQuick ? 15 : 41
    report.add("sessions", "cachedResponse", fixture, Harness.compare(cases, rounds: rounds), order: cases)
    // A separate comparison of one thread with two.
    let one = hit("LMDBURLCache, memory", inMemory, operations: memoryOperations)
    let two = hit("two threads", inMemory, operations: memoryOperations, threads: 2)
    let samples = Harness.compare([one, two], rounds: rounds)
    report.add("sessions", "cachedResponse", fixture, samples, order: [one])
    report.add(
      "sessions", "cachedResponse, 2 threads", fixture, [one.name: samples[two.name, default: []]], order: [one])
  }

  /// Compares sequential loads: `data(for:)`, and tasks of a session whose protocol class responds immediately.
  private func loads(_ fixture: Fixture, _ requests: [URLRequest], _ cache: LMDBURLCache) async throws {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.protocolClasses = [InstantProtocol.self]
    let instant = URLSession(configuration: configuration)
    let caching = URLSession(configuration: URLSessionConfiguration.default.caching(with: cache))
    var samples: [String: [Double]] = [:]
    let names = ["LMDBURLCache.data(for:)", "URLSession, answered at once", "URLSession, caching"]
    let operations = 200
    for round in 0...(report.isQuick ? 7 : 21) {
      for name in names {
        let start = now()
        for number in 0..<operations {
          let request = requests[(round * 37 + number) % requests.count]
          switch name {
          case names[0]: _ = try await cache.data(for: request)
          case names[1]: _ = try await instant.data(for: request)
          default: _ = try await caching.data(for: request)
          }
        }
        if round > 0 { samples[name, default: []].append(Double(now() - start) / Double(operations)) }
      }
    }
    for name in names { report.add("sessions", "load", fixture.name, name, unit: "ns", samples[name] ?? []) }
    instant.invalidateAndCancel()
    caching.invalidateAndCancel()
  }
}

/// Responds to every request immediately with 1 KB: measures a session's task without a cache or network.
final class InstantProtocol: URLProtocol {
  private static let body = Data(repeating: 7, count: 1 << 10)

  override class func canInit(with request: URLRequest) -> Bool { true }
  override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }
  override func stopLoading() {}

  override func startLoading() {
    guard let url = request.url,
      let response = HTTPURLResponse(
        url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: ["Content-Length": "1024"])
    else { return }
    client?.urlProtocol(self, didReceive: response, cacheStoragePolicy: .notAllowed)
    client?.urlProtocol(self, didLoad: Self.body)
    client?.urlProtocolDidFinishLoading(self)
  }
}
