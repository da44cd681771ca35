import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Testing

/// A response for one user never reaches another, regardless of how the credentials are sent.
@Suite("Separation of users", .timeLimit(.minutes(1)))
struct UserSeparationTests {
  private static let users = ["http://alice:pw@example.com/a", "http://bob:pw@example.com/a", "http://example.com/a"]

  /// Returns each request's URL, including its credentials, as the body.
  private func echo(_ fixture: Fixture, _ cacheControl: String, behind gate: Gate? = nil) -> ScriptedTransport {
    ScriptedTransport { request, _ in
      try await gate?.pass()
      return fixture.ok(request.head.url.absoluteString, ("Cache-Control", cacheControl))
    }
  }

  @Test("Requests with different users in their URLs do not share a fetch")
  func fetches() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = echo(fixture, "private, max-age=60", behind: gate)
    try await withThrowingTaskGroup { group in
      for url in Self.users {
        group.addTask {
          let text = try await fixture.client.respond(to: get(url), over: transport).text()
          #expect(text == url)
        }
      }
      await until { transport.count + fixture.client.statistics.waiting == 3 }
      gate.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 3)
  }

  @Test("A response stored for the user of a URL is a hit only for that user")
  func stored() async throws {
    let fixture = Fixture()
    try await withDiskCache(clock: fixture.clock) { cache in
      let client = CachingClient(cache)
      let transport = echo(fixture, "max-age=60")
      for round in 0..<2 {
        for url in Self.users {
          #expect(try await client.respond(to: get(url), over: transport).text() == url, "round \(round)")
        }
        #expect(cache.flush())
      }
      #expect(transport.count == 3)
      #expect(client.storedResponse(to: get("http://eve:pw@example.com/a")) == nil)
      // All are variants of one URI, so that one change invalidates all of them (RFC 9111, 4.4).
      let posting = ScriptedTransport { _, _ in fixture.response(200) }
      _ = try await client.respond(to: get(Self.users[0], method: "POST"), over: posting)
      for url in Self.users { #expect(client.storedResponse(to: get(url)) == nil) }
    }
  }

  @Test("A shared cache stores a response to credentials in the URL only if the response permits it")
  func sharedMode() async throws {
    var options = CachingOptions()
    options.mode = .shared
    let fixture = Fixture(options: options)
    let transport = echo(fixture, "max-age=60")
    _ = try await fixture.client.respond(to: get(Self.users[0]), over: transport)
    #expect(fixture.storage.entryCount == 0)
    #expect(fixture.client.statistics.storageRefusals["authorization"] == 1)
    _ = try await fixture.client.respond(to: get(Self.users[0]), over: echo(fixture, "public, max-age=60"))
    #expect(fixture.storage.entryCount == 1)
  }

  /// Loads a URL through another cache of the directory, with other options.
  private func text(
    _ url: String, _ options: CachingOptions, in cache: ResponseCache, _ transport: ScriptedTransport
  ) async throws -> String {
    var changed = cache.tiers.options
    changed.caching = options
    let other = try ResponseCache(
      directory: cache.tiers.connection.directory, memoryCapacity: 0, diskCapacity: cache.diskCapacity,
      options: changed)
    other.minimumDiskLifetime = 0
    return try await CachingClient(other).respond(to: get(url), over: transport).text()
  }

  @Test("After the options change, a response stored for all credentials does not match another user")
  func changedOptions() async throws {
    let fixture = Fixture()
    let transport = echo(fixture, "public, max-age=60")
    var options = CachingOptions()
    options.mode = .shared
    try await withDiskCache(clock: fixture.clock, caching: options) { cache in
      for user in Self.users[..<2] {
        let text = try await text(user, options, in: cache, transport)
        #expect(text == Self.users[0])
      }
      var others = options
      others.reusesAuthorizedResponses = false
      for (url, options) in [(Self.users[1], others), (Self.users[2], CachingOptions())] {
        #expect(try await text(url, options, in: cache, transport) == url)
      }
      #expect(transport.count == 3)
    }
  }

  @Test("A request whose Host field differs from its URL's host bypasses the cache")
  func hostField() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { request, _ in fixture.ok(request.head.fields["Host"] ?? "none", fresh) }
    for host in ["a.example", "b.example", "example.com:81", "example.com/x", "a.example"] {
      let request = get("http://example.com/a", ["Host": host])
      #expect(fixture.client.storedResponse(to: request) == nil)
      #expect(try await fixture.client.respond(to: request, over: transport).text() == host)
    }
    #expect(fixture.storage.entryCount == 0)
    #expect(transport.count == 5)
    for host in ["Example.com", "example.com:80"] {
      _ = try await fixture.client.respond(to: get("http://example.com/a", ["Host": host]), over: transport)
    }
    #expect(transport.count == 6)
    // A response for another host is not found by a request without the field, and the reverse.
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "Example.com")
    let other = get("http://example.com/a", ["Host": "b.example"])
    #expect(try await fixture.client.respond(to: other, over: transport).text() == "b.example")
  }

  // Guarantee: a request with a different Host field neither joins a fetch nor leads one.
  @Test("A request whose Host field differs from its URL's host does not share a fetch")
  func hostFieldInFlight() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, _ in
      try await gate.pass()
      return fixture.ok(request.head.fields["Host"] ?? "none", fresh)
    }
    try await withThrowingTaskGroup { group in
      for host in ["a.example", "b.example", nil] {
        group.addTask {
          let request = get("http://example.com/a", host.map { ["Host": $0] } ?? [:])
          let text = try await fixture.client.respond(to: request, over: transport).text()
          #expect(text == host ?? "none")
        }
      }
      await until { transport.count + fixture.client.statistics.waiting == 3 }
      gate.open()
      try await group.waitForAll()
    }
    #expect(transport.count == 3)
  }

  @Test("After a 304 adds a field to Vary, only requests with the same value of that field match")
  func varyAddedBy304() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { request, _ in
      request.head.fields.contains("If-None-Match")
        ? fixture.response(304, "", [fresh, ("ETag", "\"1\""), ("Vary", "Cookie")])
        : fixture.ok(request.head.fields["Cookie"] ?? "none", fresh, ("ETag", "\"1\""))
    }
    let (alice, bob) = (
      get("http://example.com/a", ["Cookie": "alice"]), get("http://example.com/a", ["Cookie": "bob"])
    )
    _ = try await fixture.client.respond(to: alice, over: transport)
    fixture.clock.advance(by: 100)
    #expect(try await fixture.client.respond(to: alice, over: transport).text() == "alice")
    #expect(fixture.client.storedResponse(to: bob) == nil)
    #expect(try await fixture.client.respond(to: bob, over: transport).text() == "bob")
  }

  @Test("A 304 that forbids storing serves only the request that fetched it")
  func storingForbiddenBy304() async throws {
    var options = CachingOptions()
    options.mode = .shared
    let fixture = Fixture(options: options)
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      guard number > 1 else { return fixture.ok("body", fresh, ("ETag", "\"1\"")) }
      try await gate.pass()
      return fixture.response(304, "", [("Cache-Control", "private, max-age=60"), ("ETag", "\"1\"")])
    }
    _ = try await fixture.client.respond(to: get(), over: transport)
    fixture.clock.advance(by: 100)
    async let leader = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 2 }
    async let follower = fixture.client.respond(to: get(), over: transport)
    await until { fixture.client.statistics.waiting == 1 }
    gate.open()
    #expect(try await leader.source == .revalidated)
    #expect(try await follower.source != .coalesced)
    #expect(fixture.client.storedResponse(to: get()) == nil)
  }

  // Guarantee: an invalidated group revokes the store permits of its origin's fetches in every partition.
  @Test("Invalidating a group revokes the store permits of fetches in every partition")
  func groupsInAllPartitions() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let getting = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("old", fresh, ("Cache-Groups", "\"news\""))
    }
    let early = Task { try await fixture.client.respond(to: get(partition: "ann"), over: getting).text() }
    await until { getting.count == 1 }
    let posting = ScriptedTransport { _, _ in
      fixture.response(200, "", [("Cache-Group-Invalidation", "\"news\"")])
    }
    _ = try await fixture.client.respond(
      to: get("http://example.com/b", method: "POST", partition: "bob"), over: posting)
    gate.open()
    #expect(try await early.value == "old")
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("A change of a URI revokes the store permits of the fetches of all its users")
  func changeRevokesPermitsOfAllUsers() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let getting = echo(fixture, "max-age=60", behind: gate)
    try await withThrowingTaskGroup { group in
      for url in Self.users { group.addTask { _ = try await fixture.client.respond(to: get(url), over: getting) } }
      await until { getting.count + fixture.client.statistics.waiting == 3 }
      let posting = ScriptedTransport { _, _ in fixture.response(200) }
      _ = try await fixture.client.respond(to: get("http://carol:pw@example.com/a", method: "POST"), over: posting)
      gate.open()
      try await group.waitForAll()
    }
    #expect(fixture.storage.entryCount == 0)
  }
}
