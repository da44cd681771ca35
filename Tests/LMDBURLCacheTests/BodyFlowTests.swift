import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// A body that is not stored uses little memory in the cache, regardless of its reader's speed.
@Suite("Flow of bodies", .timeLimit(.minutes(1)))
struct BodyFlowTests {
  /// The number of bytes that an origin can send while nothing is read: the buffers of both sockets, of the transport
  /// and of the pipe to the reader.
  static let bufferedByteCount = 20 << 20
  static let piece = Data(repeating: 0x78, count: 64 << 10)
  static let pieceCount = 1_600

  /// Runs `body` with a cache that stores no body of this size, and an origin that counts the pieces it has sent.
  func withLargeBody(
    _ body: (CacheFixture, LoopbackOrigin, _ sentByteCount: () -> Int) async throws -> Void
  ) async throws {
    // Counts the pieces that were sent.
    let gate = Gate()
    gate.open()
    try await withCache(configure: { $0.maximumStoredBodyByteCount = 1 << 20 }) { request in
      guard request.path == "/large" else { return Reply(200, [], "small") }
      let parts = (0..<Self.pieceCount).flatMap { _ -> [Reply.Part] in [.bytes(Self.piece), .hold(gate)] }
      return Reply(200, [("Cache-Control", "max-age=600")], parts: parts)
    } _: { fixture, origin in
      try await body(fixture, origin) { gate.arrivals * Self.piece.count }
    }
  }

  /// Loads other responses until the origin sends no more of the large body.
  func waitUntilFull(_ session: URLSession, _ origin: LoopbackOrigin, _ sentByteCount: () -> Int) async throws {
    var before = -1
    while before != sentByteCount() {
      before = sentByteCount()
      for _ in 0..<200 { #expect(try await session.data(from: origin.url("/small")).0.text == "small") }
    }
    #expect(before < Self.bufferedByteCount)
  }

  @Test("While a task is suspended, its transfer waits, and the body arrives once")
  func suspended() async throws {
    try await withLargeBody { fixture, origin, sentByteCount in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let task = session.dataTask(with: origin.url("/large"))
      task.resume()
      await delegate.wait { !$0.chunks.isEmpty }
      task.suspend()
      try await waitUntilFull(fixture.session(), origin, sentByteCount)
      #expect(delegate.events.completions.isEmpty)
      task.resume()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.events.completions == [nil])
      #expect(delegate.events.chunks.reduce(0) { $0 + $1.count } == Self.pieceCount * Self.piece.count)
      #expect(!fixture.cache.isCached(origin.url("/large")))
    }
  }

  @Test("A transfer waits for a delegate that is slower than the origin")
  func slowDelegate() async throws {
    try await withLargeBody { fixture, origin, sentByteCount in
      let delegate = WaitingDelegate()
      fixture.session(delegate: delegate).dataTask(with: origin.url("/large")).resume()
      try await waitUntilFull(fixture.session(), origin, sentByteCount)
      delegate.release()
      #expect(await delegate.byteCount() == Self.pieceCount * Self.piece.count)
    }
  }

  @Test("A body arrives at a delegate whose queue loses every barrier block, as Foundation's queues lose some")
  func lostBarriers() async throws {
    try await withLargeBody { fixture, origin, _ in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate, on: BarrierlessQueue())
      await delegate.run(session.dataTask(with: origin.url("/large")))
      #expect(delegate.events.completions == [nil])
      #expect(delegate.events.chunks.reduce(0) { $0 + $1.count } == Self.pieceCount * Self.piece.count)
    }
  }

  private final class BarrierlessQueue: OperationQueue, @unchecked Sendable {
    // Sendable as its superclass: it has no state of its own.
    override init() {
      super.init()
      maxConcurrentOperationCount = 1
    }

    override func addBarrierBlock(_ barrier: @escaping @Sendable () -> Void) {}
  }

  /// Waits in its first call for data.
  private final class WaitingDelegate: NSObject, URLSessionDataDelegate {
    private let gate = DispatchSemaphore(value: 0)
    private let received = Atomic(0)
    private let end = AsyncStream<Void>.makeStream()

    func release() { gate.signal() }

    func byteCount() async -> Int {
      for await _ in end.stream { break }
      return received.load(ordering: .relaxed)
    }

    func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
      if received.add(data.count, ordering: .relaxed).oldValue == 0 { gate.wait() }
    }

    func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
      end.continuation.yield()
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
  }
}
