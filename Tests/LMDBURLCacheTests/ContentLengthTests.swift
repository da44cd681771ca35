import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// The length that a response announces, and the progress of a task.
@Suite("Content length and progress", .timeLimit(.minutes(1)))
struct ContentLengthTests {
  static let plain = Data(repeating: UInt8(ascii: "a"), count: 100_000)
  /// The same content in gzip.
  static let gzipped = Data(
    base64Encoded:
      "H4sIAAAAAAACA+3BMQEAAADCoKzrX8IaHkABAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
      + "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAArwaH+uIboIYBAA==")!

  private func reply(isCoded: Bool) -> Reply {
    Reply(
      200, [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")] + (isCoded ? [("Content-Encoding", "gzip")] : []),
      body: isCoded ? Self.gzipped : Self.plain)
  }

  @Test(
    "The length of decoded content is unknown, and the fields are the origin's",
    arguments: RepresentationTests.Way.allCases, [true, false])
  func length(_ way: RepresentationTests.Way, isCoded: Bool) async throws {
    try await withCache(origin: { _ in reply(isCoded: isCoded) }) { fixture, origin in
      let caches = try RepresentationTests.Caches(fixture.directory.appendingPathComponent("forms"))
      let isDecoded = isCoded && way != .undecoded
      let sentByteCount = (isCoded ? Self.gzipped : Self.plain).count
      let request = URLRequest(url: origin.url("/a"))
      for _ in 0..<2 {
        let (data, loaded) = try await way.load(request, caches)
        let response = try #require(loaded as? HTTPURLResponse)
        #expect(data == (isCoded && !isDecoded ? Self.gzipped : Self.plain))
        #expect(response.expectedContentLength == (isDecoded ? -1 : Int64(sentByteCount)))
        #expect(response.field("Content-Length") == String(sentByteCount))
        #expect((response.copy() as? HTTPURLResponse)?.expectedContentLength == response.expectedContentLength)
        let archive = try NSKeyedArchiver.archivedData(withRootObject: response, requiringSecureCoding: true)
        let restored = try NSKeyedUnarchiver.unarchivedObject(ofClass: HTTPURLResponse.self, from: archive)
        #expect(restored?.field("Content-Length") == String(sentByteCount))
      }
      #expect(origin.requestCount == 1)
    }
  }

  @Test("The length of a decoded response is unknown in URLCache's methods, in memory and from disk")
  func lookup() async throws {
    try await withCache(origin: { _ in reply(isCoded: true) }) { fixture, origin in
      let request = URLRequest(url: origin.url("/a"))
      let lengths = Mutex<[Int64]>([])
      let delegate = RecordingDelegate(willCache: { proposed in
        lengths.withLock { $0.append(proposed.response.expectedContentLength) }
        return proposed
      })
      await delegate.run(fixture.session(delegate: delegate).dataTask(with: request))
      #expect(lengths.withLock { $0 } == [-1])
      #expect(fixture.cache.cachedResponse(for: request)?.response.expectedContentLength == -1)
      try fixture.reopen()
      let stored = try #require(fixture.cache.cachedResponse(for: request))
      #expect(stored.response.expectedContentLength == -1)
      #expect(stored.response.field("Content-Length") == String(Self.gzipped.count))
      #expect(stored.data == Self.plain)
    }
  }

  /// A delegate that records a task's progress at each chunk.
  private final class ProgressDelegate: NSObject, URLSessionDataDelegate {
    struct Step: Equatable {
      let completed: Int64
      let total: Int64
    }

    private let state = Mutex<(steps: [Step], ended: CheckedContinuation<Void, Never>?)>(([], nil))

    var steps: [Step] { state.withLock { $0.steps } }

    func run(_ task: URLSessionTask) async {
      await withCheckedContinuation { continuation in
        state.withLock { $0.ended = continuation }
        task.resume()
      }
    }

    private func record(_ task: URLSessionTask) {
      let step = Step(completed: task.progress.completedUnitCount, total: task.progress.totalUnitCount)
      state.withLock { $0.steps.append(step) }
    }

    func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) { record(dataTask) }

    func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
      record(task)
      state.withLock { $0.ended.take() }?.resume()
    }
  }

  @Test(
    "The progress of a task never exceeds its total, and ends with it", arguments: BytesTests.TransportKind.allCases,
    [true, false])
  func progress(_ transport: BytesTests.TransportKind, isCoded: Bool) async throws {
    let configure = { (options: inout LMDBURLCache.Options) in
      switch transport {
      case .urlSession: options.transport = .urlSession(.ephemeral)
      case .curl: options.transport = .curl(CurlTransport.Configuration())
      }
    }
    try await withCache(configure: configure, origin: { _ in reply(isCoded: isCoded) }) { fixture, origin in
      let delegate = ProgressDelegate()
      let task = fixture.session(delegate: delegate).dataTask(with: origin.url("/a"))
      await delegate.run(task)
      #expect(delegate.steps.count > 1)
      for step in delegate.steps {
        #expect(step.total == -1 || step.completed <= step.total)
        #expect(isCoded || step.total == Int64(Self.plain.count))
      }
      let count = Int64(Self.plain.count)
      #expect(delegate.steps.last == ProgressDelegate.Step(completed: count, total: count))
    }
  }
}
