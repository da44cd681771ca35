import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Gives one user's credential at each challenge, and collects the content of a task.
private final class GivingDelegate: NSObject, URLSessionDataDelegate {
  private let user: String?
  private let body = Mutex(Data())
  private let end = Gate()

  /// - Parameter user: The user; nil leaves challenges to the session's storage.
  init(_ user: String?) {
    self.user = user
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    guard let user, challenge.previousFailureCount < 2 else { return completionHandler(.performDefaultHandling, nil) }
    completionHandler(.useCredential, URLCredential(user: user, password: "pw", persistence: .forSession))
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    body.withLock { $0.append(data) }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) { end.open() }

  /// Runs a task of which this is the only delegate, and returns its content.
  func content(of task: URLSessionTask) async -> String {
    task.resume()
    await end.waitUntilOpen()
    return body.withLock { $0.text }
  }
}

/// Credentials that a session's delegate or storage gives are sent for that session alone.
@Suite("Credentials of sessions", .timeLimit(.minutes(2)))
struct CredentialSeparationTests {
  enum Carrier: CaseIterable { case curl, urlSession }
  enum Way: CaseIterable { case direct, async, handler, delegate }

  /// Names the user of each request, also behind a redirect.
  private static func handler(_ request: RecordedRequest) -> Reply {
    guard let user = ChallengeTests.user(of: request) else { return ChallengeTests.whoAreYou }
    let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"\(user)\"")]
    if request.path.hasPrefix("/from") {
      return Reply(302, fields + [("Location", request.path.replacing("/from", with: "/to"))], "to \(user)")
    }
    return Reply(200, fields, user)
  }

  private func space(_ origin: LoopbackOrigin, realm: String = "r") -> URLProtectionSpace {
    URLProtectionSpace(
      host: "127.0.0.1", port: Int(origin.port), protocol: "http", realm: realm,
      authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
  }

  private func credential(_ user: String) -> URLCredential {
    URLCredential(user: user, password: "pw", persistence: .forSession)
  }

  private func session(
    _ user: String?, _ storage: URLCredentialStorage?, cachingWith cache: LMDBURLCache?
  ) -> URLSession {
    let base = URLSessionConfiguration.ephemeral
    let configuration = cache.map { base.caching(with: $0) } ?? base
    configuration.urlCredentialStorage = storage
    return URLSession(configuration: configuration, delegate: GivingDelegate(user), delegateQueue: nil)
  }

  /// Loads a URL once over a new session.
  private func text(
    _ url: URL, _ way: Way, by user: String?, _ storage: URLCredentialStorage?, _ cache: LMDBURLCache
  ) async throws -> String {
    let session = session(user, storage, cachingWith: way == .direct ? nil : cache)
    defer { session.finishTasksAndInvalidate() }
    switch way {
    case .direct: return try await cache.data(from: url, by: session).text
    case .async: return try await session.data(from: url).0.text
    case .handler:
      return await withCheckedContinuation { continuation in
        session.dataTask(with: url) { data, _, _ in continuation.resume(returning: data?.text ?? "") }.resume()
      }
    case .delegate:
      let delegate = try #require(session.delegate as? GivingDelegate)
      return await delegate.content(of: session.dataTask(with: url))
    }
  }

  /// Returns what each way without a session gets.
  private func textsWithoutSession(_ url: URL, _ cache: LMDBURLCache) async throws -> [String] {
    let request = URLRequest(url: url)
    let bytes = try await cache.bytes(for: request).0.collect(upTo: .max)
    return [try await cache.data(for: request).0.text, try await cache.load(request).data.text, bytes.text]
  }

  private func options(_ carrier: Carrier, _ mode: CachingOptions.Mode) -> (inout LMDBURLCache.Options) -> Void {
    { options in
      options.caching.mode = mode
      if carrier == .urlSession { options.transport = .urlSession(.default) }
    }
  }

  @Test(
    "What a delegate gives is sent for its session alone, and a storage gives its default credential",
    arguments: Carrier.allCases, [CachingOptions.Mode.private, .shared])
  func delegates(_ carrier: Carrier, _ mode: CachingOptions.Mode) async throws {
    try await withCache(configure: options(carrier, mode), origin: Self.handler) { (fixture, origin) async throws in
      let cache = fixture.cache
      // One storage for all sessions, like `URLCredentialStorage.shared`; and that one.
      let own = URLCredentialStorage()
      for storage in [own, .shared] { storage.setDefaultCredential(credential("dave"), for: space(origin)) }
      defer { URLCredentialStorage.shared.forget(Int(origin.port)) }
      for (number, way) in Way.allCases.enumerated() {
        for (storage, path) in [(own, "/a"), (own, "/from"), (.shared, "/a"), (.shared, "/from")] {
          let url = origin.url("\(path)/\(number)/\(storage === own)")
          for _ in 0..<2 {
            #expect(try await text(url, way, by: "alice", storage, cache) == "alice", "\(way) \(path)")
            #expect(try await text(url, way, by: nil, storage, cache) == "dave", "\(way) \(path)")
            #expect(try await text(url, way, by: nil, URLCredentialStorage(), cache) == "who?", "\(way) \(path)")
            #expect(try await text(url, way, by: nil, nil, cache) == "who?", "\(way) \(path)")
            #expect(try await text(url, way, by: "zoe", storage, cache) == "zoe", "\(way) \(path)")
            #expect(try await textsWithoutSession(url, cache) == ["who?", "who?", "who?"], "\(way) \(path)")
          }
          #expect(!cache.isCached(url))
        }
      }
      #expect(own.allCredentials.count == 1)
    }
  }

  @Test(
    "What Foundation stores of a delegate's credentials is sent for no other session", arguments: [true, false])
  func foundationStores(isUpload: Bool) async throws {
    try await withCache(origin: Self.handler) { (fixture, origin) async throws in
      let cache = fixture.cache
      for storage in [URLCredentialStorage(), .shared] {
        defer { storage.forget(Int(origin.port)) }
        let alice = session("alice", storage, cachingWith: isUpload ? cache : nil)
        func logIn() async throws {
          var post = URLRequest(origin.url("/post"), method: "POST")
          let text =
            if isUpload { try await alice.upload(for: post, from: Data("x".utf8)).0.text } else {
              try await {
                post.httpBody = Data("x".utf8)
                return try await alice.data(for: post).0.text
              }()
            }
          #expect(text == "alice")
          #expect(storage.allCredentials.contains { $0.key.port == origin.port && $0.value.keys.contains("alice") })
        }
        try await logIn()
        for way in Way.allCases {
          #expect(try await text(origin.url("/a"), way, by: nil, storage, cache) == "who?", "\(way)")
        }
        storage.setDefaultCredential(credential("dave"), for: space(origin))
        try await logIn()
        for way in Way.allCases {
          #expect(try await text(origin.url("/a"), way, by: nil, storage, cache) == "dave", "\(way)")
        }
        #expect(try await cache.data(from: origin.url("/a")).0.text == "who?")
        alice.finishTasksAndInvalidate()
      }
    }
  }

  @Test("Loads without a session use the storage in the options, and no other", arguments: Carrier.allCases)
  func storageOfOptions(_ carrier: Carrier) async throws {
    let storage = URLCredentialStorage()
    let other = URLCredentialStorage()
    try await withCache(
      configure: { options in
        options.credentialStorage = storage
        guard carrier == .urlSession else { return }
        let configuration = URLSessionConfiguration.ephemeral
        configuration.urlCredentialStorage = other
        options.transport = .urlSession(configuration)
      }, origin: Self.handler
    ) { (fixture, origin) async throws in
      other.setDefaultCredential(credential("carol"), for: space(origin))
      let urls = [origin.url("/a"), origin.url("/from")]
      for url in urls { #expect(try await textsWithoutSession(url, fixture.cache) == ["who?", "who?", "who?"]) }
      storage.setDefaultCredential(credential("dave"), for: space(origin))
      storage.set(credential("alice"), for: space(origin))
      for url in urls {
        for _ in 0..<2 {
          // The storage has two objects for one space; the last one counts.
          #expect(try await textsWithoutSession(url, fixture.cache) == ["alice", "alice", "alice"])
        }
        #expect(try await text(url, .async, by: nil, URLCredentialStorage(), fixture.cache) == "who?")
        #expect(!fixture.cache.isCached(url))
      }
    }
  }

  @Test("The default credential of a space comes before the others, and the only one is used without a default")
  func defaultCredential() async throws {
    try await withCache(origin: Self.handler) { (fixture, origin) async throws in
      let storage = URLCredentialStorage()
      // A program may use Foundation's constants for the scheme and the method.
      let space = URLProtectionSpace(
        host: "127.0.0.1", port: Int(origin.port), protocol: NSURLProtectionSpaceHTTP, realm: "r",
        authenticationMethod: NSURLAuthenticationMethodDefault)
      func user() async throws -> String { try await text(origin.url("/a"), .async, by: nil, storage, fixture.cache) }
      storage.set(credential("alice"), for: space)
      storage.setDefaultCredential(credential("dave"), for: space)
      #expect(try await user() == "dave")
      storage.remove(credential("dave"), for: space)
      #expect(try await user() == "alice")
      storage.set(credential("bob"), for: space)
      storage.set(credential("carol"), for: space)
      storage.setDefaultCredential(credential("erin"), for: space)
      storage.remove(credential("erin"), for: space)
      #expect(try await user() == "who?")
    }
  }

  @Test(
    "Concurrent loads of several sessions over kept-alive connections are each sent with their own credentials",
    arguments: Carrier.allCases)
  func concurrent(_ carrier: Carrier) async throws {
    try await withCache(configure: options(carrier, .private), origin: Self.handler) { (fixture, origin) async throws in
      let cache = fixture.cache
      let storage = URLCredentialStorage()
      storage.setDefaultCredential(credential("dave"), for: space(origin))
      let sessions = [("alice", "alice"), (nil, "dave"), ("zoe", "zoe")].map { user, expected in
        (session(user, storage, cachingWith: cache), expected)
      }
      try await withThrowingTaskGroup { group in
        for number in 0..<120 {
          let (session, expected) = sessions[number % 3]
          let url = origin.url("/\(number / 3 % 5)")
          group.addTask {
            let text = try await cache.data(from: url, by: session).text
            #expect(text == expected)
          }
          group.addTask {
            let text = try await cache.data(from: url).0.text
            #expect(text == "who?")
          }
        }
        try await group.waitForAll()
      }
      for (session, _) in sessions { session.finishTasksAndInvalidate() }
    }
  }

  @Test("Each realm gets its own credential, and none that it has refused")
  func realms() async throws {
    try await withCache { request in
      let user = ChallengeTests.user(of: request)
      if user == "second", request.path == "/a" { return Reply(200, [("Cache-Control", "max-age=600")], "in") }
      let realm = request.path == "/a" ? user ?? "none" : ["none", "first", "second"][request.number % 3]
      return Reply(401, [("WWW-Authenticate", "Basic realm=\"\(realm)\"")], "who?")
    } _: { (fixture, origin) async throws in
      let storage = URLCredentialStorage()
      for (realm, user) in [("none", "first"), ("first", "second"), ("second", "third")] {
        storage.setDefaultCredential(credential(user), for: space(origin, realm: realm))
      }
      #expect(try await text(origin.url("/a"), .async, by: nil, storage, fixture.cache) == "in")
      #expect(origin.requestCount == 3)
      // An origin that names another realm each time gets each credential once.
      #expect(try await text(origin.url("/b"), .async, by: nil, storage, fixture.cache) == "who?")
      #expect(origin.requestCount == 3 + 4)
      #expect(!fixture.cache.isCached(origin.url("/a")))
    }
  }
}

extension URLCredentialStorage {
  /// Removes what was stored for a port of a test's origin.
  fileprivate func forget(_ port: Int) {
    for (space, credentials) in allCredentials where space.port == port {
      for credential in credentials.values { remove(credential, for: space) }
    }
  }
}
