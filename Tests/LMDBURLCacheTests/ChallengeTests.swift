import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Replies to every challenge in the same way.
final class LoginDelegate: NSObject, URLSessionTaskDelegate {
  enum Reaction: Sendable {
    case login(String)
    case defaultHandling
    case cancel
  }

  private let reaction: Reaction
  private let failures = Mutex<[Int]>([])
  /// For each challenge, the number of failed replies to the same request before it.
  var failureCounts: [Int] { failures.withLock { $0 } }

  init(_ reaction: Reaction) {
    self.reaction = reaction
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    failures.withLock { $0.append(challenge.previousFailureCount) }
    switch reaction {
    case .login where challenge.previousFailureCount > 1: completionHandler(.performDefaultHandling, nil)
    case .login(let user):
      completionHandler(.useCredential, URLCredential(user: user, password: "pw", persistence: .none))
    case .defaultHandling: completionHandler(.performDefaultHandling, nil)
    case .cancel: completionHandler(.cancelAuthenticationChallenge, nil)
    }
  }
}

/// A response after a challenge that a session's delegate answered is private to that caller.
@Suite("Authentication challenges")
struct ChallengeTests {
  /// Returns the user that a request names, or nil.
  static func user(of request: RecordedRequest) -> String? {
    guard let field = request["Authorization"], let bytes = Data(base64Encoded: field.dropFirst("Basic ".count).text)
    else { return nil }
    return bytes.text.split(separator: ":").first.map(String.init)
  }

  static let whoAreYou = Reply(401, [("WWW-Authenticate", "Basic realm=\"r\"")], "who?")

  func session(_ reaction: LoginDelegate.Reaction, _ configuration: URLSessionConfiguration = .ephemeral) -> URLSession
  {
    URLSession(configuration: configuration, delegate: LoginDelegate(reaction), delegateQueue: nil)
  }

  @Test("A response after an answered challenge is returned to no other caller", arguments: [false, true])
  func answered(_ isCaching: Bool) async throws {
    try await withCache { request in
      guard let user = Self.user(of: request) else { return Self.whoAreYou }
      return Reply(200, [("Cache-Control", "max-age=600"), ("ETag", "\"\(user)\"")], user)
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      let configuration = URLSessionConfiguration.ephemeral
      let (alice, bob) = (
        session(.login("alice"), isCaching ? configuration.caching(with: cache) : configuration),
        session(.login("bob"), isCaching ? configuration.caching(with: cache) : configuration)
      )
      for _ in 0..<2 {
        #expect(try await cache.data(from: url, by: alice).text == "alice")
        #expect(!cache.isCached(url))
        #expect(try await cache.data(from: url, by: bob).text == "bob")
        #expect(try await cache.data(from: url).1.status == 401)
      }
      // Also with tasks of the sessions.
      #expect(try await alice.data(from: url).0.text == "alice")
      #expect(try await bob.data(from: url).0.text == "bob")
      #expect(!cache.isCached(url))
    }
  }

  @Test("The credential storage of a session answers challenges of its tasks and loads", arguments: [true, false])
  func credentialStorage(usesTask: Bool) async throws {
    try await withCache { request in
      guard let user = Self.user(of: request) else { return Self.whoAreYou }
      return Reply(200, [("Cache-Control", "max-age=600")], user)
    } _: { (fixture, origin) async throws in
      let url = origin.url("/a")
      let space = URLProtectionSpace(
        host: "127.0.0.1", port: Int(origin.port), protocol: "http", realm: "r",
        authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
      for user in ["alice", "bob"] {
        let storage = URLCredentialStorage()
        let credential = URLCredential(user: user, password: "pw", persistence: .forSession)
        storage.setDefaultCredential(credential, for: space)
        let session = fixture.session { $0.urlCredentialStorage = storage }
        for _ in 0..<2 {
          let data =
            usesTask ? try await session.data(from: url).0 : try await fixture.cache.data(from: url, by: session)
          #expect(data.text == user)
        }
        // Accepted credentials replace the stored ones.
        #expect(storage.allCredentials.count == 1)
      }
      // Without credentials the response is the 401, also for a task.
      let session = fixture.session()
      let response = usesTask ? try await session.data(from: url).1 : try await fixture.cache.data(from: url).1
      #expect(response.status == 401)
      #expect(!fixture.cache.isCached(url))
    }
  }

  @Test("Followers fetch on their own if the leader's challenge is answered")
  func followers() async throws {
    let gate = Gate()
    try await withCache { request in
      if let user = Self.user(of: request) { return Reply(200, [("Cache-Control", "max-age=600")], user) }
      return request.number == 0 ? Self.whoAreYou.held(at: gate) : Self.whoAreYou
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      let (alice, bob) = (session(.login("alice")), session(.login("bob")))
      async let leader = cache.data(from: url, by: alice)
      await gate.waitForArrivals()
      async let follower = cache.data(from: url, by: bob)
      async let anonymous = cache.data(from: url)
      while cache.statistics.requests.waiting < 2 { await Task.yield() }
      gate.open()
      #expect(try await leader.text == "alice")
      #expect(try await follower.text == "bob")
      #expect(try await anonymous.1.status == 401)
      #expect(!cache.isCached(url))
    }
  }

  @Test("A stored response for all users is not updated by a response after a challenge")
  func confirmed() async throws {
    let isProtected = Atomic(false)
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")]
      guard isProtected.load(ordering: .relaxed) else { return Reply(200, fields, "for all") }
      guard let user = Self.user(of: request) else { return Self.whoAreYou }
      return request["If-None-Match"] == "\"1\""
        ? Reply(304, fields + [("X-User", user)]) : Reply(200, fields + [("X-User", user)], user)
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      #expect(try await cache.data(from: url).0.text == "for all")
      isProtected.store(true, ordering: .relaxed)
      fixture.clock.advance(by: 100)
      let (data, response) = try await cache.data(for: URLRequest(url: url), from: session(.login("alice")))
      #expect(data.text == "alice")
      #expect(response.field("X-User") == "alice")
      let stored = cache.cachedResponse(for: URLRequest(url: url))
      #expect(stored?.data.text == "for all")
      #expect(stored?.response.field("X-User") == nil)
      #expect(try await cache.data(from: url).1.status == 401)
    }
  }

  @Test("The response to a POST that was repeated with credentials serves no GET")
  func post() async throws {
    try await withCache { request in
      guard let user = Self.user(of: request) else { return Self.whoAreYou }
      return Reply(200, [("Cache-Control", "max-age=600"), ("Content-Location", request.path)], user)
    } _: { (fixture, origin) async throws in
      let url = origin.url("/a")
      var post = URLRequest(url, method: "POST")
      post.httpBody = Data("x".utf8)
      #expect(try await fixture.cache.data(for: post, from: session(.login("alice"))).0.text == "alice")
      #expect(origin.requests.map(\.body.text) == ["x", "x"])
      #expect(!fixture.cache.isCached(url))
    }
  }

  // RFC 9111, 4.4. Foundation repeats the request with credentials without informing the cache.
  @Test("A POST that succeeds after a challenge invalidates the stored responses of its URL", arguments: Way.allCases)
  func postInvalidates(_ way: Way) async throws {
    let version = Atomic(1)
    let gate = Gate()
    try await withCache { request in
      if request.method == "POST" {
        guard Self.user(of: request) != nil else { return Self.whoAreYou }
        version.store(2, ordering: .relaxed)
        return Reply(200, [], "posted")
      }
      let page = Reply(200, [("Cache-Control", "max-age=600")], "version \(version.load(ordering: .relaxed))")
      return request.number == 1 ? page.held(at: gate) : page
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      #expect(try await cache.data(from: url).0.text == "version 1")
      async let old = cache.data(for: URLRequest(url, policy: .reloadIgnoringLocalCacheData))
      await gate.waitForArrivals()
      let session = session(.login("alice"), .ephemeral.caching(with: cache))
      var post = URLRequest(url, method: "POST")
      post.httpBody = Data("x".utf8)
      #expect(try await send(post, way, session, cache) == "posted")
      #expect(!cache.isCached(url))
      gate.open()
      #expect(try await old.0.text == "version 1")
      #expect(!cache.isCached(url))
      #expect(try await session.data(from: url).0.text == "version 2")
    }
  }

  enum Way: CaseIterable { case task, upload, direct, directFromSession }

  func send(_ post: URLRequest, _ way: Way, _ session: URLSession, _ cache: LMDBURLCache) async throws -> String {
    var upload = post
    upload.httpBody = nil
    return switch way {
    case .task: try await session.data(for: post).0.text
    case .upload: try await session.upload(for: upload, from: post.httpBody ?? Data()).0.text
    case .direct: try await cache.data(for: post, from: self.session(.login("alice"))).0.text
    case .directFromSession: try await cache.data(for: post, from: session).0.text
    }
  }

  @Test("A delegate is asked until it stops replying, and learns how often its replies failed")
  func refused() async throws {
    try await withCache { _ in
      Self.whoAreYou
    } _: { (fixture, origin) async throws in
      let delegate = LoginDelegate(.login("mallory"))
      let session = URLSession(configuration: .ephemeral, delegate: delegate, delegateQueue: nil)
      let (data, response) = try await fixture.cache.data(for: URLRequest(url: origin.url("/a")), from: session)
      #expect(response.status == 401)
      #expect(data.text == "who?")
      #expect(delegate.failureCounts == [0, 1, 2])
      #expect(!fixture.cache.isCached(origin.url("/a")))
    }
  }

  @Test("Without credentials the response is the 401; a delegate that cancels the challenge cancels the load")
  func unanswered() async throws {
    try await withCache { _ in
      Self.whoAreYou
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/a"))
      for session in [URLSession(configuration: .ephemeral), session(.defaultHandling), fixture.session()] {
        #expect(try await cache.data(for: request, from: session).1.status == 401)
      }
      let cancelling = session(.cancel)
      await #expect { try await cache.data(for: request, from: cancelling) } throws: {
        ($0 as? URLError)?.code == .cancelled
      }
    }
  }

  @Test("A stored 401 does not serve a session with credentials")
  func storedRefusal() async throws {
    try await withCache { request in
      if let user = Self.user(of: request) { return Reply(200, [("Cache-Control", "max-age=600")], user) }
      return Reply(401, [("WWW-Authenticate", "Basic realm=\"r\""), ("Cache-Control", "max-age=600")], "who?")
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      for _ in 0..<2 { #expect(try await cache.data(from: url).1.status == 401) }
      #expect(origin.requestCount == 1)
      #expect(try await cache.data(from: url, by: session(.login("alice"))).text == "alice")
      #expect(try await cache.data(from: url).1.status == 401)
    }
  }
}

extension Substring {
  fileprivate var text: String { String(self) }
}
