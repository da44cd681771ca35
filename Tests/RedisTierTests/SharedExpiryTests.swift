import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import RedisTier
import ResponseStore
import Synchronization
import Testing

/// A response that expires, or whose fetch fails, on all machines at once.
@Suite("Expired shared responses, and fetches that fail", .needsRedis, .timeLimit(.minutes(1)))
struct SharedExpiryTests {
  /// The copies of a response when it expires.
  enum Copies: CaseIterable, Sendable {
    /// Each machine has an expired copy, and so has Redis.
    case everywhere
    /// Each machine has an expired copy, and Redis has none.
    case machinesOnly
    /// Only Redis has an expired copy.
    case redisOnly
  }

  /// A fleet of machines, the first of which has fetched `/a`, and an origin that then holds its replies.
  final class ExpiredFleet: Sendable {
    let fleet: FleetFixture
    let machines: [Machine]
    let gate: Gate
    let url: URL

    /// - Parameters:
    ///   - control: The value of `Cache-Control`.
    ///   - isChanged: Whether the origin has another edition when the first one has expired.
    init(
      _ copies: Copies, machineCount: Int = 3, control: String = "max-age=600", isChanged: Bool = false,
      validator: String = "ETag"
    ) async throws {
      let gate = Gate()
      let offset = Mutex(0.0)
      self.gate = gate
      fleet = try FleetFixture { _ in
      } handler: { request in
        let date = "Mon, 01 Jan 2024 00:00:00 GMT"
        var fields = [("Cache-Control", control), (validator, validator == "ETag" ? "\"0\"" : date)]
        guard request.number > 0 else { return Reply(200, fields + [("Cache-Groups", "\"g\"")], "0") }
        let isConditional = request["If-None-Match"] == "\"0\"" || request["If-Modified-Since"] == date
        if isConditional, !isChanged { return Reply(304, fields).held(at: gate) }
        fields[1].1 = validator == "ETag" ? "\"\(request.number)\"" : "Tue, 02 Jan 2024 00:00:00 GMT"
        return Reply(200, fields, "\(request.number)").held(at: gate)
      }
      url = fleet.origin.url("/a")
      var machines: [Machine] = []
      for index in 0..<machineCount {
        machines.append(
          try await fleet.machine("\(index)") { $0.clock = { Date() + offset.withLock { $0 } } })
      }
      self.machines = machines
      #expect(try await machines[0].get(url) == "0")
      try await fleet.waitForObjects(1)
      if copies != .redisOnly {
        for machine in machines { #expect(try await machine.get(url) == "0") }
      }
      offset.withLock { $0 = 700 }
      try fleet.ageObjects(by: 700)
      if copies == .machinesOnly { try fleet.redis.command("DEL", fleet.objectKeys()[0]) }
      #expect(fleet.origin.requestCount == 1)
    }

    var waitCount: Int { machines.reduce(0) { $0 + $1.counts.fetchWaits } }
  }

  @Test(
    "When a response expires, one machine validates it for all", arguments: Copies.allCases, ["ETag", "Last-Modified"])
  func validation(_ copies: Copies, _ validator: String) async throws {
    let expired = try await ExpiredFleet(copies, machineCount: 8, validator: validator)
    let (origin, machines, url) = (expired.fleet.origin, expired.machines, expired.url)
    let first = copies == .redisOnly ? 1 : 0
    try await withThrowingTaskGroup(of: String.self) { group in
      for machine in machines[first...] { group.addTask { try await machine.get(url) } }
      await expired.gate.waitForArrivals()
      // Without the lock all ask the origin.
      await wait { expired.waitCount == 7 - first || origin.requestCount > 2 }
      expired.gate.open()
      for try await body in group { #expect(body == "0") }
    }
    #expect(origin.requestCount == 2)
    // The response is fresh again on each machine.
    for machine in machines { #expect(try await machine.get(url) == "0") }
    #expect(origin.requestCount == 2)
  }

  @Test(
    "When a response has changed as it expires, one machine fetches the new one for all", arguments: Copies.allCases)
  func change(_ copies: Copies) async throws {
    let expired = try await ExpiredFleet(copies, machineCount: 8, isChanged: true)
    let (origin, machines, url) = (expired.fleet.origin, expired.machines, expired.url)
    try await withThrowingTaskGroup(of: String.self) { group in
      for machine in machines { group.addTask { try await machine.get(url) } }
      await expired.gate.waitForArrivals()
      await wait { expired.waitCount == 7 || origin.requestCount > 2 }
      expired.gate.open()
      for try await body in group { #expect(body == "1") }
    }
    #expect(origin.requestCount == 2)
  }

  @Test("A 304 about another edition does not make the shared copy fresh")
  func otherEdition() async throws {
    let fleet = try FleetFixture { _ in
    } handler: { request in
      // Some origins reply with 304 to any date that is not before that of their edition, such as one that came back.
      let isConditional = request["If-Modified-Since"] != nil
      let date = isConditional ? "Mon, 01 Jan 2024 00:00:00 GMT" : "Tue, 02 Jan 2024 00:00:00 GMT"
      return Reply(
        isConditional ? 304 : 200, [("Cache-Control", "max-age=600"), ("Last-Modified", date)],
        isConditional ? "" : "\(request.number)")
    }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    #expect(try await one.get(url) == "0")
    try await fleet.waitForObjects(1)
    try fleet.ageObjects(by: 700)
    #expect(try await other.get(url) == "2")
  }

  @Test("Within stale-while-revalidate, machines without a copy get the stale one while another machine validates it")
  func staleWhileRevalidate() async throws {
    let expired = try await ExpiredFleet(.redisOnly, control: "max-age=600, stale-while-revalidate=600")
    let (origin, url) = (expired.fleet.origin, expired.url)
    async let validated = expired.machines[1].get(url)
    await expired.gate.waitForArrivals()
    for machine in expired.machines[2...] {
      #expect(try await machine.get(url) == "0")
      #expect(machine.counts.fetchWaits == 0)
    }
    #expect(origin.requestCount == 2)
    expired.gate.open()
    #expect(try await validated == "0")
  }

  @Test(
    "Where the origin forbids stale responses, machines wait for the validation",
    arguments: ["must-revalidate", "proxy-revalidate", "s-maxage=600"])
  func staleForbidden(_ directive: String) async throws {
    let expired = try await ExpiredFleet(
      .redisOnly, control: "max-age=600, stale-while-revalidate=600, \(directive)")
    let (other, url) = (expired.machines[2], expired.url)
    async let validated = expired.machines[1].get(url)
    await expired.gate.waitForArrivals()
    async let waiting = other.get(url)
    await wait { other.counts.fetchWaits == 1 || other.counts.sharedHits == 1 }
    #expect(other.counts.sharedHits == 0)
    expired.gate.open()
    #expect(try await validated == "0")
    #expect(try await waiting == "0")
    #expect(expired.fleet.origin.requestCount == 2)
  }

  @Test("A shared 304 does not answer a request after a purge of a group")
  func purgedNotModified() async throws {
    let expired = try await ExpiredFleet(.machinesOnly)
    let (one, other) = (expired.machines[0], expired.machines[1])
    expired.gate.open()
    #expect(try await one.get(expired.url) == "0")
    try await expired.fleet.waitForObjects(1)
    // The 304 did not name the group.
    try await one.cache.purge(.group("g", origin: expired.url), mode: .soft)
    #expect(try await other.get(expired.url) == "0")
    #expect(expired.fleet.origin.requestCount == 3)
  }

  @Test("A shared 304 is a miss for a machine without the response")
  func notModifiedWithoutCopy() async throws {
    let expired = try await ExpiredFleet(.machinesOnly)
    let new = try await expired.fleet.machine("new")
    expired.gate.open()
    #expect(try await expired.machines[0].get(expired.url) == "0")
    try await expired.fleet.waitForObjects(1)
    #expect(try await new.get(expired.url) == "2")
    #expect(new.counts.refusedObjects == 0)
  }

  /// A fleet of an origin whose edition can be set, and whose responses and copies are then expired.
  ///
  /// The origin confirms its present edition, with the tag that `confirmedTag` returns.
  private static func editions(
    _ edition: Monitor<Int>, fields: [(String, String)] = [], confirmedTag: @escaping @Sendable (Int) -> String
  ) throws -> FleetFixture {
    try FleetFixture { _ in
    } handler: { request in
      let number = edition.withLock { $0 }
      let fields = fields + [("Cache-Control", "max-age=600")]
      if request["If-None-Match"] == "\"\(number)\"" { return Reply(304, fields + [("ETag", confirmedTag(number))]) }
      return Reply(200, fields + [("ETag", "\"\(number)\"")], "\(number) \(request.number)")
    }
  }

  @Test("A machine whose own copy differs from the shared one validates the shared one")
  func otherOwnCopy() async throws {
    let (edition, isLater) = (Monitor(0), SharedSwitch())
    let fleet = try Self.editions(edition) { "\"\($0)\"" }
    let url = fleet.origin.url("/a")
    let clock: @Sendable (inout LMDBURLCache.Options) -> Void = { $0.clock = { Date() + (isLater.isOn ? 700 : 0) } }
    let (one, other) = (try await fleet.machine("1", clock), try await fleet.machine("2", clock))
    #expect(try await one.get(url) == "0 0")
    try await fleet.waitForObjects(1)
    try fleet.redis.command("DEL", fleet.objectKeys()[0])
    edition.update { $0 = 1 }
    #expect(try await other.get(url) == "1 1")
    try await fleet.waitForObjects(1)
    isLater.set(true)
    try fleet.ageObjects(by: 700)
    #expect(try await one.get(url) == "1 1")
    #expect(fleet.origin.requests.last?["If-None-Match"] == "\"1\"")
    try await fleet.waitForObjects(1)
    #expect(try await other.get(url) == "1 1")
    #expect(fleet.origin.requestCount == 3)
  }

  @Test("A 304 with the tag of another representation does not freshen the shared copy")
  func otherTag() async throws {
    let fleet = try Self.editions(Monitor(0)) { _ in "\"other\"" }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    #expect(try await one.get(url) == "0 0")
    try await fleet.waitForObjects(1)
    try fleet.ageObjects(by: 700)
    #expect(try await other.get(url) == "0 2")
    #expect(fleet.origin.requests.last?["If-None-Match"] == nil)
  }

  @Test("The marker of a URL lives as long as a variant that the origin has validated")
  func marker() async throws {
    let fleet = try Self.editions(Monitor(0), fields: [("Vary", "X-Kind")]) { "\"\($0)\"" }
    let url = fleet.origin.url("/a")
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    #expect(try await one.get(url) == "0 0")
    try await fleet.waitForObjects(2)
    try fleet.ageObjects(by: 700)
    for key in try fleet.objectKeys() { try fleet.redis.command("PEXPIRE", key, "60000") }
    #expect(try await other.get(url) == "0 0")
    try await fleet.waitForObjects(2)
    for key in try fleet.objectKeys() { #expect(try fleet.redis.command("PTTL", key).asInteger() > 60_000) }
  }

  @Test("While fetches fail, machines do not wait for each other one after another", arguments: [true, false])
  func failingOrigin(_ isReplying: Bool) async throws {
    let gates = [Gate(), Gate(), Gate()]
    let fleet = try FleetFixture {
      $0.maximumFetchWait = .seconds(600)
    } handler: { request in
      let reply = isReplying ? Reply(503, [], "failed") : Reply(200, [], "x").cut(.beforeHead)
      return reply.held(at: gates[min(request.number, 2)])
    }
    let url = fleet.origin.url("/a")
    var machines: [Machine] = []
    for index in 0..<8 { machines.append(try await fleet.machine("\(index)")) }
    await withTaskGroup(of: String?.self) { group in
      for machine in machines { group.addTask { try? await machine.get(url) } }
      await gates[0].waitForArrivals()
      await wait { machines.reduce(0) { $0 + $1.counts.fetchWaits } == 7 }
      gates[0].open()
      // One takes over. When it fails, too, the others ask at the same time.
      await gates[1].waitForArrivals()
      // The other six know of its fetch when they have looked again.
      let lookups = machines.map { $0.counts.lookups }
      await wait { zip(machines, lookups).count { $0.counts.lookups >= $1 + 2 } == 6 }
      gates[1].open()
      await gates[2].waitForArrivals(count: 6)
      gates[2].open()
      for await body in group { #expect(body == (isReplying ? "failed" : nil)) }
    }
    #expect(fleet.origin.requestCount == 8)
  }

  @Test("A request waits for the fetch of another machine only within its own time limit")
  func timeLimit() async throws {
    let gate = Gate()
    let fleet = try FleetFixture {
      $0.maximumFetchWait = .seconds(600)
    } handler: { request in
      Reply(200, [("Cache-Control", "max-age=600")], "\(request.number)").held(at: gate)
    }
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    var made = URLRequest(url: fleet.origin.url("/a"))
    made.timeoutInterval = 1
    let request = made
    async let slow = one.get(fleet.origin.url("/a"))
    await gate.waitForArrivals()
    let error = await #expect(throws: URLError.self) { _ = try await other.cache.data(for: request) }
    #expect(error?.code == .timedOut)
    #expect(other.counts.fetchWaits == 1)
    #expect(fleet.origin.requestCount == 2)
    gate.open()
    #expect(try await slow == "0")
  }

  @Test("Machines that have waited for a slow origin for long enough ask it at the same time")
  func slowOrigin() async throws {
    let gate = Gate()
    let fleet = try FleetFixture {
      $0.maximumFetchWait = .milliseconds(50)
    } handler: { request in
      Reply(200, [("Cache-Control", "max-age=600")], "x").held(at: gate)
    }
    var machines: [Machine] = []
    for index in 0..<4 { machines.append(try await fleet.machine("\(index)")) }
    try await withThrowingTaskGroup(of: String.self) { group in
      for machine in machines { group.addTask { try await machine.get(fleet.origin.url("/a")) } }
      await gate.waitForArrivals(count: 4)
      gate.open()
      for try await body in group { #expect(body == "x") }
    }
    #expect(machines.reduce(0) { $0 + $1.counts.fetchWaits } == 3)
  }
}
