import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization
import Testing

/// Random concurrent callers, compared with an origin whose resources have versions.
@Suite("Concurrency model", .timeLimit(.minutes(1)))
struct ConcurrencyModelTests {
  private final class Origin: Sendable {
    let versions = Mutex([String: Int]())
    /// The changes whose responses have reached their callers.
    let acknowledged = Mutex([String: Int]())
    let random: Mutex<SeededGenerator>

    init(seed: UInt64) {
      random = Mutex(SeededGenerator(seed: seed))
    }

    func draw(_ range: Range<Int>) -> Int {
      random.withLock { Int.random(in: range, using: &$0) }
    }

    func pause() async {
      for _ in 0..<draw(0..<6) { await Task.yield() }
    }
  }

  // Guarantee: a GET that starts after the response to a change never gets an older version.
  // Every call ends. A call fails only if it is cancelled or the origin fails.
  @Test("No request gets a version older than the last completed change", arguments: UInt64(1)...12)
  func model(seed: UInt64) async throws {
    let fixture = Fixture()
    let origin = Origin(seed: seed)
    let transport = ScriptedTransport { request, _ in
      let path = request.head.url.path()
      await origin.pause()
      if origin.draw(0..<20) == 0 { throw Unreachable() }
      if request.head.method == "POST" {
        origin.versions.withLock { $0[path, default: 0] += 1 }
        await origin.pause()
        return fixture.response(204)
      }
      // The origin reads the version before the response arrives.
      let version = origin.versions.withLock { $0[path, default: 0] }
      await origin.pause()
      let tag = "\"\(version)\""
      let lifetime = ["max-age=60", "max-age=60", "no-cache", "no-store"][origin.draw(0..<4)]
      let fields = [("Cache-Control", lifetime), ("ETag", tag)]
      if request.head.fields["If-None-Match"] == tag { return fixture.response(304, "", fields) }
      let head = fixture.response(200, "", fields).head
      guard origin.draw(0..<2) == 0 else {
        return IncomingResponse(head: head, body: ResponseBodyStream(Data("\(version)".utf8)))
      }
      let parts = Mutex(["", "\(version)", ""])
      return IncomingResponse(
        head: head,
        body: ResponseBodyStream(next: {
          await origin.pause()
          try Task.checkCancellation()
          return parts.withLock { $0.isEmpty ? nil : Data($0.removeFirst().utf8) }
        }))
    }

    await withTaskGroup { group in
      for _ in 0..<300 {
        let path = "/\(origin.draw(0..<3))"
        let isChange = origin.draw(0..<10) == 0
        let isCancelled = origin.draw(0..<8) == 0
        group.addTask {
          await origin.pause()
          let request = get("http://example.com\(path)", method: isChange ? "POST" : "GET")
          let task = Task {
            let known = origin.acknowledged.withLock { $0[path, default: 0] }
            let response = try await fixture.client.respond(to: request, over: transport)
            let text = try await response.text()
            if isChange {
              origin.acknowledged.withLock { $0[path, default: 0] += 1 }
            } else {
              let version = try #require(Int(text))
              #expect(version >= known, "seed \(seed)")
            }
          }
          if isCancelled {
            await origin.pause()
            task.cancel()
          }
          do { try await task.value } catch is Unreachable {} catch is CancellationError where isCancelled {} catch {
            Issue.record(error, "seed \(seed)")
          }
        }
      }
    }
    await fixture.client.finishBackgroundWork()
    #expect(fixture.client.statistics.waiting == 0)
    for path in 0..<3 {
      // After all random requests, the client returns the current version.
      while true {
        do {
          let response = try await fixture.client.respond(to: get("http://example.com/\(path)"), over: transport)
          #expect(
            try await Int(response.text()) == origin.versions.withLock { $0["/\(path)", default: 0] }, "seed \(seed)")
          break
        } catch is Unreachable {}
      }
    }
  }
}
