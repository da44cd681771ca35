import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// The ways in for a body of any size.
enum LargeLoad: CaseIterable {
  case bytes, data, session

  func load(_ request: URLRequest, _ cache: LMDBURLCache) async throws -> (Data, URLResponse) {
    switch self {
    case .bytes:
      let (chunks, response) = try await cache.bytes(for: request)
      return (try await chunks.collect(upTo: .max), response)
    case .data: return try await cache.data(for: request)
    case .session:
      let session = URLSession(configuration: .ephemeral.caching(with: cache))
      defer { session.finishTasksAndInvalidate() }
      return try await session.data(for: request)
    }
  }
}

/// Transfers that stop in the middle, and the requests that join them.
@Suite("Transfers that stop in the middle, over the network", .timeLimit(.minutes(2)))
struct StalledTransferLoadTests {
  /// The behavior of the origin for later requests.
  enum Origin: CaseIterable {
    case works, hasAnotherBody, fails, hangs
  }

  struct Case: Sendable {
    let way: LargeLoad
    let origin: Origin
    /// The number of bytes after which the first transfer stops.
    var byteCount = 2_000_000

    // The caller is a reader of the transfer, or waits for the end of a body that is still small.
    static let all =
      LargeLoad.allCases.flatMap { way in Origin.allCases.map { Case(way: way, origin: $0) } }
      + LargeLoad.allCases.map { Case(way: $0, origin: .works, byteCount: 100_000) }
  }

  private static func body(_ number: Int) -> Data {
    Data((0..<(3 << 20) + 77).map { UInt8(truncatingIfNeeded: ($0 &* 31 ^ $0 >> 8) &+ number) })
  }

  private static let bodies = [1: body(1), 2: body(2)]

  private static func reply(_ number: Int) -> Reply {
    Reply(200, [("Cache-Control", "max-age=600"), ("ETag", "\"\(number)\"")], body: bodies[number]!)
  }

  @Test("A caller gets a whole body or an error by its time limit, and never a wrong byte", arguments: Case.all)
  func stall(_ stall: Case) async throws {
    let (gate, hanging) = (Gate(), Gate())
    let count = Atomic(0)
    try await withCache(disk: 64 << 20) { options in
      options.coalescingTimeout = .milliseconds(500)
    } origin: { _ in
      if count.add(1, ordering: .relaxed).oldValue == 0 {
        return Self.reply(1).held(at: gate, afterBodyBytes: stall.byteCount)
      }
      switch stall.origin {
      case .works: return Self.reply(1)
      case .hasAnotherBody:
        gate.open()
        return Self.reply(2)
      case .fails:
        gate.open()
        return Reply(503)
      case .hangs: return Self.reply(1).held(at: hanging)
      }
    } _: { fixture, origin in
      let cache = fixture.cache
      var request = URLRequest(url: origin.url("/large"))
      let (leader, _) = try await cache.bytes(for: request)
      if stall.origin == .hangs {
        request.timeoutInterval = 1
        let error = await #expect(throws: URLError.self) { try await stall.way.load(request, cache) }
        #expect(error?.code == .timedOut)
      } else {
        let (body, response) = try await stall.way.load(request, cache)
        #expect(body == Self.bodies[response.field("ETag") == "\"1\"" ? 1 : 2])
        #expect(origin.requestCount == 2)
      }
      gate.open()
      hanging.open()
      #expect(try await leader.collect(upTo: .max) == Self.bodies[1])
    }
  }
}
