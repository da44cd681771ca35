import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import RedisTier
import Testing

/// Responses to QUERY (RFC 10008) that machines share.
@Suite("Shared queries of a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct SharedQueryTests {
  private func request(
    _ fleet: FleetFixture, _ content: String, _ fields: [String: String] = [:]
  ) -> URLRequest {
    var request = URLRequest(url: fleet.origin.url("/a"))
    request.httpMethod = "QUERY"
    request.httpBody = Data(content.utf8)
    request.setValue("text/plain", forHTTPHeaderField: "Content-Type")
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    return request
  }

  private func send(_ request: URLRequest, _ machine: Machine) async throws -> String {
    String(decoding: try await machine.cache.data(for: request).0, as: UTF8.self)
  }

  /// Waits until a machine has no stored response to a request.
  private func waitForRemoval(of request: URLRequest, on machine: Machine) async throws {
    var request = request
    request.cachePolicy = .returnCacheDataDontLoad
    while (try? await machine.cache.data(for: request)) != nil { await Task.yield() }
  }

  @Test("A query that one machine has sent is answered by the fleet, and another content or media type is not")
  func shared() async throws {
    let fleet = try FleetFixture()
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let first = try await send(request(fleet, "needle 1"), one)
    try await fleet.waitForObjects(1)
    #expect(try await send(request(fleet, "needle 1"), other) == first)
    #expect(fleet.origin.requestCount == 1 && other.counts.sharedHits == 1)
    // It is stored there, too.
    #expect(try await other.cache.load(request(fleet, "needle 1")).source == .hit)
    let others = [
      request(fleet, "needle 2"), request(fleet, "needle "), request(fleet, ""),
      request(fleet, "needle 1", ["Content-Type": "text/html"]),
      request(fleet, "needle 1", ["Content-Language": "de"]), URLRequest(url: fleet.origin.url("/a")),
    ]
    for (index, request) in others.enumerated() {
      let text = try await send(request, one)
      #expect(fleet.origin.requestCount == index + 2)
      try await fleet.waitForObjects(index + 2)
      #expect(try await send(request, other) == text)
      #expect(fleet.origin.requestCount == index + 2)
    }
    #expect(fleet.origin.requests.first?.body == Data("needle 1".utf8))
    // Neither the content nor what the machines could be asked for is in Redis.
    #expect(try !fleet.redisContent().contains("needle"))
  }

  @Test("A stale shared query is validated with its content, once for all machines")
  func validation() async throws {
    let fleet = try FleetFixture(handler: { request in
      request["If-None-Match"] == "\"1\""
        ? Reply(304, [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")])
        : Reply(200, [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")], "body")
    })
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    #expect(try await send(request(fleet, "x"), one) == "body")
    try await fleet.waitForObjects(1)
    try fleet.ageObjects(by: 700)
    #expect(try await send(request(fleet, "x"), other) == "body")
    let sent = try #require(fleet.origin.requests.last)
    #expect(fleet.origin.requestCount == 2)
    #expect(sent.method == "QUERY" && sent.body == Data("x".utf8) && sent["If-None-Match"] == "\"1\"")
  }

  @Test("Contents with one normal form are shared, but not with a machine that compares each byte")
  func normalForm() async throws {
    let fleet = try FleetFixture()
    let overrides: @Sendable (URLRequest) -> RequestOverrides = { _ in RequestOverrides(queryNormalForm: .json) }
    let one = try await fleet.machine("1") { $0.overrides = overrides }
    let other = try await fleet.machine("2") { $0.overrides = overrides }
    let exact = try await fleet.machine("3")
    func json(_ content: String) -> URLRequest { request(fleet, content, ["Content-Type": "application/json"]) }
    let first = try await send(json(#"{"b": 1, "a": 2}"#), one)
    try await fleet.waitForObjects(1)
    #expect(try await send(json(#"{"a":2,"b":1}"#), other) == first)
    #expect(fleet.origin.requestCount == 1)
    #expect(try await send(json(#"{"a":2,"b":1}"#), exact) != first)
  }

  @Test("Variants of a query are shared")
  func variants() async throws {
    let fleet = try FleetFixture(handler: { request in
      Reply(
        200, [("Cache-Control", "max-age=600"), ("Vary", "X-Kind")],
        "\(request["X-Kind"] ?? "") \(String(decoding: request.body, as: UTF8.self)) \(request.number)")
    })
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    #expect(try await send(request(fleet, "x", ["X-Kind": "a"]), one) == "a x 0")
    try await fleet.waitForObjects(2)
    #expect(try await send(request(fleet, "x", ["X-Kind": "b"]), one) == "b x 1")
    try await fleet.waitForObjects(3)
    #expect(try await send(request(fleet, "x", ["X-Kind": "a"]), other) == "a x 0")
    #expect(try await send(request(fleet, "x", ["X-Kind": "b"]), other) == "b x 1")
    #expect(try await send(request(fleet, "y", ["X-Kind": "a"]), other) == "a y 2")
  }

  @Test("A purge of the URL, its prefix, its host or its group reaches all queries on all machines", arguments: 0..<6)
  func purge(_ kind: Int) async throws {
    let fleet = try FleetFixture()
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let requests = ["x", "y"].map { request(fleet, $0) }
    var before: [String] = []
    for request in requests { before.append(try await send(request, one)) }
    try await fleet.waitForObjects(2)
    #expect(try await send(requests[0], other) == before[0])
    try await one.cache.purge(PurgeTests.scopes[kind](fleet.origin.url("/a")))
    for machine in [one, other] {
      for (request, before) in zip(requests, before) { #expect(try await send(request, machine) != before) }
    }
    #expect(fleet.origin.requestCount == 4)
  }

  @Test("An unsafe request to the URL invalidates its queries on all machines, and one to another URL does not")
  func unsafeRequest() async throws {
    let fleet = try FleetFixture()
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let query = request(fleet, "x")
    let before = try await send(query, one)
    try await fleet.waitForObjects(1)
    #expect(try await send(query, other) == before)
    var change = URLRequest(url: fleet.origin.url("/b"))
    change.httpMethod = "DELETE"
    _ = try await other.cache.data(for: change)
    #expect(try await one.cache.load(query).source == .hit)
    change.url = fleet.origin.url("/a")
    _ = try await other.cache.data(for: change)
    try await waitForRemoval(of: query, on: one)
    let after = try await send(query, one)
    #expect(after != before)
    try await fleet.waitForObjects(1)
    #expect(try await send(query, other) == after)
  }

  @Test("urlcache purge with --fleet and a filter reaches the queries that match on all machines")
  func filteredPurge() async throws {
    let fleet = try FleetFixture()
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let query = request(fleet, "x")
    let before = try await send(query, one)
    try await fleet.waitForObjects(1)
    #expect(try await send(query, other) == before)
    #expect(one.cache.flush())
    let result = try FleetTool.run([
      "purge", fleet.directory.appendingPathComponent("1").path, "--fleet", fleet.redis.url, "--path", "/a",
    ])
    #expect(result.status == 0 && result.errors == "")
    for machine in [one, other] { #expect(try await send(query, machine) != before) }
  }

  @Test("Queries with credentials, or of partitions that are not shared, are not in Redis")
  func unshared() async throws {
    let fleet = try FleetFixture { $0.objectConnectionCount = 1 }
    let one = try Machine(fleet.directory.appendingPathComponent("1"), fleet.tier()) {
      $0.partition = { $0.value(forHTTPHeaderField: "X-Tenant") ?? "" }
    }
    await wait { one.hasLease }
    for fields in [["Authorization": "Basic eA=="], ["X-Tenant": "t"], ["Cache-Control": "no-store"]] {
      _ = try await send(request(fleet, "x", fields), one)
    }
    // A shared response of later is in Redis, so one of these requests would be there, too.
    _ = try await send(request(fleet, "y"), one)
    try await fleet.waitForObjects(1)
  }
}
