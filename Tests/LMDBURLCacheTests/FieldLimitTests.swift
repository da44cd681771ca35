import Foundation
import FoundationNetworking
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

// Sums of many fields and tasks, whose cost no result shows.
@testable import LMDBURLCache

/// Responses with very many header fields, and sessions with very many tasks.
@Suite("Very many fields and tasks")
struct FieldLimitTests {
  @Test("A response with too many fields reaches its caller and changes no stored response")
  func manyFields() async throws {
    let many = (0..<1_100).map { ("x-\($0)", "v") }
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")]
      if request["If-None-Match"] != nil { return Reply(304, fields + many) }
      return Reply(200, request.path == "/many" ? fields + many : fields, request.path)
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let session = fixture.session()
      for usesSession in [false, true] {
        let request = URLRequest(url: origin.url("/many"))
        let (data, response) = try await usesSession ? session.data(for: request) : cache.data(for: request)
        #expect(data.text == "/many")
        #expect(response.field("X-1099") == "v")
        #expect(!cache.isCached(origin.url("/many")))
      }
      // A 304 with too many fields is ignored, and the response is fetched again.
      let few = origin.url("/few")
      #expect(try await cache.data(from: few).0.text == "/few")
      fixture.clock.advance(by: 100)
      let count = origin.requestCount
      #expect(try await cache.data(from: few).0.text == "/few")
      #expect(origin.requestCount == count + 2)
      #expect(cache.cachedResponse(for: URLRequest(url: few))?.response.field("X-1") == nil)
    }
  }

  @Test("A response with too many fields is not stored, neither manually nor by a delegate that adds them")
  func manyFieldsByHand() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { (fixture, origin) async throws in
      @Sendable func stored(_ url: URL, _ count: Int) -> CachedURLResponse {
        let fields = Dictionary(uniqueKeysWithValues: (1..<count).map { ("X-\($0)", "v") })
        return cached(url, "changed", fields.merging(["Cache-Control": "max-age=600"]) { $1 })
      }
      for count in [1000, 1001, 16_000] {
        let url = origin.url("/hand/\(count)")
        fixture.cache.storeCachedResponse(stored(url, 10), for: URLRequest(url: url))
        fixture.cache.storeCachedResponse(stored(url, count), for: URLRequest(url: url))
        let found = fixture.cache.cachedResponse(for: URLRequest(url: url))?.response.field("X-999")
        #expect(found == (count == 1000 ? "v" : nil), "\(count) fields")
        let other = origin.url("/delegate/\(count)")
        let delegate = RecordingDelegate(willCache: { _ in stored(other, count) })
        await delegate.run(fixture.session(delegate: delegate).dataTask(with: other))
        #expect(delegate.body.text == "body")
        #expect(fixture.cache.isCached(other) == (count == 1000), "\(count) fields")
      }
    }
  }

  @Test("Lines with one name are joined under the first spelling, also among very many", arguments: [3, 200])
  func joinedFields(_ count: Int) {
    var joined = FoundationFields()
    for number in 0..<count { joined.append(name: "X-Name-\(number)", value: "a") }
    for number in 0..<count { joined.append(name: "x-nAME-\(number)", value: "b") }
    #expect(joined.fields.count == count)
    #expect(joined.fields["X-Name-\(count - 1)"] == "a, b")
    #expect(joined.fields["X-Name-0"] == "a, b")
  }

  /// The tasks of a session; counts the accesses.
  private struct CountedTable: TaskTable, CustomReflectable {
    enum Behavior { case callDelegate }

    final class Accesses: Sendable {
      let count = Atomic(0)
    }

    let accesses = Accesses()

    func entry(of identifier: Int) -> Any? {
      accesses.count.add(1, ordering: .relaxed)
      return identifier < 10_000 ? Behavior.callDelegate : nil
    }

    var customMirror: Mirror {
      let entries = (0..<10_000).lazy.map { [accesses] identifier -> Any in
        accesses.count.add(1, ordering: .relaxed)
        return (key: identifier, value: Behavior.callDelegate)
      }
      return Mirror(self, unlabeledChildren: entries)
    }
  }

  @Test("Finding the recipient of a task's data takes one access, regardless of the number of tasks")
  func oneAccess() {
    let table = CountedTable()
    #expect(TaskReflection.isDelegateDriven(9_999, among: table))
    #expect(table.accesses.count.load(ordering: .relaxed) == 1)
    #expect(!TaskReflection.isDelegateDriven(10_000, among: table))
    #expect(table.accesses.count.load(ordering: .relaxed) == 2)
  }

  @Test("The recipient of a task's data is found among thousands of tasks")
  func manyTasks() async throws {
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: .ephemeral, delegate: delegate, delegateQueue: nil)
    let url = try #require(URL(string: "http://127.0.0.1:1/"))
    for _ in 0..<3000 { _ = session.dataTask(with: url) }
    let (driven, handled) = (session.dataTask(with: url), session.dataTask(with: url) { _, _, _ in })
    // The session registers tasks on its queue, before the following block runs there.
    await withCheckedContinuation { continuation in session.getAllTasks { _ in continuation.resume() } }
    for _ in 0..<1000 {
      #expect(TaskReflection.isDelegateDriven(driven, in: session))
      #expect(!TaskReflection.isDelegateDriven(handled, in: session))
    }
  }
}
