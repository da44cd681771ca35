import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// Stored parts that the origin completes (RFC 9111, 3.3 and 3.4).
@Suite("Completing a stored part", .timeLimit(.minutes(1)))
struct CompletionTests {
  private static let tag = ("ETag", "\"1\"")

  /// Stores the first or the last half of "0123456789".
  private func part(_ range: String = "0-4") async throws -> Fixture {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in
      fixture.response(
        206, range == "0-4" ? "01234" : "56789", [fresh, Self.tag, ("Content-Range", "bytes \(range)/10")])
    }
    _ = try await fixture.client.respond(to: get("http://example.com/a", ["Range": "bytes=\(range)"]), over: transport)
    return fixture
  }

  private func streaming() -> CachingClientRequest {
    var request = get()
    request.readsBodyInPieces = true
    return request
  }

  /// Returns a 206 with the last half.
  private func rest(
    _ fixture: Fixture, _ body: ResponseBodyStream, range: String = "bytes 5-9/10", tag: (String, String) = Self.tag,
    _ fields: [(String, String)] = []
  ) -> IncomingResponse {
    IncomingResponse(head: fixture.response(206, "", [fresh, tag, ("Content-Range", range)] + fields).head, body: body)
  }

  @Test("A request that reads in pieces gets the stored part while the rest arrives", arguments: [true, false])
  func streamed(hasFirstHalf: Bool) async throws {
    let fixture = try await part(hasFirstHalf ? "0-4" : "5-9")
    let (first, second) = (Gate(), Gate())
    let transport = ScriptedTransport { request, _ in
      #expect(request.head.fields["Range"] == (hasFirstHalf ? "bytes=5-" : "bytes=0-4"))
      let chunks = hasFirstHalf ? ["567", "89"] : ["012", "34"]
      return rest(
        fixture, .chunks(chunks, behind: [first, second]), range: hasFirstHalf ? "bytes 5-9/10" : "bytes 0-4/10")
    }
    let response = try await fixture.client.respond(to: streaming(), over: transport)
    #expect(response.status == 200)
    #expect(response.source == .miss)
    #expect(response.head.fields["Content-Length"] == "10")
    #expect(!response.head.fields.contains("Content-Range"))
    async let follower = fixture.client.respond(to: get(), over: transport)
    await until { fixture.client.statistics.waiting == 1 }
    var iterator = response.body.makeAsyncIterator()
    if !hasFirstHalf { first.open() }
    #expect(try await iterator.next() == Data((hasFirstHalf ? "01234" : "012").utf8))
    first.open()
    second.open()
    var received = Data()
    while let chunk = try await iterator.next() { received.append(chunk) }
    #expect(String(decoding: received, as: UTF8.self) == (hasFirstHalf ? "56789" : "3456789"))
    #expect(try await follower.text() == "0123456789")
    #expect(transport.count == 1)
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "0123456789")
    #expect(fixture.storage.entryCount == 1)
  }

  @Test(
    "A part that does not fit the stored one, or is cut, leads to one whole request",
    arguments: [
      ("cut", "bytes 5-9/10", "\"1\""), ("short", "bytes 5-9/10", "\"1\""), ("long", "bytes 5-9/10", "\"1\""),
      ("range", "bytes 6-9/10", "\"1\""), ("end", "bytes 5-8/10", "\"1\""), ("overlap", "bytes 4-8/10", "\"1\""),
      ("length", "bytes 5-9/11", "\"1\""), ("tag", "bytes 5-9/10", "\"2\""), ("weak", "bytes 5-9/10", "W/\"1\""),
      ("malformed", "bytes 5-9", "\"1\""),
    ], [true, false])
  func unusable(part answer: (id: String, range: String, tag: String), readsInPieces: Bool) async throws {
    // A reader in pieces has received bytes when a cut or a wrong size is noticed.
    if readsInPieces, ["cut", "short", "long"].contains(answer.id) { return }
    let fixture = try await part()
    let transport = ScriptedTransport { request, _ in
      guard request.head.fields.contains("Range") else { return fixture.ok("abcdefghij", fresh, ("ETag", "\"2\"")) }
      let bytes = ["cut": "567", "short": "567", "long": "56789x", "range": "6789"][answer.id] ?? "56789"
      return rest(
        fixture, .chunks([bytes], failing: answer.id == "cut" ? Unreachable() : nil), range: answer.range,
        tag: ("ETag", answer.tag))
    }
    let request = readsInPieces ? streaming() : get()
    #expect(try await fixture.client.respond(to: request, over: transport).text() == "abcdefghij")
    #expect(transport.count == 2)
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "abcdefghij")
  }

  @Test(
    "If the rest is cut, a reader in pieces gets an error; the next request is for what is then missing, or for the whole",
    arguments: [true, false], [true, false])
  func cutWhileStreaming(hasFirstHalf: Bool, isCut: Bool) async throws {
    let fixture = try await part(hasFirstHalf ? "0-4" : "5-9")
    let transport = ScriptedTransport { request, number in
      guard let range = request.head.fields["Range"] else { return fixture.ok("0123456789", fresh, Self.tag) }
      if range == "bytes=8-" { return rest(fixture, .chunks(["89"]), range: "bytes 8-9/10") }
      return rest(
        fixture, .chunks([hasFirstHalf ? "567" : "012"], failing: isCut ? Unreachable() : nil),
        range: hasFirstHalf ? "bytes 5-9/10" : "bytes 0-4/10")
    }
    let response = try await fixture.client.respond(to: streaming(), over: transport)
    var received = Data()
    await #expect(throws: (any Error).self) { for try await chunk in response.body { received.append(chunk) } }
    #expect(String(decoding: received, as: UTF8.self) == (hasFirstHalf ? "01234567" : "012"))
    #expect(try await fixture.client.respond(to: streaming(), over: transport).text() == "0123456789")
    let ranges = transport.requests.map { $0.head.fields["Range"] }
    #expect(ranges.dropFirst() == [hasFirstHalf && isCut ? "bytes=8-" : nil])
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "0123456789")
    #expect(fixture.storage.entryCount == 1)
  }

  @Test(
    "If no byte of the rest arrives, or too many, a reader in pieces gets the rest of the whole response",
    arguments: [("cut", []), ("short", []), ("long", ["56789x"])] as [(String, [String])], [true, false])
  func cutBeforeFirstByte(answer: (id: String, chunks: [String]), hasFirstHalf: Bool) async throws {
    let fixture = try await part(hasFirstHalf ? "0-4" : "5-9")
    let gate = Gate()
    let transport = ScriptedTransport { request, number in
      guard request.head.fields.contains("Range") else {
        return IncomingResponse(
          head: fixture.ok("", fresh, Self.tag, ("Content-Length", "10")).head,
          body: .chunks(["01", "2345", "", "678", "9"]))
      }
      return rest(
        fixture, .chunks(answer.chunks, behind: [gate], failing: answer.id == "cut" ? Unreachable() : nil),
        range: hasFirstHalf ? "bytes 5-9/10" : "bytes 0-4/10")
    }
    let response = try await fixture.client.respond(to: streaming(), over: transport)
    #expect(response.status == 200)
    var iterator = response.body.makeAsyncIterator()
    var received = Data()
    if hasFirstHalf { received = try #require(try await iterator.next()) }
    gate.open()
    while let chunk = try await iterator.next() { received.append(chunk) }
    #expect(String(decoding: received, as: UTF8.self) == "0123456789")
    #expect(transport.requests.map { $0.head.fields.contains("Range") } == [true, false])
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "0123456789")
    #expect(fixture.storage.entryCount == 1)
    #expect(transport.count == 2)
  }

  @Test(
    "A reader in pieces that has the stored part gets an error if the whole response does not continue it",
    arguments: [
      ("changed", 200, ("ETag", "\"2\""), "abcdefghij"), ("weak", 200, ("ETag", "W/\"1\""), "0123456789"),
      ("length", 200, tag, "0123456789a"), ("short", 200, tag, "012345678"), ("gone", 404, tag, ""),
      ("again", 206, tag, "56789"),
    ])
  func noContinuation(answer: (id: String, status: Int, tag: (String, String), body: String)) async throws {
    let fixture = try await part()
    let transport = ScriptedTransport { request, number in
      if number == 1 { return rest(fixture, .chunks([], failing: Unreachable())) }
      return fixture.response(answer.status, answer.body, [fresh, answer.tag])
    }
    let response = try await fixture.client.respond(to: streaming(), over: transport)
    var received = Data()
    await #expect(throws: (any Error).self) { for try await chunk in response.body { received.append(chunk) } }
    #expect("0123456789".utf8.starts(with: received))
    #expect(transport.count == 2)
    #expect(fixture.storage.entryCount == 0)
    _ = try await fixture.client.respond(to: streaming(), over: transport).text()
    #expect(transport.requests.map { $0.head.fields.contains("Range") } == [true, false, false])
  }

  @Test("A reader in pieces that has the stored part gets an error if the request for the whole fails")
  func noWhole() async throws {
    let fixture = try await part()
    let transport = ScriptedTransport { _, number in
      guard number == 1 else { throw Unreachable(number: number) }
      return rest(fixture, .chunks([], failing: Unreachable()))
    }
    let response = try await fixture.client.respond(to: streaming(), over: transport)
    await #expect(throws: Unreachable(number: 2)) { for try await _ in response.body {} }
    // The failure says nothing of the stored part.
    #expect(fixture.storage.entryCount == 1)
  }

  @Test("A reader that stops during a completion ends the fetch, and the part stays stored")
  func abandoned() async throws {
    let fixture = try await part()
    let (never, ended) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      guard number == 1 else { return rest(fixture, ResponseBodyStream(Data("56789".utf8))) }
      return rest(
        fixture,
        ResponseBodyStream(next: {
          do { try await never.pass() } catch {
            ended.open()
            throw error
          }
          return nil
        }))
    }
    var response: CachingClientResponse<MemoryStorage.Entry>? = try await fixture.client.respond(
      to: streaming(), over: transport)
    #expect(response?.status == 200)
    response = nil
    try await ended.pass()
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "0123456789")
  }
}
