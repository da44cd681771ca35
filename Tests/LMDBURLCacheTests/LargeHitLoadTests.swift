import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Hits of stored bodies of more than 1 MiB by loads that return bytes in memory.
@Suite("Loads of large stored bodies", .timeLimit(.minutes(1)))
struct LargeHitLoadTests {
  private static let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")]
  private static let body = Data((0..<40).flatMap { Data(repeating: UInt8($0), count: 1 << 20) })

  private func withStored(_ test: (CacheFixture, URL) async throws -> Void) async throws {
    // The body is stored also on a busy machine.
    let configure: (inout LMDBURLCache.Options) -> Void = { $0.caching.storageWaitLimit = .seconds(60) }
    try await withCache(
      disk: 256 << 20, configure: configure, origin: { _ in Reply(200, Self.fields, body: Self.body) }
    ) { fixture, origin in
      let url = origin.url("/large")
      for try await _ in try await fixture.cache.bytes(for: URLRequest(url: url)).0 {}
      fixture.cache.flush()
      try await test(fixture, url)
      #expect(origin.requestCount == 1)
    }
  }

  /// Returns the growth of the process's resident memory at its peak, in bytes.
  private func peak(_ body: () async throws -> Void) async throws -> Int {
    func value(_ name: String) throws -> Int {
      let status = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
      let line = try #require(status.split(separator: "\n").first { $0.hasPrefix(name) })
      return try #require(Int(line.filter(\.isNumber))) * 1024
    }
    // Resets the peak.
    try Data("5".utf8).write(to: URL(fileURLWithPath: "/proc/self/clear_refs"))
    let before = try value("VmRSS:")
    try await body()
    return try value("VmHWM:") - before
  }

  private enum Way: CaseIterable {
    case data, load, session, delegate

    func load(_ request: URLRequest, _ fixture: CacheFixture) async throws -> (Data, Int?) {
      switch self {
      case .data:
        let (data, response) = try await fixture.cache.data(for: request)
        return (data, response.status)
      case .load:
        let result = try await fixture.cache.load(request)
        return (result.data, result.response.status)
      case .session:
        let (data, response) = try await fixture.session().data(for: request)
        return (data, response.status)
      case .delegate:
        let delegate = RecordingDelegate()
        await delegate.run(fixture.session(delegate: delegate).dataTask(with: request))
        return (delegate.body, delegate.events.responses.last)
      }
    }
  }

  @Test("A range, a HEAD and a 304 copy no other bytes into memory", arguments: Way.allCases)
  private func parts(way: Way) async throws {
    try await withStored { fixture, url in
      let growth = try await peak {
        let part = try await way.load(URLRequest(url, ["Range": "bytes=1048570-1048579"]), fixture)
        #expect(part == (Data([0, 0, 0, 0, 0, 0, 1, 1, 1, 1]), 206))
        let head = try await way.load(URLRequest(url, method: "HEAD"), fixture)
        #expect(head == (Data(), 200))
        let confirmation = try await way.load(URLRequest(url, ["If-None-Match": "\"1\""]), fixture)
        #expect(confirmation == (Data(), 304))
      }
      #expect(growth < 20 << 20)
    }
  }

  @Test("The whole body is in memory once", arguments: Way.allCases)
  private func whole(way: Way) async throws {
    try await withStored { fixture, url in
      let growth = try await peak {
        let loaded = try await way.load(URLRequest(url: url), fixture)
        #expect(loaded == (Self.body, 200))
      }
      // The delegate and Foundation collect what they receive, and then join it.
      if way == .data || way == .load { #expect(growth < 60 << 20) }
    }
  }

  @Test("Methods of URLCache return the whole body")
  func cachedResponse() async throws {
    try await withStored { fixture, url in
      let request = URLRequest(url: url)
      #expect(fixture.cache.cachedResponse(for: request)?.data == Self.body)
      let task = fixture.session().dataTask(with: request)
      var found: CachedURLResponse?
      fixture.cache.getCachedResponse(for: task) { found = $0 }
      #expect(found?.data == Self.body)
      #expect(found?.response.status == 200)
      // As with any other response, it can be stored again.
      let response = try #require(found)
      fixture.cache.storeCachedResponse(response, for: request)
      fixture.cache.flush()
      #expect(fixture.cache.cachedResponse(for: request)?.data == Self.body)
    }
  }

  @Test("A load whose stored body is replaced while it is read begins again", arguments: [true, false])
  func replaced(usesSession: Bool) async throws {
    try await withCache(disk: 128 << 20, origin: { _ in .init(500, [], "") }) { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/large"))
      @Sendable func store(_ number: Int) {
        let body = Data(repeating: UInt8(number), count: 12 << 20)
        cache.storeCachedResponse(
          CachedURLResponse(
            response: httpResponse(origin.url("/large"), ["Cache-Control": "max-age=600"]), data: body),
          for: request)
        // Lookups find a response in the write queue in memory.
        cache.flush()
      }
      store(0)
      let session = fixture.session()
      for number in 1...20 {
        async let replacement: Void = store(number)
        let (data, response) = try await usesSession ? session.data(for: request) : cache.data(for: request)
        #expect(response.status == 200)
        #expect(data.count == 12 << 20 && Set(data.prefix(1) + data.suffix(1)).count == 1)
        await replacement
      }
      #expect(origin.requestCount == 0)
    }
  }
}
