import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

/// Hits in memory as values, without Foundation's requests and responses, compared with `data(for:)`: from the URL to
/// the response. Each hit makes its request.
struct Values {
  let report: Report
  let scratch: Scratch

  private static let names = [
    "CachingClient.respond(to:over:)", "CachingClient.respond(to:over:), with fields", "LMDBURLCache.data(for:)",
  ]

  func run() async throws {
    let fixture = Fixture(count: 1_000, bodyByteCount: 1 << 10)
    let values = try ResponseCache(
      directory: scratch.folder("values"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
    let client = CachingClient(values)
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("data")), memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
    for index in 0..<fixture.count {
      guard let url = URL(string: fixture.url(index)) else { throw BenchError("no URL") }
      let response = IncomingResponse(
        head: ResponseHead(status: 200, fields: HeaderFields(fixture.fields(index))),
        body: ResponseBodyStream(fixture.body(index)))
      _ = try await client.respond(
        to: CachingClientRequest(head: RequestHead(url: url)), over: OneResponse(response: response))
      cache.storeCachedResponse(FoundationPeer.cachedResponse(fixture, index), for: URLRequest(url: url))
    }
    guard values.flush(), cache.flush() else { throw BenchError("the caches could not be written") }
    for taskCount in [1, 64] {
      // Each task has its own URLs. Otherwise the tasks would change the same reference counts.
      let urls = (0..<taskCount).map { task in
        (0..<100).compactMap { URL(string: fixture.url((task * 100 + $0) % fixture.count)) }
      }
      try await compare(client, cache, urls, fixture, scenario: "\(taskCount) \(taskCount == 1 ? "task" : "tasks")")
    }
  }

  private func compare(
    _ client: CachingClient<ResponseCache>, _ cache: LMDBURLCache, _ urls: [[URL]], _ fixture: Fixture, scenario: String
  ) async throws {
    var (rates, costs) = ([String: [Double]](), [String: [Double]]())
    let byteCount = fixture.bodyByteCount
    let repetitions = (report.isQuick ? 1_000 : 4_000) / urls.count
    for round in 0...(report.isQuick ? 7 : 21) {
      for name in Self.names {
        let (start, cost) = (now(), processTime())
        try await withThrowingTaskGroup(of: Void.self) { group in
          for urls in urls {
            group.addTask {
              for _ in 0..<repetitions {
                for url in urls { try await Self.load(url, name, client, cache, byteCount: byteCount) }
              }
            }
          }
          try await group.waitForAll()
        }
        guard round > 0 else { continue }
        let count = Double(urls.count * repetitions * 100)
        rates[name, default: []].append(count / (Double(now() - start) / 1e9))
        costs[name, default: []].append((processTime() - cost) * 1000 / count)
      }
    }
    for name in Self.names {
      report.add(
        "reads", "hits as values", scenario, name, unit: "per second", rates[name] ?? [], lessIsBetter: false)
    }
    for name in Self.names {
      report.add("reads", "processor time of a hit as a value", scenario, name, unit: "ns", costs[name] ?? [])
    }
  }

  private static func load(
    _ url: URL, _ name: String, _ client: CachingClient<ResponseCache>, _ cache: LMDBURLCache, byteCount: Int
  ) async throws {
    guard name != names[2] else {
      let (data, response) = try await cache.data(for: URLRequest(url: url))
      guard data.count == byteCount, (response as? HTTPURLResponse)?.statusCode == 200 else {
        throw BenchError("missed")
      }
      return
    }
    let response = try await client.respond(
      to: CachingClientRequest(head: RequestHead(url: url)), over: NoTransport())
    guard response.body.bytes?.count == byteCount, response.status == 200 else { throw BenchError("missed") }
    if name == names[1], response.deliveredHead.fields.count < 10 { throw BenchError("no fields") }
  }
}

/// Responds with one response.
private struct OneResponse: Transport {
  let response: IncomingResponse

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse { response }
}

/// Fails, because all requests are hits.
private struct NoTransport: Transport {
  func send(_ request: OutgoingRequest) async throws -> IncomingResponse { throw BenchError("missed") }
}
