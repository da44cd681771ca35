import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

@Suite("Cookbook")
struct CookbookTests {
  @Test("The article's code is the tested code")
  func matchesItsSource() throws {
    let folder = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
    let root = (0..<3).reduce(folder) { url, _ in url.deletingLastPathComponent() }
    let article = try String(
      contentsOf: root.appendingPathComponent("Sources/LMDBURLCache/LMDBURLCache.docc/Cookbook.md"), encoding: .utf8)
    let blocks = article.components(separatedBy: "```swift\n").dropFirst().map { $0.components(separatedBy: "```")[0] }
    let source = try String(contentsOf: folder.appendingPathComponent("CookbookRecipes.swift"), encoding: .utf8)
    #expect(blocks.joined(separator: "\n") == source, "Change Cookbook.md and CookbookRecipes.swift together")
  }

  @Test("A JSON API is asked once in an hour although it forbids caching")
  func hourLongResponses() async throws {
    try await withOrigin([("Cache-Control", "no-store"), ("Vary", "*"), ("Set-Cookie", "a=b")]) { origin, directory in
      let cache = try openWithHourLongResponses(of: "127.0.0.1", in: directory.appendingPathComponent("a"))
      for token in 1...2 { _ = try await cache.data(from: origin.url("/prices?token=\(token)")) }
      #expect(origin.requestCount == 1)
      let others = try openWithHourLongResponses(of: "api.example.com", in: directory.appendingPathComponent("b"))
      for _ in 1...2 { _ = try await others.data(from: origin.url("/prices")) }
      #expect(origin.requestCount == 3)
    }
  }

  @Test("A response that one process has stored is a hit in another process")
  func workers() async throws {
    try await withOrigin { origin, directory in
      setenv("COOKBOOK_DIRECTORY", directory.path, 1)
      setenv("COOKBOOK_URL", origin.url("/page").absoluteString, 1)
      await #expect(processExitsWith: .success) {
        let environment = ProcessInfo.processInfo.environment
        let cache = try openInWorker(URL(fileURLWithPath: environment["COOKBOOK_DIRECTORY"]!))
        _ = try await cache.data(from: URL(string: environment["COOKBOOK_URL"]!)!)
        precondition(cache.flush())
      }
      unsetenv("COOKBOOK_DIRECTORY")
      unsetenv("COOKBOOK_URL")
      let result = try await openInWorker(directory).load(URLRequest(url: origin.url("/page")))
      #expect(result.source == .hit)
      #expect(origin.requestCount == 1)
    }
  }

  @Test("After a deployment each response is validated, and one that has not changed is kept")
  func deployment() async throws {
    try await withOrigin { origin, directory in
      let cache = try openInWorker(directory)
      _ = try await cache.data(from: origin.url("/page"))
      try await refreshAfterDeployment(of: "127.0.0.1", in: cache)
      let result = try await cache.load(URLRequest(url: origin.url("/page")))
      #expect(result.source == .revalidated)
      #expect(origin.requestCount == 2)
    }
  }

  @Test("When a product changes, the pages that show it are purged, and no others")
  func products() async throws {
    let handler: LoopbackOrigin.Handler = { request in
      let keys = request.path == "/list" ? "product-41 product-42" : "product-\(request.path.dropFirst())"
      return Reply(200, [("Cache-Control", "max-age=600"), ("Surrogate-Key", keys)], "a page")
    }
    try await withOrigin(handler) { origin, directory in
      let cache = try openForShop(in: directory)
      let urls = ["/list", "/42", "/41", "/421"].map { origin.url($0) }
      for url in urls { _ = try await cache.data(from: url) }
      try await productHasChanged(42, in: cache)
      #expect(urls.map { cache.isCached($0) } == [false, false, true, true])
    }
  }

  @Test("A stale response is served while the origin responds with an error, and after it has stopped")
  func failingOrigin() async throws {
    try await withOrigin([("Cache-Control", "max-age=0"), ("ETag", "\"1\"")]) { origin, directory in
      let cache = try openForFailingOrigin(in: directory)
      let request = URLRequest(url: origin.url("/page"))
      _ = try await cache.load(request)
      origin.answer { _ in Reply(503) }
      #expect(try await cache.load(request).source == .staleOnError)
      origin.stop()
      let result = try await cache.load(request)
      #expect(result.source == .staleOnError)
      #expect(result.data == Data("a page".utf8))
    }
  }

  @Test("A tenant does not get another tenant's response")
  func tenants() async throws {
    try await withOrigin { origin, directory in
      let cache = try openForTenants(in: directory)
      for tenant in ["a", "b", "a"] {
        var request = URLRequest(url: origin.url("/page"))
        request.setValue(tenant, forHTTPHeaderField: "X-Tenant")
        _ = try await cache.data(for: request)
      }
      #expect(origin.requestCount == 2)
    }
  }

  @Test("A shared cache makes one request of many, and stores no private response")
  func slowService() async throws {
    let gate = Gate()
    let handler: LoopbackOrigin.Handler = { request in
      let control = request.target == "/mine" ? "private, max-age=600" : "max-age=600"
      return Reply(200, [("Cache-Control", control)], "a page").held(at: gate, afterBodyBytes: 0)
    }
    try await withOrigin(handler) { origin, directory in
      let gateway = try Gateway(service: "http://127.0.0.1:\(origin.port)", directory: directory.path)
      async let pages = withThrowingTaskGroup(of: Int.self) { group in
        for _ in 0..<20 { group.addTask { try await gateway.respond(to: "GET", "/slow", []).head.status } }
        return try await group.reduce(into: []) { $0.append($1) }
      }
      #expect(await origin.waitForRequests(count: 1))
      gate.open()
      #expect(try await pages == Array(repeating: 200, count: 20))
      #expect(origin.requestCount == 1)
      for _ in 0..<2 { _ = try await gateway.respond(to: "GET", "/mine", []) }
      #expect(origin.requestCount == 3)
      for target in ["http://example.com/", "@example.com/", ""] {
        #expect(try await gateway.respond(to: "GET", target, []).head.status == 400, "\(target)")
      }
      #expect(origin.requestCount == 3)
    }
  }

  @Test(
    "A client of the gateway gets fields that are true for the content that it gets",
    .enabled(if: CurlCommand.isInstalled), arguments: [true, false])
  func gateway(decodes: Bool) async throws {
    // "hello", compressed by gzip.
    let coded = try #require(Data(base64Encoded: "H4sIAAAAAAACA8tIzcnJBwCGphA2BQAAAA=="))
    let handler: LoopbackOrigin.Handler = { request in
      if request.method == "POST" { return Reply(201, body: request.body) }
      let isCoded = request["Accept-Encoding"]?.contains("gzip") == true
      var fields = [
        ("Cache-Control", "max-age=600"), ("Vary", "Accept-Encoding"), ("ETag", isCoded ? "\"gzip\"" : "\"plain\""),
        ("Content-Type", "text/x-greeting"), ("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"),
      ]
      if isCoded { fields.append(("Content-Encoding", "gzip")) }
      // Its chunks are of the connection with the origin, too.
      return Reply(200, fields, body: isCoded ? coded : Data("hello".utf8)).chunked()
    }
    try await withOrigin(handler) { origin, directory in
      var configuration = CurlTransport.Configuration()
      configuration.decodesContent = decodes
      let gateway = try Gateway(
        service: "http://127.0.0.1:\(origin.port)", directory: directory.path,
        transport: CurlTransport(configuration))
      let server = try GatewayServer(gateway)
      defer { server.stop() }
      let url = server.url("/page")
      let length = String(decodes ? 5 : coded.count)
      var tag = ""
      for round in ["miss", "hit"] {
        let response = try CurlCommand.run(["--compressed"], url)
        #expect(response.status == 200 && response.text == "hello", "\(round)")
        #expect(response["Content-Encoding"] == (decodes ? nil : "gzip"), "\(round)")
        #expect(response["Content-Length"] == length, "\(round)")
        #expect(response["Content-Type"] == "text/x-greeting" && response["X-Hop"] == nil, "\(round)")
        #expect(response["Transfer-Encoding"] == nil, "\(round)")
        #expect((response["Age"] != nil) == (round == "hit"), "\(round)")
        tag = try #require(response["ETag"])
        #expect(tag.hasPrefix("W/") == decodes, "\(round)")
      }
      #expect(origin.requestCount == 1)

      let head = try CurlCommand.run(["--compressed", "--head"], url)
      #expect(head.status == 200 && head.text == "" && head["ETag"] == tag)
      #expect(head["Content-Encoding"] == (decodes ? nil : "gzip"))
      #expect(head["Content-Length"].map { $0 == length } ?? true)
      let unchanged = try CurlCommand.run(["--compressed", "--header", "If-None-Match: \(tag)"], url)
      #expect(unchanged.status == 304 && unchanged.text == "" && unchanged["ETag"] == tag)
      // A part of the coded bytes, which curl cannot decode. Of decoded content, the cache has no parts.
      let accepted = try #require(origin.requests.first?["Accept-Encoding"])
      let part = try CurlCommand.run(["--range", "1-3", "--header", "Accept-Encoding: \(accepted)"], url)
      #expect(part.status == (decodes ? 200 : 206) && part["Content-Length"] == (decodes ? "5" : "3"))
      #expect(part["Content-Range"] == (decodes ? nil : "bytes 1-3/\(length)"))
      #expect(part["Content-Encoding"] == (decodes ? nil : "gzip"))
      #expect(part.body == (decodes ? Data("hello".utf8) : coded[1...3]))
      #expect(origin.requestCount == 1)

      let plain = try CurlCommand.run([], server.url("/plain"))
      #expect(plain.status == 200 && plain.text == "hello" && plain["Content-Encoding"] == nil)
      #expect(plain["Content-Length"] == "5")
      let plainPart = try CurlCommand.run(["--range", "0-2"], server.url("/plain"))
      #expect(plainPart.text == (decodes ? "hello" : "hel"))
      let posted = try CurlCommand.run(["--data", "content"], url)
      #expect(posted.status == 201 && posted.text == "content")
    }
  }

  @Test("The report names the rule that kept a response from being stored")
  func why() async throws {
    try await withOrigin([("Cache-Control", "no-store")]) { origin, directory in
      let cache = try openInWorker(directory)
      let text = try await report(on: origin.url("/page"), through: cache)
      #expect(text.hasPrefix("/page: miss, not stored: no-store (RFC 9111 "))
    }
    try await withOrigin { origin, directory in
      let cache = try openInWorker(directory)
      _ = try await cache.data(from: origin.url("/page"))
      #expect(try await report(on: origin.url("/page"), through: cache) == "/page: hit, stored or from the cache")
    }
  }

  @Test("In a test without a network, the clock of the test decides what is fresh")
  func stub() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("cookbook-\(UUID().uuidString)")
    let clock = TestClock()
    let cache = try openForTest(in: directory) { clock.now }
    let request = URLRequest(url: URL(string: "https://www.example.com/page")!)
    #expect(try await cache.load(request).source == .miss)
    #expect(try await cache.load(request).source == .hit)
    clock.advance(by: 61)
    #expect(try await cache.load(request).source == .miss)
    #expect(!FileManager.default.fileExists(atPath: directory.path))
  }

  private final class TestClock: Sendable {
    private let time = Mutex(Date(timeIntervalSince1970: 1_800_000_000))
    var now: Date { time.withLock { $0 } }
    func advance(by seconds: TimeInterval) { time.withLock { $0 += seconds } }
  }

  // MARK: Fixture

  /// Runs a test with an origin and an empty directory. The origin has one page, which is fresh for ten minutes.
  private func withOrigin(
    _ fields: [(String, String)] = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")],
    _ body: (LoopbackOrigin, URL) async throws -> Void
  ) async throws {
    try await withOrigin(
      { request in
        if request["If-None-Match"] == "\"1\"" { return Reply(304, fields) }
        return Reply(200, fields, "a page")
      }, body)
  }

  private func withOrigin(
    _ handler: @escaping LoopbackOrigin.Handler, _ body: (LoopbackOrigin, URL) async throws -> Void
  ) async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("cookbook-\(UUID().uuidString)")
    let origin = try LoopbackOrigin(handler: handler)
    defer {
      origin.stop()
      // A test that threw has no directory.
      try? FileManager.default.removeItem(at: directory)
    }
    try await body(origin, directory)
  }
}
