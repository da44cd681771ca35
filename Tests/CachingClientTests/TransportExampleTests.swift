import Foundation
import Synchronization
import Testing

@Suite("Example in the article on transports")
struct TransportExampleTests {
  @Test("The article contains the compiled example")
  func matchesItsSource() throws {
    let tests = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
    let root = tests.deletingLastPathComponent().deletingLastPathComponent()
    let article = try String(
      contentsOf: root.appendingPathComponent("Sources/LMDBURLCache/LMDBURLCache.docc/WritingATransport.md"),
      encoding: .utf8)
    let source = try String(contentsOf: tests.appendingPathComponent("TransportExample.swift"), encoding: .utf8)
    let start = try #require(article.range(of: "```swift\n"), "The article has no Swift example")
    let end = try #require(article[start.upperBound...].range(of: "```"))
    #expect(
      article[start.upperBound..<end.lowerBound] == source,
      "Change WritingATransport.md and TransportExample.swift together")
  }

  /// A client that returns the same two chunks for each request.
  private final class TwoChunks: HTTPClient {
    private let count = Atomic<Int>(0)
    var callCount: Int { count.load(ordering: .relaxed) }

    func execute(
      method: String, url: URL, fields: [(String, String)], body: Data?
    ) async throws -> (status: Int, fields: [(String, String)], chunks: AsyncThrowingStream<Data, any Error>) {
      count.add(1, ordering: .relaxed)
      let chunks = AsyncThrowingStream<Data, any Error> { continuation in
        continuation.yield(Data("hel".utf8))
        continuation.yield(Data("lo".utf8))
        continuation.finish()
      }
      return (200, [("Cache-Control", "max-age=600"), ("Content-Length", "5")], chunks)
    }
  }

  @Test("With the example's transport a second caching client on the directory gets a hit")
  func works() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("transport-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
    let client = TwoChunks()
    let url = try #require(URL(string: "http://example.com/a"))
    for _ in 0..<2 {
      let data = try await load(url, over: client, cachingIn: directory.path)
      #expect(String(decoding: data, as: UTF8.self) == "hello")
    }
    #expect(client.callCount == 1)
  }
}
