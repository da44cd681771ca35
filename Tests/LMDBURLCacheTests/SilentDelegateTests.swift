import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// A delegate that is asked before a response is stored, and never replies.
private final class SilentDelegate: NSObject, URLSessionDataDelegate {
  private let asked = Gate()
  private let ended = Gate()

  func waitUntilAsked() async { await asked.waitUntilOpen() }
  func waitUntilEnded() async { await ended.waitUntilOpen() }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, willCacheResponse proposedResponse: CachedURLResponse,
    completionHandler: @escaping (CachedURLResponse?) -> Void
  ) {
    asked.open()
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    ended.open()
  }
}

@Suite("Delegates that never reply", .timeLimit(.minutes(1)))
struct SilentDelegateTests {
  @Test("A delegate that never replies delays neither its own task nor any other caller")
  func neverAnswers() async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body").held(at: gate)
    } _: { (fixture, origin) async throws in
      let delegate = SilentDelegate()
      let task = fixture.session(delegate: delegate).dataTask(with: origin.url("/x"))
      task.resume()
      await origin.waitForRequests(count: 1)
      let session = fixture.session()
      async let other = session.data(from: origin.url("/x")).0.text
      while fixture.cache.client.statistics.waiting < 1 { await Task.yield() }
      gate.open()
      #expect(try await other == "body")
      await delegate.waitUntilEnded()
      await delegate.waitUntilAsked()
      #expect(origin.requestCount == 1)
      // Later requests fetch and store the response.
      #expect(try await fixture.cache.data(from: origin.url("/x")).0.text == "body")
      #expect(fixture.cache.isCached(origin.url("/x")))
    }
  }
}
