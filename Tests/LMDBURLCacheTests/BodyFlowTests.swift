import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

@testable import LMDBURLCache

/// A body that is not stored uses little memory in the cache, regardless of its reader's speed.
@Suite("Flow of bodies", .timeLimit(.minutes(1)))
struct BodyFlowTests {
  /// The maximum number of unread bytes, including the chunk that Foundation delivers while the transfer is paused.
  static let maximumByteCount = SessionExchange.unreadByteLimit + (64 << 10)

  /// Waits until a transfer is paused, and then loads other responses in the same session, so that time passes.
  func fill(_ transport: URLSessionTransport, _ origin: LoopbackOrigin) async throws {
    while transport.unreadByteCount < SessionExchange.unreadByteLimit { await Task.yield() }
    for _ in 0..<50 {
      let response = try await transport.send(request(origin, "/small"))
      #expect(try await response.body.collect(upTo: 100).text == "small")
    }
  }

  func request(_ origin: LoopbackOrigin, _ path: String, timeLimit: TimeInterval = 100) -> OutgoingRequest {
    var request = URLRequest(url: origin.url(path))
    request.timeoutInterval = timeLimit
    return OutgoingRequest(head: request.head!, context: RequestContext(request: request))
  }

  func origin(_ gate: Gate = Gate()) throws -> LoopbackOrigin {
    try LoopbackOrigin(recordsRequests: false) { request in
      switch request.path {
      // More bytes than the cache may hold, and few enough to hold by mistake.
      case "/large": Reply(200, [], body: Data(repeating: 0x78, count: 32 << 20))
      case "/held": Reply(200, [], "late").held(at: gate)
      default: Reply(200, [], "small")
      }
    }
  }

  @Test("A transfer is paused while its reader does not read, and continues when it does")
  func unread() async throws {
    let origin = try origin()
    let transport = URLSessionTransport(configuration: .ephemeral)
    let body = try await transport.send(request(origin, "/large")).body
    for _ in 0..<3 {
      try await fill(transport, origin)
      #expect(transport.unreadByteCount <= Self.maximumByteCount)
      var byteCount = 0
      for try await chunk in body {
        #expect(chunk.allSatisfy { $0 == 0x78 })
        byteCount += chunk.count
        if byteCount > 5 << 20 { break }
      }
    }
    withExtendedLifetime(body) {}
    origin.stop()
  }

  // Foundation measures the time limit from the last chunk that it delivered.
  @Test("A transfer that is paused for longer than its time limit continues")
  func timeLimit() async throws {
    let gate = Gate()
    let origin = try origin(gate)
    let transport = URLSessionTransport(configuration: .ephemeral)
    let body = try await transport.send(request(origin, "/large", timeLimit: 1)).body
    try await fill(transport, origin)
    for _ in 0..<2 {
      // Fails after one second.
      await #expect(throws: URLError.self) { _ = try await transport.send(request(origin, "/held", timeLimit: 1)) }
    }
    #expect(transport.unreadByteCount <= Self.maximumByteCount + 8 * (16 << 10))
    var byteCount = 0
    for try await chunk in body {
      byteCount += chunk.count
      if byteCount > 5 << 20 { break }
    }
    #expect(byteCount > 5 << 20)
    gate.open()
    origin.stop()
  }

  @Test("While a task is suspended, little of a body too large for storing is held, and it arrives once")
  func suspended() async throws {
    let bytes = Data((0..<(6 << 20)).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) })
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], body: bytes).held(at: gate, afterBodyBytes: 5)
      return request.path == "/small" ? Reply(200, [], "small") : reply
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let task = session.dataTask(with: origin.url("/large"))
      task.resume()
      await delegate.wait { !$0.chunks.isEmpty }
      task.suspend()
      gate.open()
      let transport = SessionContext.of(session).transport
      try await fill(transport, origin)
      #expect(transport.unreadByteCount <= Self.maximumByteCount)
      #expect(delegate.events.completions.isEmpty)
      task.resume()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.events.completions == [nil])
      #expect(delegate.body == bytes)
      #expect(!fixture.cache.isCached(origin.url("/large")))
    }
  }

  @Test("A body above the options' limit reaches its caller and is not stored", arguments: [true, false])
  func storedLimit(_ isDeclared: Bool) async throws {
    try await withCache(configure: { $0.maximumStoredBodyByteCount = 1000 }) { request in
      let reply = Reply(
        200, [("Cache-Control", "max-age=600")], body: Data(count: request.path == "/maximum" ? 1000 : 1001))
      return isDeclared ? reply : reply.chunked(byteCount: 300)
    } _: { (fixture, origin) async throws in
      for (path, count) in [("/maximum", 1000), ("/more", 1001)] {
        #expect(try await fixture.cache.data(from: origin.url(path)).0.count == count)
        #expect(fixture.cache.isCached(origin.url(path)) == (path == "/maximum"))
      }
    }
    #expect(LMDBURLCache.Options().maximumStoredBodyByteCount == 64 << 20)
  }
}
