import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Which responses are stored, for which requests, and how callers and options influence it.
@Suite("Storing", .timeLimit(.minutes(1)))
struct StoringTests {
  @Test("A response for which the hook returns nil is delivered and not stored")
  func refuse() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh) }
    let response = try await fixture.client.respond(to: get(willStore: { _ in nil }), over: transport)
    #expect(try await response.text() == "body")
    #expect(fixture.storage.entryCount == 0)
    #expect(fixture.client.statistics.storageRefusals["refused-by-caller"] == 1)
  }

  @Test(
    "The hook gets the complete body, and the response that it returns is stored", arguments: [true, false])
  func change(isInMemory: Bool) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", fresh).head,
        body: isInMemory ? ResponseBodyStream(Data("body".utf8)) : .chunks(["bo", "dy"]))
    }
    let request = get(willStore: { proposal in
      #expect(proposal.body == Data("body".utf8))
      var changed = proposal
      changed.body = Data("changed".utf8)
      changed.userInfo = Data("info".utf8)
      changed.isMemoryOnly = true
      return changed
    })
    #expect(try await fixture.client.respond(to: request, over: transport).text() == "body")
    let hit = try #require(fixture.client.storedResponse(to: get()))
    #expect(try await hit.text() == "changed")
    #expect(hit.entry?.proposal.userInfo == Data("info".utf8))
    #expect(hit.entry?.proposal.isMemoryOnly == true)
  }

  @Test(
    "Cache-Status does not report a response as stored if a change invalidated it in flight", arguments: [true, false])
  func reportedAsStored(hasHook: Bool) async throws {
    var options = CachingOptions()
    options.cacheStatusName = "here"
    let fixture = Fixture(options: options)
    let gate = Gate()
    let getting = ScriptedTransport { _, _ in
      try await gate.pass()
      return fixture.ok("old", fresh)
    }
    let early = Task {
      let request = hasHook ? get(willStore: { $0 }) : get()
      return try await fixture.client.respond(to: request, over: getting).head.fields["Cache-Status"]
    }
    await until { getting.count == 1 }
    let posting = ScriptedTransport { _, _ in fixture.response(200) }
    _ = try await fixture.client.respond(to: get(method: "POST"), over: posting)
    gate.open()
    #expect(try await early.value == "here; fwd=uri-miss")
    #expect(fixture.storage.entryCount == 0)
  }

  @Test(
    "A forced lifetime overrides the server's fields",
    arguments: [
      ("no-store", [("Cache-Control", "no-store")], true), ("expired", [("Expires", "0")], true),
      ("old", [("Age", "100000"), ("Cache-Control", "max-age=1")], true), ("nothing", [], true),
      ("pragma", [("Pragma", "no-cache")], true), ("vary-star", [("Vary", "*")], false),
    ])
  func lifetime(id: String, fields: [(String, String)], isStored: Bool) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.response(200, "body", fields) }
    let request = get(overrides: RequestOverrides(lifetime: 300))
    let response = try await fixture.client.respond(to: request, over: transport)
    // The response from the network is unchanged.
    for (name, value) in fields { #expect(response.head.fields[name] == value) }
    fixture.clock.advance(by: 299)
    #expect((fixture.client.storedResponse(to: request) != nil) == isStored)
    fixture.clock.advance(by: 2)
    #expect(fixture.client.storedResponse(to: request) == nil)
  }

  @Test(
    "A forced lifetime applies neither to errors nor to a request's no-store",
    arguments: [
      ("error", 500, HeaderFields()), ("forbidden", 403, HeaderFields()),
      ("no-store", 200, HeaderFields([("Cache-Control", "no-store")])),
    ])
  func lifetimeOfErrors(id: String, status: Int, fields: HeaderFields) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.response(status, "body") }
    let request = get("http://example.com/a", fields, overrides: RequestOverrides(lifetime: 300))
    _ = try await fixture.client.respond(to: request, over: transport)
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("Ignored fields have no effect and are not stored")
  func ignoredFields() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh, ("Vary", "*"), ("Set-Cookie", "a=b")) }
    let overrides = RequestOverrides(ignoredResponseFields: ["vary", "SET-COOKIE"])
    let response = try await fixture.client.respond(to: get(overrides: overrides), over: transport)
    #expect(response.head.fields["Set-Cookie"] == "a=b")
    let hit = try #require(fixture.client.storedResponse(to: get("http://example.com/a", ["Accept": "x/y"])))
    #expect(!hit.head.fields.contains("Set-Cookie"))
  }

  @Test(
    "Ignored query parameters are sent and are not part of the cache key",
    arguments: [
      ("middle", "http://example.com/a?x=1&token=T&y=2", "http://example.com/a?x=1&y=2"),
      ("only", "http://example.com/a?token=T", "http://example.com/a"),
      ("no-value", "http://example.com/a?token&x=1", "http://example.com/a?x=1"),
      ("twice", "http://example.com/a?token=1&token=2&x=1", "http://example.com/a?x=1"),
      ("prefix", "http://example.com/a?tokens=1", "http://example.com/a?tokens=1"),
      ("fragment", "http://example.com/a?token=T#token=T", "http://example.com/a"),
      ("none", "http://example.com/a", "http://example.com/a"),
    ])
  func ignoredParameters(id: String, url: String, key: String) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh) }
    let request = get(url, overrides: RequestOverrides(ignoredQueryParameters: ["token"]))
    #expect(request.keyURL.absoluteString == key)
    _ = try await fixture.client.respond(to: request, over: transport)
    #expect(transport.requests[0].head.url.absoluteString == url)
    #expect(fixture.client.storedResponse(to: get(key)) != nil)
  }

  @Test("Responses are never stored, shared or invalidated across partitions")
  func partition() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      try await gate.pass()
      return fixture.ok("\(number)", fresh)
    }
    async let first = fixture.client.respond(to: get(partition: "ann"), over: transport)
    async let second = fixture.client.respond(to: get(partition: "bob"), over: transport)
    await until { transport.count == 2 }
    gate.open()
    let (ann, bob) = try await (first.text(), second.text())
    #expect(Set([ann, bob]) == ["1", "2"])
    #expect(try await fixture.client.storedResponse(to: get(partition: "ann"))?.text() == ann)
    #expect(fixture.client.storedResponse(to: get()) == nil)
    let posting = ScriptedTransport { _, _ in fixture.response(200) }
    _ = try await fixture.client.respond(to: get(method: "POST", partition: "ann"), over: posting)
    #expect(fixture.client.storedResponse(to: get(partition: "ann")) == nil)
    #expect(try await fixture.client.storedResponse(to: get(partition: "bob"))?.text() == bob)
  }

  @Test(
    "A stored response serves other users only in a shared cache whose options permit it",
    arguments: [CachingOptions.Mode.private, .shared], [true, false])
  func authorization(mode: CachingOptions.Mode, isReused: Bool) async throws {
    var options = CachingOptions()
    options.mode = mode
    options.reusesAuthorizedResponses = isReused
    let isForAll = mode == .shared && isReused
    let fixture = Fixture(options: options)
    let transport = ScriptedTransport { request, _ in
      fixture.ok(request.head.fields["Authorization"] ?? "none", ("Cache-Control", "public, max-age=60"))
    }
    for user in ["ann", "bob", nil, "ann", "bob", nil] {
      let fields: HeaderFields = user.map { ["Authorization": $0] } ?? [:]
      let response = try await fixture.client.respond(to: get("http://example.com/a", fields), over: transport)
      #expect(try await response.text() == (isForAll ? "ann" : user ?? "none"))
    }
    #expect(transport.count == (isForAll ? 1 : 3))
  }

  @Test(
    "In a shared cache Set-Cookie reaches only the request that fetched it",
    arguments: [(CachingOptions.Mode.shared, false), (.private, true)])
  func setCookie(mode: CachingOptions.Mode, isKept: Bool) async throws {
    var options = CachingOptions()
    options.mode = mode
    let fixture = Fixture(options: options)
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      try await gate.pass()
      let fields = [fresh, ("ETag", "\"1\""), ("Set-Cookie", "user=\(number)")]
      return number == 1 ? fixture.response(200, "body", fields) : fixture.response(304, "", fields)
    }
    for number in 1...2 {
      async let asking = fixture.client.respond(to: get(), over: transport)
      await until { transport.count == number }
      async let waiting = fixture.client.respond(to: get(), over: transport)
      await until { fixture.client.statistics.waiting == 1 || number == 2 }
      gate.open()
      #expect(try await asking.head.fields["Set-Cookie"] == "user=\(number)")
      if number == 1 {
        #expect(try await waiting.head.fields.contains("Set-Cookie") == isKept)
      } else {
        _ = try await waiting
      }
      #expect(fixture.client.storedResponse(to: get())?.head.fields.contains("Set-Cookie") == isKept)
      fixture.clock.advance(by: 100)
    }
  }

  @Test("A GET with content is neither served from the storage nor stored")
  func content() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { request, number in fixture.ok("\(number)", fresh) }
    var request = get()
    request.body = .bytes(Data("query".utf8))
    for number in 1...2 {
      #expect(fixture.client.storedResponse(to: request) == nil)
      #expect(try await fixture.client.respond(to: request, over: transport).text() == "\(number)")
    }
    #expect(fixture.storage.entryCount == 0)
  }

  @Test(
    "A request whose URL has no cache key is forwarded and not cached",
    arguments: ["ftp://example.com/a", "data:,x", "http:///a"])
  func badURL(url: String) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok("body", fresh) }
    #expect(try await fixture.client.respond(to: get(url), over: transport).text() == "body")
    #expect(fixture.storage.entryCount == 0)
  }
}
