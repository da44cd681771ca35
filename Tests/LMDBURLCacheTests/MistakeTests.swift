import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import ResponseStore
import Testing

/// Calls that cannot be meant throw, or log a line that says what to write instead.
@Suite("Mistakes of programs", .endsFixtures, .timeLimit(.minutes(1)))
struct MistakeTests {
  private func open(_ directory: URL, diskCapacity: Int) throws {
    _ = try LMDBURLCache(directory: directory, memoryCapacity: 1 << 20, diskCapacity: diskCapacity)
  }

  @Test(
    "A disk capacity that is too small throws, and the error has one that is large enough",
    arguments: [(1000, "1000 << 20"), (1, "1 << 20"), (500_000, "512 << 20"), ((1 << 20) - 1, "512 << 20")])
  func diskCapacity(_ capacity: Int, _ advice: String) throws {
    let directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
    defer { try? FileManager.default.removeItem(at: directory) }
    let error = #expect(throws: StoreError.self) { try open(directory, diskCapacity: capacity) }
    #expect(error?.code == .invalidArgument)
    #expect(error?.localizedDescription.contains("Capacities are in bytes: write \(advice) for") == true)
    // Nothing was created, and 0 is no disk tier.
    #expect(!FileManager.default.fileExists(atPath: directory.path))
    try open(directory, diskCapacity: 0)
  }

  @Test("Capacities in megabytes are logged where nothing can throw")
  func capacitiesInMegabytes() async throws {
    let fixture = try CacheFixture(memory: 32)
    let memory =
      "LMDBURLCache: No response fits the memory capacity of 32 bytes. Capacities are in bytes: write 32 << 20 for 32 MiB, "
      + "or 0 for no memory tier"
    #expect(fixture.logged.all == [memory])
    fixture.cache.memoryCapacity = 32
    #expect(fixture.logged.all == [memory, memory])
    fixture.cache.memoryCapacity = 1 << 20
    fixture.cache.diskCapacity = 512
    #expect(fixture.logged.all.count == 3)
    #expect(fixture.logged.all.last?.contains("Capacities are in bytes: write 512 << 20 for 512 MiB") == true)
    for capacity in [0, 16 << 20] { fixture.cache.diskCapacity = capacity }
    #expect(fixture.logged.all.count == 3)
  }

  @Test("A directory that is no file URL throws, also for inspection; a URL without a scheme is a path")
  func directory() throws {
    for text in ["http://example.com/cache", "https://u:secret@example.com/cache?secret", "ftp:/cache"] {
      let url = try #require(URL(string: text))
      for open in [{ try open(url, diskCapacity: 16 << 20) }, { _ = try CacheDirectory(existingAt: url) }] {
        let error = #expect(throws: StoreError.self, performing: open)
        #expect(error?.code == .invalidArgument)
        let description = error?.localizedDescription ?? ""
        #expect(description.contains("Pass a file URL, such as URL(fileURLWithPath:"))
        #expect(!description.contains("secret"))
      }
    }
    let path = memoryDirectory(for: 64 << 20)
    defer { try? FileManager.default.removeItem(atPath: path) }
    try open(try #require(URL(string: path)), diskCapacity: 16 << 20)
    #expect(FileManager.default.fileExists(atPath: path + "/data-1/data.mdb"))
  }

  @Test("The initializer that cannot throw uses memory only for a directory that is no file URL")
  func directoryWithoutThrowing() throws {
    let path = memoryDirectory(for: 64 << 20)
    let url = try #require(URL(string: "http://example.com" + path))
    let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 16 << 20, directory: url)
    #expect(cache.core.store == nil)
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(cache.isCached(url))
    #expect(!FileManager.default.fileExists(atPath: path))
  }

  @Test("A session that has the cache without caching(with:) is logged once, and one with it is not")
  func sessionWithoutCaching() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "a")
    } _: { (fixture, origin) async throws in
      #expect(try await fixture.session().data(from: origin.url("/a")).0.text == "a")
      #expect(
        try await fixture.cache.data(from: origin.url("/a"), by: URLSession(configuration: .ephemeral)).text == "a")
      #expect(fixture.logged.all == [])
      let configuration = URLSessionConfiguration.ephemeral
      configuration.urlCache = fixture.cache
      for _ in 0..<2 {
        let session = URLSession(configuration: configuration)
        for _ in 0..<2 { _ = try await session.data(from: origin.url("/b")) }
        session.finishTasksAndInvalidate()
      }
      #expect(origin.requestCount == 1 + 4)
      #expect(!fixture.cache.isCached(origin.url("/b")))
      #expect(fixture.logged.all.count == 1)
      let line = fixture.logged.all.first ?? ""
      #expect(line.hasSuffix("Write URLSession(configuration: configuration.caching(with: cache))"))
    }
  }

  @Test("An error for a request without a URL says so, over each way")
  func requestWithoutURL() async throws {
    let fixture = try CacheFixture()
    var request = URLRequest(url: URL(string: "http://example.com/")!)
    request.url = nil
    let (cache, nothing) = (fixture.cache, request)
    let session = fixture.session()
    let ways: [@Sendable () async throws -> Void] = [
      { _ = try await cache.data(for: nothing) }, { _ = try await cache.load(nothing) },
      { _ = try await cache.bytes(for: nothing) }, { _ = try await cache.data(for: nothing, from: session) },
    ]
    for way in ways {
      let error = await #expect(throws: URLError.self) { try await way() }
      #expect(error?.code == .badURL)
      #expect(error?.localizedDescription.contains("it has no URL. Set an absolute URL") == true)
    }
  }

  @Test("An error for a URL without a host says what to use instead")
  func urlWithoutHost() async throws {
    let fixture = try CacheFixture()
    for text in ["http:///a", "/a"] {
      let request = URLRequest(url: try #require(URL(string: text)))
      let error = await #expect(throws: URLError.self) { try await fixture.cache.load(request) }
      let description = error?.localizedDescription ?? ""
      #expect(description.contains("Use an http or https URL with a host"), "\(text)")
    }
  }

  @Test("An error for a policy that forbids loading says which policy loads, over each way")
  func nothingStored() async throws {
    let fixture = try CacheFixture()
    let request = URLRequest(URL(string: "http://example.com/")!, policy: .returnCacheDataDontLoad)
    let (cache, session) = (fixture.cache, fixture.session())
    let ways: [@Sendable () async throws -> Void] = [
      { _ = try await cache.data(for: request) }, { _ = try await cache.load(request) },
      { _ = try await cache.bytes(for: request) }, { _ = try await cache.data(for: request, from: session) },
      { _ = try await session.data(for: request) },
    ]
    for way in ways {
      let error = await #expect(throws: URLError.self) { try await way() }
      #expect(error?.code == .resourceUnavailable)
      #expect(error?.localizedDescription.contains("Use returnCacheDataElseLoad or useProtocolCachePolicy") == true)
    }
  }

  @Test("An error for a delegate that redirects to a request without a URL says what to give")
  func redirectToNothing() async throws {
    try await withCache {
      $0.path == "/from" ? Reply(302, [("Location", "/to")]) : Reply(200, [], "to")
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate(follow: { request in
        var request = request
        request.url = nil
        return request
      })
      let error = await #expect(throws: URLError.self) {
        try await fixture.cache.data(from: origin.url("/from"), by: fixture.session(delegate: delegate))
      }
      #expect(error?.code == .badURL)
      #expect(error?.localizedDescription.contains("Give the proposed request") == true)
    }
  }
}
