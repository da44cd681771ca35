import CachingClient
import FoundationEssentials
import HTTPCaching
import Testing

/// When a response that is not stored removes the stored one: only once its end is proven (RFC 9111, 3.3).
@Suite("Outdated responses", .timeLimit(.minutes(1)))
struct OutdatedResponseTests {
  /// Why the new response cannot replace the stored one.
  enum Refusal: String, CaseIterable, Sendable {
    /// A shared cache may not store the response to a request with credentials without `public`.
    case credentials
    case noStore
    case declaredTooLarge
    case undeclaredTooLarge
  }

  /// How the body of the new response ends.
  enum End: String, CaseIterable, Sendable {
    case proven
    /// The transport reports that the transfer ended early.
    case cut
    /// The body ends before its declared length.
    case short
    /// The body is longer than its declared length.
    case long
    /// The declared length is not a number.
    case malformed
    /// The body ends with its connection.
    case withConnection
  }

  enum Reader: String, CaseIterable, Sendable {
    case toTheEnd
    /// A reader that stops after the first part.
    case abandons
    /// The revalidation runs behind a stale response, so nothing reads the body.
    case none
  }

  private static let limit = 100

  private static func body(_ refusal: Refusal) -> String {
    String(repeating: "x", count: refusal == .declaredTooLarge || refusal == .undeclaredTooLarge ? 80 : 20)
  }

  private func response(_ fixture: Fixture, _ refusal: Refusal, _ end: End, _ isInMemory: Bool) -> IncomingResponse {
    let part = Self.body(refusal)
    var fields = [("Cache-Control", refusal == .noStore ? "no-store" : "max-age=60")]
    let count = 2 * part.utf8.count
    switch end {
    case .short: fields.append(("Content-Length", "\(count + 1)"))
    case .long: fields.append(("Content-Length", "\(count - 1)"))
    case .malformed: fields.append(("Content-Length", "many"))
    case .proven, .cut: if refusal == .declaredTooLarge { fields.append(("Content-Length", "\(count)")) }
    case .withConnection: break
    }
    var response = fixture.response(200, part + part, fields)
    if !isInMemory { response.body = .chunks([part, part], failing: end == .cut ? Unreachable() : nil) }
    response.endsWithConnection = end == .withConnection
    return response
  }

  /// Returns a shared cache with a stale response, and a request for it.
  private func staleFixture(_ reader: Reader) async throws -> (Fixture, CachingClientRequest) {
    var options = CachingOptions()
    options.mode = .shared
    let fixture = Fixture(options: options, maximumBodyByteCount: Self.limit)
    let window = reader == .none ? ", stale-while-revalidate=1000" : ""
    let request = get("http://example.com/a", ["Authorization": "Basic dTpw"])
    let transport = ScriptedTransport { _, _ in
      fixture.ok("stored", ("Cache-Control", "public, max-age=60" + window))
    }
    _ = try await fixture.client.respond(to: request, over: transport).text()
    #expect(fixture.storage.entryCount == 1)
    fixture.clock.advance(by: 70)
    return (fixture, request)
  }

  @Test(
    "Only a response whose end is proven removes the stored one that it cannot replace",
    arguments: Refusal.allCases, End.allCases)
  func removal(refusal: Refusal, end: End) async throws {
    for reader in Reader.allCases {
      for isInMemory in end == .cut || reader == .abandons ? [false] : [false, true] {
        let (fixture, request) = try await staleFixture(reader)
        let transport = ScriptedTransport { _, _ in response(fixture, refusal, end, isInMemory) }
        let answer = try await fixture.client.respond(to: request, over: transport)
        switch reader {
        case .toTheEnd:
          do {
            _ = try await answer.text()
            #expect(end != .cut && end != .short)
          } catch {
            #expect(end == .cut || end == .short)
          }
        case .abandons:
          var iterator = answer.body.makeAsyncIterator()
          _ = try await iterator.next()
        case .none:
          #expect(try await answer.text() == "stored")
          await fixture.client.finishBackgroundWork()
        }
        await until { fixture.client.statistics.waiting == 0 }
        #expect(transport.count == 1)
        // Without a reader, the end of a body that is too large to store is not awaited.
        let isLarge = refusal == .declaredTooLarge || refusal == .undeclaredTooLarge
        let awaitsEnd = reader == .toTheEnd || reader == .none && (!isLarge || isInMemory)
        let isRemoved = end == .proven && awaitsEnd
        #expect(fixture.storage.entryCount == (isRemoved ? 0 : 1), "\(reader), in memory: \(isInMemory)")
      }
    }
  }

  @Test("While a background revalidation reads a response that is not stored, no second one begins")
  func oneAtATime() async throws {
    let (fixture, request) = try await staleFixture(.none)
    let gate = Gate()
    let transport = ScriptedTransport { _, _ in
      IncomingResponse(
        head: fixture.ok("", ("Cache-Control", "no-store")).head, body: .chunks(["part"], behind: [gate]))
    }
    for _ in 0..<3 {
      #expect(try await fixture.client.respond(to: request, over: transport).text() == "stored")
      await until { transport.count == 1 }
    }
    gate.open()
    await fixture.client.finishBackgroundWork()
    #expect(transport.count == 1)
    #expect(fixture.storage.entryCount == 0)
  }

  // Guarantee: of two responses of one variant, that to the later request is stored last.
  //
  //   request 1            | request 2
  //   ---------------------+-----------------------
  //   sends; gate          |
  //                        | sends, stores "new"
  //   receives "old"       |
  @Test("A response that arrives after the one to a later request is not stored")
  func overtaken() async throws {
    let fixture = Fixture()
    let gate = Gate()
    let transport = ScriptedTransport { request, number in
      if number == 1 { try await gate.pass() }
      let variant = request.head.fields["Accept-Language"] ?? ""
      return fixture.ok(number == 1 ? "old" : "new \(variant)", fresh, ("Vary", "Accept-Language"))
    }
    async let first = fixture.client.respond(to: get(), over: transport)
    await until { transport.count == 1 }
    // A response of another variant does not prevent that the first one is stored.
    for language in ["de", ""] {
      let fields: HeaderFields =
        language.isEmpty ? ["Cache-Control": "no-cache"] : ["Accept-Language": language, "Cache-Control": "no-cache"]
      let response = try await fixture.client.respond(to: get("http://example.com/a", fields), over: transport)
      #expect(try await response.text() == "new \(language)")
      #expect(response.storage == .stored)
    }
    gate.open()
    #expect(try await first.text() == "old")
    #expect(try await first.storageRefusal == .overtaken)
    #expect(try await fixture.client.respond(to: get(), over: transport).text() == "new ")
    #expect(transport.count == 3)
  }
}
