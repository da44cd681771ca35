import CacheModel
import CurlTransport
import Foundation
import FoundationNetworking
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

@testable import FleetSharing
@testable import LMDBURLCache
@testable import RedisTier

@Suite("Shared responses of a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct SharedResponseTests {
  @Test("A response that one machine has fetched is found by the others, with its age and validators")
  func sharedHit() async throws {
    let shared = try await SharedPage()
    let (data, response) = try await shared.other.cache.data(from: shared.url)
    #expect(String(decoding: data, as: UTF8.self) == shared.body)
    let http = try #require(response as? HTTPURLResponse)
    #expect(http.value(forHTTPHeaderField: "ETag") == "\"\(shared.body)\"")
    #expect(http.value(forHTTPHeaderField: "Age") != nil)
    #expect(shared.fleet.origin.requestCount == 1)
    #expect(shared.other.counts.sharedHits == 1)
    #expect(response.cacheProvenance?.tier == .fleet && response.cacheProvenance?.storage == .stored)
    // It is stored there, too.
    #expect(shared.other.cache.isCached(shared.url))
  }

  @Test("Tasks of sessions find shared responses, with a completion handler, too, and share theirs")
  func sessions() async throws {
    let fleet = try FleetFixture()
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let sessions = [one, other].map { URLSession(configuration: .ephemeral.caching(with: $0.cache)) }
    defer { for session in sessions { session.invalidateAndCancel() } }
    let before = try await sessions[0].data(from: url).0
    try await fleet.waitForObjects(1)
    let (data, response) = try await withCheckedThrowingContinuation {
      (continuation: CheckedContinuation<(Data, URLResponse), any Error>) in
      sessions[1].dataTask(with: url) { data, response, error in
        if let data, let response {
          continuation.resume(returning: (data, response))
        } else {
          continuation.resume(throwing: error ?? URLError(.unknown))
        }
      }.resume()
    }
    #expect(data == before)
    #expect((response as? HTTPURLResponse)?.value(forHTTPHeaderField: "Age") != nil)
    #expect(fleet.origin.requestCount == 1)
    try await one.cache.purge(.url(url))
    #expect(try await sessions[1].data(from: url).0 != before)
    #expect(fleet.origin.requestCount == 2)
  }

  @Test("A machine gets encoded content in the form that its own transport delivers")
  func forms() async throws {
    let gzipped = try #require(Data(base64Encoded: "H4sIAAAAAAACA8tIzcnJBwCGphA2BQAAAA=="))
    let fleet = try FleetFixture(handler: { _ in
      Reply(200, [("Cache-Control", "public, max-age=600"), ("Content-Encoding", "gzip")], body: gzipped)
    })
    let url = fleet.origin.url("/a")
    var settings = CurlTransport.Configuration()
    settings.decodesContent = false
    let decoding = try await fleet.machine("1")
    let other = try await fleet.machine("2") { [settings] in $0.transport = .curl(settings) }
    #expect(try await decoding.cache.data(from: url).0 == Data("hello".utf8))
    try await fleet.waitForObjects(1)
    for _ in 0..<2 {
      #expect(try await other.cache.data(from: url).0 == gzipped)
      #expect(try await decoding.cache.data(from: url).0 == Data("hello".utf8))
    }
    #expect(fleet.origin.requestCount == 2)
  }

  /// Two machines, of which the first has fetched a page and shared it.
  private struct SharedPage {
    let fleet: FleetFixture
    let url: URL
    let one, other: Machine
    let body: String

    init(_ configure: (inout RedisTier.Configuration) -> Void = { _ in }) async throws {
      fleet = try FleetFixture(configure)
      url = fleet.origin.url("/dir/a")
      (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
      body = try await one.get(url)
      try await fleet.waitForObjects(1)
    }
  }

  @Test("A shared response that a purge covers is not used", arguments: PurgeTests.scopes.indices)
  func purged(_ kind: Int) async throws {
    let shared = try await SharedPage()
    try await shared.one.cache.purge(PurgeTests.scopes[kind](shared.url))
    #expect(try await shared.other.get(shared.url) != shared.body)
    #expect(shared.fleet.origin.requestCount == 2)
  }

  @Test("A purge keeps shared responses that it does not cover")
  func uncovered() async throws {
    let shared = try await SharedPage()
    for scope: PurgeScope in [
      .prefix(shared.fleet.origin.url("/other/")), .group("x", origin: shared.url), .tag("x"),
    ] {
      try await shared.one.cache.purge(scope)
    }
    #expect(try await shared.other.get(shared.url) == shared.body)
    #expect(shared.fleet.origin.requestCount == 1)
  }

  /// A response or request that must not be shared.
  static let unsharedCases: [(String, [(String, String)], [String: String])] = [
    ("private", [("Cache-Control", "private, max-age=600")], [:]),
    ("no-store", [("Cache-Control", "no-store")], [:]),
    ("private field", [("Cache-Control", "max-age=600, private=\"X\""), ("X", "1")], [:]),
    ("no lifetime", [("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")], [:]),
    ("cookie of the response", [("Cache-Control", "max-age=600"), ("Set-Cookie", "a=b")], [:]),
    ("every field", [("Cache-Control", "max-age=600"), ("Vary", "*")], [:]),
    ("cookie of the request", [("Cache-Control", "max-age=600")], ["Cookie": "a=b"]),
    ("credentials", [("Cache-Control", "public, max-age=600")], ["Authorization": "Basic eA=="]),
    ("part", [("Cache-Control", "max-age=600")], ["Range": "bytes=0-1"]),
    ("request says no-store", [("Cache-Control", "max-age=600")], ["Cache-Control": "no-store"]),
    ("partition", [("Cache-Control", "max-age=600")], ["X-Tenant": "t"]),
  ]

  @Test("Nothing of a response that must not be shared is in Redis", arguments: 0..<11)
  func unshared(_ index: Int) async throws {
    let (_, fields, requestFields) = Self.unsharedCases[index]
    let fleet = try FleetFixture {
      $0.objectConnectionCount = 1
    } handler: { request in
      request.path.hasSuffix("public")
        ? Reply(200, [("Cache-Control", "max-age=600")], "x") : Reply(200, fields, "needle")
    }
    let one = try Machine(fleet.directory.appendingPathComponent("1"), fleet.tier()) {
      $0.partition = { $0.value(forHTTPHeaderField: "X-Tenant") ?? "" }
    }
    await wait { one.hasLease }
    var request = URLRequest(url: fleet.origin.url("/needle"))
    for (name, value) in requestFields { request.setValue(value, forHTTPHeaderField: name) }
    _ = try await one.cache.data(for: request)
    // A shared response of later is in Redis, so one of this request would be there, too.
    _ = try await one.get(fleet.origin.url("/public"))
    try await fleet.waitForObjects(1)
    #expect(try !fleet.redisContent().contains("needle"))
    #expect(fleet.origin.requestCount == 2)
  }

  @Test("Variants are shared by the values of the fields that Vary names, which are not in Redis")
  func variants() async throws {
    let fleet = try FleetFixture { _ in
    } handler: { request in
      Reply(
        200, [("Cache-Control", "max-age=600"), ("Vary", "X-Kind")], "\(request["X-Kind"] ?? "") \(request.number)")
    }
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    func get(_ machine: Machine, _ kind: String) async throws -> String {
      var request = URLRequest(url: fleet.origin.url("/a"))
      request.setValue(kind, forHTTPHeaderField: "X-Kind")
      return String(decoding: try await machine.cache.data(for: request).0, as: UTF8.self)
    }
    #expect(try await get(one, "needle") == "needle 0")
    try await fleet.waitForObjects(2)
    #expect(try await get(one, "other") == "other 1")
    try await fleet.waitForObjects(3)
    #expect(try await get(other, "needle") == "needle 0")
    #expect(try await get(other, "other") == "other 1")
    #expect(fleet.origin.requestCount == 2)
    // The bodies have the values here; the keys and heads must not.
    for key in try fleet.objectKeys() {
      let fields = try fleet.redis.command("HMGET", key, "k", "m", "h").asElements()
      for field in fields {
        #expect(try !String(decoding: field.asBytes(), as: UTF8.self).contains("needle"))
      }
    }
  }

  @Test("A stale copy is validated by a fresh shared response, without the origin")
  func validation() async throws {
    let fleet = try FleetFixture()
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    let offset = Mutex(0.0)
    let other = try Machine(fleet.directory.appendingPathComponent("2"), fleet.tier()) {
      $0.clock = { Date() + offset.withLock { $0 } }
    }
    await wait { other.hasLease }
    let body = try await one.get(url)
    try await fleet.waitForObjects(1)
    #expect(try await other.get(url) == body)
    // Its copy is stale by its own clock alone.
    offset.withLock { $0 = 1000 }
    #expect(try await other.get(url) == body)
    #expect(fleet.origin.requestCount == 1)
    #expect(other.counts.sharedHits == 2)
  }

  @Test("A large body that arrives in pieces is shared, and one beyond the limit is not")
  func sizes() async throws {
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 600_000
    } handler: { request in
      Reply(200, [("Cache-Control", "max-age=600")], body: Data(repeating: 7, count: Int(request.path.dropFirst())!))
        .chunked()
    }
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    for (size, count) in [(600_000, 1), (600_001, 2), (0, 1)] {
      let before = fleet.origin.requestCount
      let url = fleet.origin.url("/\(size)")
      #expect(try await one.cache.data(from: url).0.count == size)
      if count == 1 { try await fleet.waitForObjects(before == 0 ? 1 : 2) }
      #expect(try await other.cache.data(from: url).0 == Data(repeating: 7, count: size))
      #expect(fleet.origin.requestCount == before + count)
    }
  }

  @Test("A fleet that shares no responses looks none up, and fetches on each machine")
  func sharingNothing() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    #expect(one.membership.sharedResponses == nil)
    #expect(try await one.get(url) != other.get(url))
    #expect(try fleet.objectKeys().isEmpty && one.counts.lookups == 0)
  }

  /// A change of a shared response, or of the log of purges, because of which machines do not use the response.
  enum Change: CaseIterable {
    case damagedKey, damagedPosition, damagedFreshness, damagedHead, damagedBody
    /// The number of a later purge than the one that covers it.
    case raisedNumber
    case otherType
    case otherEpoch

    /// The field of the object that has another value, and the value.
    var field: (name: String, value: String)? {
      switch self {
      case .damagedKey: ("k", "x")
      case .damagedPosition: ("e", "x")
      case .damagedFreshness: ("m", "x")
      case .damagedHead: ("h", "x")
      case .damagedBody: ("b", "x")
      case .raisedNumber: ("s", "1000")
      case .otherType, .otherEpoch: nil
      }
    }
  }

  @Test("A shared response that was changed, or of an earlier epoch, is a miss", arguments: Change.allCases)
  func changed(_ change: Change) async throws {
    let shared = try await SharedPage()
    let key = try #require(try shared.fleet.objectKeys().first)
    if change == .raisedNumber { try await shared.one.cache.purge(.url(shared.url)) }
    if let (name, value) = change.field {
      try shared.fleet.redis.command("HSET", key, name, value)
    } else if change == .otherType {
      try shared.fleet.redis.command("SET", key, "x")
    } else {
      let position = shared.other.membership.file.tag
      try shared.fleet.redis.command("DEL", "lmuc:{default}:ctl")
      await wait { shared.other.membership.file.tag >> 48 != position >> 48 }
    }
    #expect(try await shared.other.get(shared.url) != shared.body)
    #expect(shared.other.counts.refusedObjects == (change == .otherType ? 0 : 1))
  }

  @Test("Machines that miss a URL at once fetch it once")
  func oneFetch() async throws {
    let gate = Gate()
    let fleet = try FleetFixture { _ in
    } handler: { request in
      Reply(200, [("Cache-Control", "max-age=600")], "\(request.number)").held(at: gate)
    }
    let url = fleet.origin.url("/a")
    var machines: [Machine] = []
    for index in 0..<6 { machines.append(try await fleet.machine("\(index)")) }
    try await withThrowingTaskGroup(of: String.self) { group in
      for machine in machines { group.addTask { try await machine.get(url) } }
      await gate.waitForArrivals()
      // The others wait for the lock.
      await wait { machines.reduce(0) { $0 + $1.counts.fetchWaits } == 5 }
      gate.open()
      for try await body in group { #expect(body == "0") }
    }
    #expect(fleet.origin.requestCount == 1)
  }

  @Test("A lock whose holder has died delays others only until it ends")
  func deadHolder() async throws {
    let fleet = try FleetFixture { $0.fetchLockLease = .milliseconds(300) }
    let url = fleet.origin.url("/a")
    let (one, settings) = (try await fleet.machine("1"), try fleet.tier().settings)
    let key = try #require(RequestKey(url: url)).bytes
    let lock = String(decoding: settings.fleet.key("l:", settings.digest.digits(key)), as: UTF8.self)
    try fleet.redis.command("SET", lock, "token", "PX", "300")
    _ = try await one.get(url)
    #expect(fleet.origin.requestCount == 1)
    #expect(one.counts.fetchWaits == 1)
  }

  @Test("Requests for a response that cannot be shared do not wait for each other")
  func pass() async throws {
    let fleet = try FleetFixture { _ in
    } handler: { _ in
      Reply(200, [("Cache-Control", "no-store")], "x")
    }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    _ = try await one.get(url)
    try await wait { try fleet.redisContent().contains("pass") }
    _ = try await other.get(url)
    #expect(fleet.origin.requestCount == 2)
    #expect(other.counts.fetchWaits == 0)
  }

  @Test("After a body that breaks off, requests for the response still wait for each other")
  func brokenBody() async throws {
    let fleet = try FleetFixture { _ in
    } handler: { _ in
      Reply(200, [("Cache-Control", "max-age=600")], body: Data(count: 300_000)).chunked().cut(.inBody(after: 200_000))
    }
    let one = try await fleet.machine("1")
    await #expect(throws: (any Error).self) { try await one.get(fleet.origin.url("/a")) }
    // The lock is released, and nothing is in its place.
    try await fleet.waitForObjects(0)
    #expect(try !fleet.redisContent().contains("pass"))
  }

  @Test("A request does not wait for a connection that takes long")
  func slowConnection() async throws {
    let gate = DispatchSemaphore(value: 0)
    let isSlow = Mutex(false)
    let fleet = try FleetFixture(
      {
        $0.lookupTimeout = .milliseconds(20)
        $0.lease = .seconds(600)
        $0.objectConnectionCount = 1
        $0.password = {
          if isSlow.withLock({ $0 }) { gate.wait() }
          return "x"
        }
      }, redisOptions: ["--requirepass", "x"])
    let one = try Machine(fleet.directory.appendingPathComponent("1"), fleet.tier())
    await wait { one.hasLease }
    do {
      isSlow.withLock { $0 = true }
      defer {
        isSlow.withLock { $0 = false }
        gate.signal()
      }
      // The only thread waits for the password.
      #expect(try await one.get(fleet.origin.url("/a")) == "1")
    }
    #expect(one.counts.failedLookups == 1)
  }

  @Test("A request waits for Redis as long as its limit permits, and then uses the shared response")
  func slowLookup() async throws {
    let shared = try await SharedPage {
      $0.lookupTimeout = .seconds(600)
      $0.lease = .seconds(600)
    }
    shared.fleet.redis.suspend()
    defer { shared.fleet.redis.resume() }
    async let late = shared.other.get(shared.url)
    await wait { shared.other.counts.lookups == 1 }
    shared.fleet.redis.resume()
    #expect(try await late == shared.body)
    #expect(shared.fleet.origin.requestCount == 1)
  }

  @Test("Lookups that no connection has time for do not count as failures of Redis")
  func busyConnections() async throws {
    let fleet = try FleetFixture { $0.objectConnectionCount = 1 }
    let settings = try fleet.tier().settings
    let workers = SharingWorkers(settings.fleet, settings.configuration)
    defer { workers.close() }
    let hasBegun = Atomic(false)
    let gate = DispatchSemaphore(value: 0)
    async let first = workers.run(within: .seconds(60)) { (_, _) throws(RedisTierError) in
      hasBegun.store(true, ordering: .sequentiallyConsistent)
      gate.wait()
      return 1
    }
    await wait { hasBegun.load(ordering: .sequentiallyConsistent) }
    for _ in 0..<3 {
      let late = await workers.run(within: .milliseconds(1), isStrict: true) { (_, _) throws(RedisTierError) in 2 }
      #expect(late == nil)
    }
    gate.signal()
    #expect(await first == 1)
    #expect(await workers.run(within: .seconds(60)) { (_, _) throws(RedisTierError) in 3 } == 3)
  }

  @Test("While Redis does not reply, requests go to the origin, and after three failures ask it no longer")
  func slowRedis() async throws {
    let fleet = try FleetFixture {
      $0.lookupTimeout = .milliseconds(20)
      $0.lease = .seconds(600)
    }
    let one = try await fleet.machine("1")
    fleet.redis.suspend()
    defer { fleet.redis.resume() }
    for index in 0..<10 { _ = try await one.get(fleet.origin.url("/\(index)")) }
    #expect(fleet.origin.requestCount == 10)
    #expect(one.hasLease)
    #expect(one.counts.failedLookups == 10)
  }
}
