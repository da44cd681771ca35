import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Streaming of bodies, and which bodies are stored (RFC 9111, 3.3).
@Suite("Bodies", .timeLimit(.minutes(1)))
struct BodyTests {
  @Test(
    "A body above the limit streams to the caller and is not stored",
    arguments: [("declared length", true), ("unknown length", false)])
  func tooLarge(id: String, isDeclared: Bool) async throws {
    let fixture = Fixture(maximumBodyByteCount: 10)
    let chunks = (0..<100).map { "chunk \($0) " }
    let text = chunks.joined()
    let fields = [fresh] + (isDeclared ? [("Content-Length", "\(text.utf8.count)")] : [])
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(head: fixture.response(200, "", fields).head, body: .chunks(chunks))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    // A declared length refuses at once.
    if isDeclared { #expect(response.storageRefusal == .bodyTooLarge) }
    #expect(try await response.text() == text)
    #expect(response.storageRefusal == .bodyTooLarge)
    #expect(response.storageRefusal?.summary == "the body is larger than 10 bytes, the limit of the cache")
    #expect(fixture.storage.entryCount == 0)
    #expect(fixture.client.statistics.storageRefusals["body-too-large"] == 1)
  }

  @Test("A response that the storage refuses because of its size is counted, and says so")
  func refusedByStorage() async throws {
    let fixture = Fixture()
    try await withDiskCache(clock: fixture.clock) { cache in
      cache.diskCapacity = 1 << 20
      // The client's limit permits the body, and the cache's does not.
      let client = CachingClient(storage: cache, maximumBodyByteCount: 16 << 20, clock: { fixture.clock.now })
      let body = String(repeating: "x", count: 900_000)
      for isStream in [false, true] {
        let transport = ScriptedTransport { _, _ in
          var response = fixture.ok(body, fresh)
          if isStream { response.body = .chunks([body]) }
          return response
        }
        let response = try await client.respond(to: get("http://example.com/\(isStream)"), over: transport)
        #expect(try await response.text() == body)
        #expect(response.storageRefusal == .bodyTooLarge)
      }
      #expect(client.statistics.storageRefusals == ["body-too-large": 2])
      #expect(client.statistics.stored == 0)
    }
  }

  @Test("A body in memory above the limit is not stored")
  func tooLargeInMemory() async throws {
    let fixture = Fixture(maximumBodyByteCount: 3)
    let transport = ScriptedTransport { _, _ in fixture.ok("four", fresh) }
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(try await response.text() == "four")
    #expect(response.storageRefusal?.summary == "the body is larger than 3 bytes, the limit of the cache")
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("A body that ends when its connection closes is delivered and not stored", arguments: [true, false])
  func unprovenEnd(isInMemory: Bool) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, number in
      var response = fixture.ok("body \(number)", fresh)
      response.endsWithConnection = number > 1
      if !isInMemory { response.body = .chunks(["body ", "\(number)"]) }
      return response
    }
    _ = try await fixture.client.respond(to: get(), over: transport).text()
    #expect(fixture.storage.entryCount == 1)
    fixture.clock.advance(by: 100)
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "body 2")
    #expect(fixture.client.statistics.storageRefusals["unproven-end"] == 1)
    // The new response may be cut, so it does not outdate the stored one.
    #expect(fixture.storage.entryCount == 1)
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "body 3")
    #expect(fixture.storage.entryCount == 1)
  }

  @Test("The time limit of a request is passed to the transport")
  func timeLimit() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in fixture.ok() }
    var request = get()
    request.timeLimit = .seconds(7)
    _ = try await fixture.client.respond(to: request, over: transport)
    #expect(transport.requests.map(\.timeLimit) == [.seconds(7)])
  }

  // Guarantee: above the limit a slow reader slows the transfer down; the caching client does not buffer the body.
  @Test("A large body is fetched no faster than the caller reads it")
  func backPressure() async throws {
    let fixture = Fixture(maximumBodyByteCount: 1_000)
    let taken = Atomic<Int>(0)
    let chunk = Data(repeating: 7, count: 64 * 1024)
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", fresh).head,
        body: ResponseBodyStream(next: {
          taken.wrappingAdd(1, ordering: .relaxed).newValue <= 1_000 ? chunk : nil
        }))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    var iterator = response.body.makeAsyncIterator()
    var byteCount = 0
    while let chunk = try await iterator.next() {
      byteCount += chunk.count
      let ahead = taken.load(ordering: .relaxed) - byteCount / (64 * 1024)
      #expect(ahead <= 6)
    }
    #expect(byteCount == 1_000 * 64 * 1024)
  }

  @Test(
    "A missing range above the limit streams to the caller as part of the complete body", arguments: [true, false])
  func restTooLarge(isDeclared: Bool) async throws {
    let fixture = Fixture(maximumBodyByteCount: 10)
    let whole = "0123456789abcdefghij"
    let transport = ScriptedTransport { request, number in
      let range: (String, String, String)? =
        switch request.head.fields["Range"] {
        case nil: nil
        case "bytes=0-4": ("bytes 0-4/20", "01234", "5")
        default: ("bytes 5-19/20", "56789abcdefghij", "15")
        }
      guard let (content, text, length) = range else { return fixture.ok(whole, fresh, ("ETag", "\"1\"")) }
      let fields = [fresh, ("ETag", "\"1\""), ("Content-Range", content)]
      return IncomingResponse(
        head: fixture.response(206, "", isDeclared ? fields + [("Content-Length", length)] : fields).head,
        body: .chunks([text]))
    }
    _ = try await fixture.client.respond(to: get("http://example.com/a", ["Range": "bytes=0-4"]), over: transport)
      .text()
    #expect(fixture.storage.entryCount == 1)
    let response = try await fixture.client.respond(to: get(), over: transport)
    #expect(response.status == 200)
    #expect(try await response.text() == whole)
  }

  @Test("Followers fetch independently as soon as the body exceeds the limit")
  func followersOfLarge() async throws {
    let fixture = Fixture(maximumBodyByteCount: 10)
    let (head, never) = (Gate(), Gate())
    let transport = ScriptedTransport { _, number in
      guard number == 1 else { return fixture.ok("small", ("Cache-Control", "no-store")) }
      try await head.pass()
      return IncomingResponse(
        head: fixture.ok("", fresh).head, body: .chunks(["more than ten", "rest"], behind: [head, never]))
    }
    let leader = Task { try await fixture.client.respond(to: get(), over: transport) }
    await until { transport.count == 1 }
    let follower = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { fixture.client.statistics.waiting == 1 }
    head.open()
    // The leader's body never ends.
    #expect(try await follower.value == "small")
    _ = try await leader.value
  }

  @Test(
    "A body that differs from its declared length is never stored",
    arguments: [
      ("short", "10", "five5", true), ("empty", "10", "", true), ("long", "3", "five5", false),
      ("two-lengths", "5, 6", "five5", false), ("no-number", "many", "five5", false),
      ("negative", "-5", "five5", false),
      ("huge", "9223372036854775807", "five5", true), ("overflow", "99999999999999999999999", "five5", false),
    ], [true, false])
  func incomplete(row: (id: String, length: String, body: String, throwsError: Bool), isInMemory: Bool) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", fresh, ("Content-Length", row.length)).head,
        body: isInMemory ? ResponseBodyStream(Data(row.body.utf8)) : .chunks(row.body.isEmpty ? [] : [row.body]))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    if row.throwsError {
      await #expect(throws: CachingClientError.self) { try await response.text() }
    } else {
      #expect(try await response.text() == row.body)
    }
    #expect(fixture.storage.entryCount == 0)
    #expect(fixture.client.statistics.stored == 0)
  }

  @Test(
    "A body is stored if its length agrees with the declared lengths or none is declared",
    arguments: ["5", "5, 5", " 5 ", ""])
  func complete(length: String) async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in
      let fields = [fresh] + (length.isEmpty ? [] : [("Content-Length", length)])
      return IncomingResponse(head: fixture.response(200, "", fields).head, body: .chunks(["fi", "ve5"]))
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "five5")
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "five5")
  }

  @Test("A decoded body is not compared with the length of its encoded form")
  func decoded() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in
      var response = fixture.ok("long plain text", fresh, ("Content-Encoding", "gzip"), ("Content-Length", "7"))
      response.isContentDecoded = true
      return response
    }
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "long plain text")
    #expect(try await fixture.client.storedResponse(to: get())?.text() == "long plain text")
    // Ranges count encoded bytes, so the complete body is served.
    let ranged = fixture.client.storedResponse(to: get("http://example.com/a", ["Range": "bytes=0-1"]))
    #expect(ranged?.status == 200)
  }

  @Test("An error in the middle of a body reaches the reader, and nothing is stored")
  func breaksOff() async throws {
    let fixture = Fixture()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["first"], failing: Unreachable()))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    var iterator = response.body.makeAsyncIterator()
    #expect(try await iterator.next() == Data("first".utf8))
    await #expect(throws: Unreachable.self) { try await iterator.next() }
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("After the leader's body fails, a follower repeats the fetch")
  func breaksOffForFollowers() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, number in
      guard number == 1 else { return fixture.ok("whole", fresh) }
      return IncomingResponse(
        head: fixture.ok("", fresh).head, body: .chunks(["part"], behind: [gate], failing: Unreachable()))
    }
    let leader = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { transport.count == 1 }
    let follower = Task { try await fixture.client.respond(to: get(), over: transport).text() }
    await until { fixture.client.statistics.waiting == 1 }
    gate.open()
    await #expect(throws: Unreachable.self) { try await leader.value }
    #expect(try await follower.value == "whole")
  }

  @Test("A caller that drops the response ends the transfer, and nothing is stored")
  func dropped() async throws {
    let fixture = Fixture()
    let (never, ended) = (Gate(), Gate())
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", fresh).head,
        body: ResponseBodyStream(next: {
          do { try await never.pass() } catch {
            ended.open()
            // The sequence ends without an error when its task is cancelled, as `AsyncThrowingStream` does.
            return nil
          }
          return nil
        }))
    }
    _ = try await fixture.client.respond(to: get(), over: transport).status
    try await ended.pass()
    let transport2 = ScriptedTransport { _, _ in fixture.ok("again", fresh) }
    #expect(try await fixture.client.respond(to: get(), over: transport2).text() == "again")
  }

  @Test("A response is stored before its caller reads the end of the body")
  func readYourWrite() async throws {
    let fixture = Fixture()
    for number in 0..<100 {
      let request = get("http://example.com/\(number)")
      let transport = ScriptedTransport { _, _ in
        IncomingResponse(head: fixture.ok("", fresh).head, body: .chunks(["a", "b"]))
      }
      #expect(try await fixture.client.respond(to: request, over: transport).text() == "ab")
      #expect(fixture.client.storedResponse(to: request) != nil)
    }
  }

  @Test("Collecting a body fails only above the limit")
  func collect() async throws {
    #expect(try await ResponseBodyStream(Data("abc".utf8)).collect(upTo: 3) == Data("abc".utf8))
    #expect(try await ResponseBodyStream.chunks(["ab", "", "c"]).collect(upTo: 3) == Data("abc".utf8))
    #expect(try await ResponseBodyStream.chunks([]).collect(upTo: 0) == Data())
    for body in [ResponseBodyStream(Data("abc".utf8)), ResponseBodyStream.chunks(["ab", "c"])] {
      await #expect(throws: CachingClientError.bodyTooLarge(limit: 2)) { try await body.collect(upTo: 2) }
    }
    let stream = AsyncStream<Data> { continuation in
      continuation.yield(Data("x".utf8))
      continuation.finish()
    }
    #expect(try await ResponseBodyStream(stream).collect(upTo: 1) == Data("x".utf8))
  }

  @Test("A body from the network has one reader, and others get an error")
  func oneReader() async throws {
    let gate = Gate()
    let sequence = AsyncStream<Data> { continuation in
      continuation.yield(Data("ab".utf8))
      continuation.finish()
    }
    for body in [ResponseBodyStream.chunks(["a", "b"], behind: [gate]), ResponseBodyStream(sequence)] {
      let readers = (0..<3).map { _ in Task { try await body.collect(upTo: 10) } }
      gate.open()
      var texts: [String] = []
      for reader in readers {
        do { texts.append(String(decoding: try await reader.value, as: UTF8.self)) } catch {
          #expect(error as? CachingClientError == .bodyAlreadyRead)
        }
      }
      #expect(texts == ["ab"])
      await #expect(throws: CachingClientError.bodyAlreadyRead) { try await body.collect(upTo: 10) }
    }
    let inMemory = ResponseBodyStream(Data("ab".utf8))
    for _ in 0..<2 { #expect(try await inMemory.collect(upTo: 2) == Data("ab".utf8)) }
  }

  @Test("A fetched body that is stored, or not, has one reader", arguments: [true, false])
  func oneReaderOfResponse(isStored: Bool) async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", isStored ? fresh : ("Cache-Control", "no-store")).head,
        body: .chunks(["a", "b"], behind: [gate]))
    }
    let response = try await fixture.client.respond(to: get(), over: transport)
    var iterator = response.body.makeAsyncIterator()
    // Open, so that a second reader that is not refused does not wait.
    gate.open()
    await #expect(throws: CachingClientError.bodyAlreadyRead) { try await response.text() }
    var received = Data()
    while let chunk = try await iterator.next() { received.append(chunk) }
    #expect(received == Data("ab".utf8))
    // A stored body can be read any number of times.
    let stored = fixture.client.storedResponse(to: get())
    #expect((stored != nil) == isStored)
    for _ in 0..<2 { if let stored { #expect(try await stored.text() == "ab") } }
  }
}
