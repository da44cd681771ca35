import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Loads without a session, over libcurl.
@Suite("Loads over libcurl", .timeLimit(.minutes(1)))
struct CurlLoadTests {
  private func withCurl(
    _ configure: (inout LMDBURLCache.Options) -> Void = { _ in }, origin: @escaping LoopbackOrigin.Handler,
    _ body: (LMDBURLCache, LoopbackOrigin) async throws -> Void
  ) async throws {
    try await withCache(
      configure: { options in
        var configuration = CurlTransport.Configuration()
        configuration.proxy = .none
        options.transport = .curl(configuration)
        configure(&options)
      }, origin: origin
    ) { fixture, origin in try await body(fixture.cache, origin) }
  }

  private let kept = [("Cache-Control", "max-age=600")]

  /// Returns the code of the `URLError` that a load throws, or nil.
  private func code(_ body: () async throws -> Void) async -> URLError.Code? {
    do {
      try await body()
      return nil
    } catch {
      return (error as? URLError)?.code
    }
  }

  @Test("A miss is fetched over libcurl and stored, and the next request is a hit")
  func missAndHit() async throws {
    try await withCurl(origin: { [kept] request in Reply(200, kept, request.headerLines.joined(separator: "|")) }) {
      cache, origin in
      let (data, response) = try await cache.data(for: URLRequest(origin.url("/a"), ["X-A": "1"]))
      // The default User-Agent, like a session's, but with libcurl's version.
      #expect(data.text.contains("User-Agent: \(ProcessInfo.processInfo.processName) (unknown version)|"))
      #expect(data.text.contains("Accept-Encoding: gzip, deflate"))
      #expect(response.status == 200)
      let result = try await cache.load(URLRequest(origin.url("/a"), ["X-A": "1"]))
      #expect(result.data == data)
      #expect(result.source == .hit)
      #expect(origin.requestCount == 1)
    }
  }

  @Test("Redirects are followed, and each hop is stored with its body")
  func redirects() async throws {
    let handler: LoopbackOrigin.Handler = { request in
      request.path == "/from"
        ? Reply(301, [("Location", "/to"), ("Cache-Control", "max-age=600")], "moved")
        : Reply(200, [("Cache-Control", "max-age=600")], "there")
    }
    try await withCurl(origin: handler) { cache, origin in
      for _ in 0..<2 {
        let (data, response) = try await cache.data(from: origin.url("/from"))
        #expect(data.text == "there")
        #expect(response.url == origin.url("/to"))
      }
      #expect(origin.requestCount == 2)
      let hop = cache.cachedResponse(for: URLRequest(url: origin.url("/from")))
      #expect(hop?.data.text == "moved")
    }
  }

  @Test("Content is sent from memory, and a stream is sent over a session")
  func content() async throws {
    try await withCurl(origin: { Reply(200, [], body: $0.body) }) { cache, origin async throws in
      var request = URLRequest(origin.url("/a"), method: "POST")
      request.httpBody = Data("content".utf8)
      #expect(try await cache.data(for: request).0.text == "content")
      var streaming = URLRequest(origin.url("/a"), method: "POST")
      streaming.httpBodyStream = InputStream(data: Data("stream".utf8))
      #expect(try await cache.data(for: streaming).0.text == "stream")
    }
  }

  @Test(
    "The process's cookies are sent and stored, in shared mode only if enabled",
    arguments: [(false, nil, true), (false, false, false), (true, nil, false), (true, true, true)])
  func cookies(isShared: Bool, isEnabled: Bool?, areUsed: Bool) async throws {
    let name = "lmdburlcache-\(UUID().uuidString)"
    let handler: LoopbackOrigin.Handler = { request in
      Reply(200, [("Set-Cookie", "\(name)=1; Path=/"), ("Set-Cookie", "\(name)-2=2; Path=/")], request["Cookie"] ?? "")
    }
    try await withCurl(
      { options in
        options.caching.mode = isShared ? .shared : .private
        options.usesProcessCookies = isEnabled
      }, origin: handler
    ) { cache, origin in
      _ = try await cache.data(from: origin.url("/a"))
      let sent = try await cache.data(from: origin.url("/b")).0.text
      #expect(sent.contains("\(name)=1") == areUsed)
      #expect(sent.contains("\(name)-2=2") == areUsed)
      for cookie in HTTPCookieStorage.shared.cookies ?? [] where cookie.name.hasPrefix(name) {
        HTTPCookieStorage.shared.deleteCookie(cookie)
      }
    }
  }

  @Test("A 401 is returned as the response")
  func unauthorized() async throws {
    let reply = Reply(401, [("WWW-Authenticate", "Basic realm=\"a\"")], "no")
    try await withCurl(origin: { _ in reply }) { cache, origin in
      let (data, response) = try await cache.data(from: origin.url("/a"))
      #expect(data.text == "no")
      #expect(response.status == 401)
      #expect(origin.requestCount == 1)
    }
  }

  @Test("data(for:) and load(_:) throw URL errors")
  func errors() async throws {
    let gate = Gate()
    let handler: LoopbackOrigin.Handler = { request in
      switch request.path {
      case "/held": Reply(200).held(at: gate)
      case "/cut": Reply(200, [], "hello").cut(.inBody(after: 2))
      case "/coded": Reply(200, [("Content-Encoding", "gzip")], "hello")
      default: .raw("no HTTP\r\n\r\n")
      }
    }
    try await withCurl(origin: handler) { cache, origin in
      var held = URLRequest(origin.url("/held"))
      held.timeoutInterval = 1
      let requests: [(URLRequest, URLError.Code)] = [
        (held, .timedOut), (URLRequest(origin.url("/cut")), .networkConnectionLost),
        (URLRequest(origin.url("/coded")), .cannotDecodeContentData),
        (URLRequest(origin.url("/bad")), .badServerResponse),
        (URLRequest(URL(string: "http://127.0.0.1:1/")!), .cannotConnectToHost),
      ]
      for (request, expected) in requests {
        let ofData = await code { _ = try await cache.data(for: request) }
        let ofLoad = await code { _ = try await cache.load(request) }
        #expect(ofData == expected)
        #expect(ofLoad == expected)
      }
      let task = Task { try await cache.data(for: URLRequest(origin.url("/held"))) }
      await gate.waitForArrivals(count: 3)
      task.cancel()
      let ofTask = await code { _ = try await task.value }
      #expect(ofTask == .cancelled)
    }
  }

  @Test("Each libcurl failure maps to a known URL error code")
  func errorCodes() {
    for code in CurlTransportError.Code.allCases {
      let error = URLError(CurlTransportError(code, "reason"))
      #expect(error.code != .unknown)
      #expect(error.localizedDescription.hasPrefix("The request failed: reason."))
    }
  }

  @Test("A truncated response is not stored, and one without a proven end is only delivered")
  func incomplete() async throws {
    let handler: LoopbackOrigin.Handler = { [kept] request in
      switch request.path {
      case "/cut": Reply(200, kept, "hello").chunked(byteCount: 2).cut(.inBody(after: 2))
      default: Reply(200, kept, "hello").untilClose()
      }
    }
    try await withCurl(origin: handler) { cache, origin in
      let ofCut = await code { _ = try await cache.data(from: origin.url("/cut")) }
      #expect(ofCut == .networkConnectionLost)
      let result = try await cache.load(URLRequest(origin.url("/open")))
      #expect(result.data.text == "hello")
      #expect(result.storageRefusal?.id == "unproven-end")
      for path in ["/cut", "/open"] { #expect(!cache.isCached(origin.url(path))) }
    }
  }
}
