import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Responses that violate HTTP and that a session without a cache delivers.
@Suite("Unusual responses", .timeLimit(.minutes(1)))
struct UnusualResponseTests {
  enum Way: CaseIterable {
    case data, dataFromSession, session, delegate

    func load(_ request: URLRequest, _ fixture: CacheFixture) async throws -> (Data, URLResponse?) {
      switch self {
      case .data: return try await fixture.cache.data(for: request)
      case .dataFromSession:
        return try await fixture.cache.data(for: request, from: URLSession(configuration: .ephemeral))
      case .session: return try await fixture.session().data(for: request)
      case .delegate:
        let delegate = RecordingDelegate()
        let task = fixture.session(delegate: delegate).dataTask(with: request)
        await delegate.run(task)
        if let code = delegate.events.completions.last ?? nil { throw URLError(code) }
        return (delegate.body, task.response)
      }
    }
  }

  private static let content = String(repeating: "hello body ", count: 100)

  /// Loads twice in each way and compares with a session without a cache.
  private func compare(_ head: String, method: String) async throws {
    try await withCache { _ in
      .raw("HTTP/1.1 \(head)\r\nCache-Control: max-age=600\r\n\r\n\(Self.content)")
    } _: { (fixture, origin) async throws in
      for way in Way.allCases {
        let request = URLRequest(origin.url("/\(way)"), method: method)
        let (plainData, plainResponse) = try await URLSession(configuration: .ephemeral).data(for: request)
        #expect(plainData.count == 1_100)
        let count = origin.requestCount
        for _ in 0..<2 {
          let (data, response) = try await way.load(request, fixture)
          #expect(data == plainData, "\(way)")
          #expect(response?.status == plainResponse.status, "\(way)")
        }
        #expect(origin.requestCount == count + 2, "\(way)")
        #expect(!fixture.cache.isCached(request.url!))
      }
    }
  }

  @Test(
    "A response with a Content-Length beyond 64 bits reaches its caller and is not stored", arguments: ["GET", "POST"])
  func hugeLength(_ method: String) async throws {
    try await compare("200 OK\r\nContent-Length: 99999999999999999999999", method: method)
  }

  @Test("An unrequested switch of protocols reaches its caller", arguments: ["GET", "POST", "OPTIONS", "PUT"])
  func switchOfProtocols(_ method: String) async throws {
    try await compare("101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade", method: method)
  }

  @Test(
    "A redirect to another scheme than HTTP is returned as the response and not followed",
    arguments: ["file:///etc/passwd", "data:text/plain,hi", "ftp://127.0.0.1/x"])
  func redirectToOtherScheme(_ location: String) async throws {
    try await withCache { _ in
      Reply(302, [("Cache-Control", "max-age=600"), ("Location", location)], Self.content)
    } _: { (fixture, origin) async throws in
      for way in Way.allCases {
        let request = URLRequest(origin.url("/\(way)"))
        for _ in 0..<2 {
          let (data, response) = try await way.load(request, fixture)
          #expect(data.count == 1_100, "\(way)")
          #expect(response?.status == 302, "\(way)")
          #expect(response?.url == request.url, "\(way)")
        }
      }
      #expect(origin.requestCount == Way.allCases.count)
    }
  }
}
