import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

// The table of the program's credentials, and the syntax of challenges.
@testable import LMDBURLCache

/// Credentials whose owner is not clear, and replies that fail.
@Suite("Credentials of sessions: unusual cases", .endsFixtures, .timeLimit(.minutes(2)))
struct UnusualCredentialTests {
  /// Gives the credentials in a list, one at each challenge, and then cancels.
  private final class ListDelegate: NSObject, URLSessionTaskDelegate {
    private let credentials: [URLCredential]

    init(_ users: [String], _ persistence: URLCredential.Persistence) {
      credentials = users.map { URLCredential(user: $0, password: "pw", persistence: persistence) }
    }

    func urlSession(
      _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
      completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
    ) {
      guard challenge.previousFailureCount < credentials.count else {
        return completionHandler(.cancelAuthenticationChallenge, nil)
      }
      completionHandler(.useCredential, credentials[challenge.previousFailureCount])
    }
  }

  private func space(_ port: Int = 80) -> URLProtectionSpace {
    URLProtectionSpace(
      host: "127.0.0.1", port: port, protocol: "http", realm: "r",
      authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
  }

  private func credential(_ user: String) -> URLCredential {
    URLCredential(user: user, password: "pw", persistence: .forSession)
  }

  /// Loads its credential at the first use.
  private final class LazyStorage: URLCredentialStorage, @unchecked Sendable {
    private let load: @Sendable (LazyStorage) -> Void
    private let hasLoaded = Mutex(false)

    init(load: @escaping @Sendable (LazyStorage) -> Void) { self.load = load }

    override var allCredentials: [URLProtectionSpace: [String: URLCredential]] {
      let isFirst = hasLoaded.withLock { hasLoaded in
        defer { hasLoaded = true }
        return !hasLoaded
      }
      if isFirst { load(self) }
      return super.allCredentials
    }
  }

  @Test("The credential of a storage that loads it at the first use is the program's")
  func lazyStorage() {
    let (user, place) = (credential("erin"), space())
    let storage = LazyStorage { $0.setDefaultCredential(user, for: place) }
    #expect(ProgramCredentials.shared.credential(for: space(), in: storage)?.user == "erin")
  }

  /// A queue with the name of one on which Foundation stores credentials.
  private let sessionQueue = DispatchQueue(label: "MultiHandle.isolation")

  @Test("Changes by the program and by Foundation at the same time never make Foundation's credential the program's")
  func simultaneousChanges() {
    for round in 0..<1000 {
      let storage = URLCredentialStorage()
      if round % 2 == 0 { storage.setDefaultCredential(credential("old"), for: space(81)) }
      DispatchQueue.concurrentPerform(iterations: 2) { number in
        if number == 0 {
          storage.setDefaultCredential(credential("dave"), for: space())
        } else {
          sessionQueue.sync { storage.set(credential("alice"), for: space()) }
        }
      }
      let found = ProgramCredentials.shared.credential(for: space(), in: storage)?.user
      #expect(found == nil || found == "dave")
      if round % 2 == 0 {
        let old = ProgramCredentials.shared.credential(for: space(81), in: storage)?.user
        #expect(old == nil || old == "old")
      }
      // The program's next change counts.
      storage.setDefaultCredential(credential("erin"), for: space())
      #expect(ProgramCredentials.shared.credential(for: space(), in: storage)?.user == "erin")
    }
  }

  @Test("In a storage that Foundation fills, the program's credentials from before stay, and none is taken for one")
  func fullStorage() {
    let storage = URLCredentialStorage()
    storage.setDefaultCredential(credential("dave"), for: space())
    sessionQueue.sync {
      for _ in 0..<1100 { storage.set(credential("alice"), for: space()) }
    }
    storage.setDefaultCredential(credential("erin"), for: space(81))
    #expect(ProgramCredentials.shared.credential(for: space(), in: storage)?.user == "dave")
    #expect(ProgramCredentials.shared.credential(for: space(81), in: storage) == nil)
  }

  @Test(
    "A wrong reply and then a right one serve their session alone, with each persistence",
    arguments: [URLCredential.Persistence.none, .forSession, .permanent])
  func wrongThenRight(_ persistence: URLCredential.Persistence) async throws {
    try await withCache { request in
      ChallengeTests.user(of: request) == "alice"
        ? Reply(200, [("Cache-Control", "max-age=600")], "alice") : ChallengeTests.whoAreYou
    } _: { (fixture, origin) async throws in
      let (cache, storage, url) = (fixture.cache, URLCredentialStorage(), origin.url("/a"))
      func session(_ delegate: (any URLSessionDelegate)?) -> URLSession {
        fixture.session(delegate: delegate) { $0.urlCredentialStorage = storage }
      }
      for _ in 0..<2 {
        for isTask in [true, false] {
          let right = session(ListDelegate(["mallory", "alice"], persistence))
          #expect(
            try await (isTask ? right.data(from: url).0 : cache.data(from: url, by: right)).text == "alice")
          let wrong = session(ListDelegate(["mallory", "mallory"], persistence))
          await #expect {
            _ = try await isTask ? wrong.data(from: url).0 : cache.data(from: url, by: wrong)
          } throws: {
            ($0 as? URLError)?.code == .cancelled
          }
          let other = session(nil)
          #expect(try await (isTask ? other.data(from: url).0 : cache.data(from: url, by: other)).text == "who?")
          #expect(try await cache.data(from: url).0.text == "who?")
        }
      }
      #expect(storage.allCredentials.isEmpty)
      #expect(!cache.isCached(url))
    }
  }

  @Test("A credential for one origin is not sent to another one to which a redirect leads")
  func otherOrigin() async throws {
    try await withCache { request in
      guard ChallengeTests.user(of: request) != nil else { return ChallengeTests.whoAreYou }
      let port = request["Host"]?.split(separator: ":").last ?? ""
      return request.path == "/from"
        ? Reply(302, [("Location", "http://localhost:\(port)/to")])
        : Reply(200, [("Cache-Control", "max-age=600")], "in")
    } _: { (fixture, origin) async throws in
      let storage = URLCredentialStorage()
      storage.setDefaultCredential(credential("dave"), for: space(Int(origin.port)))
      let session = fixture.session { $0.urlCredentialStorage = storage }
      #expect(try await session.data(from: origin.url("/from")).0.text == "who?")
      #expect(try await fixture.cache.data(from: origin.url("/from"), by: session).text == "who?")
      #expect(origin.requests.allSatisfy { $0["Host"]?.hasPrefix("localhost") == false || $0["Authorization"] == nil })
    }
  }

  @Test("The 407 of a proxy asks no delegate and is not stored; a 401 behind it is answered for its session alone")
  func proxy() async throws {
    let requiresLogin = Atomic(true)
    let proxy = try LoopbackOrigin { request in
      if requiresLogin.load(ordering: .relaxed) {
        let fields = [("Proxy-Authenticate", "Basic realm=\"r\""), ("Cache-Control", "max-age=600")]
        return Reply(407, fields, "proxy")
      }
      guard let user = ChallengeTests.user(of: request) else { return ChallengeTests.whoAreYou }
      return Reply(200, [("Cache-Control", "max-age=600")], user)
    }
    let fixture = try CacheFixture { options in
      var settings = CurlTransport.Configuration()
      settings.proxy = .server("http://127.0.0.1:\(proxy.port)")
      options.transport = .curl(settings)
    }
    let url = try #require(URL(string: "http://origin.test/a"))
    let alice = fixture.session(delegate: LoginDelegate(.login("alice")))
    let bob = fixture.session(delegate: LoginDelegate(.login("bob")))
    for _ in 0..<2 {
      for session in [alice, bob] { #expect(try await session.data(from: url).0.text == "proxy") }
      #expect(try await fixture.cache.data(from: url).1.status == 407)
    }
    #expect(proxy.requests.allSatisfy { $0["Authorization"] == nil && $0["Proxy-Authorization"] == nil })
    #expect(proxy.requestCount == 6)
    requiresLogin.store(false, ordering: .relaxed)
    for _ in 0..<2 {
      #expect(try await alice.data(from: url).0.text == "alice")
      #expect(try await fixture.cache.data(from: url).0.text == "who?")
      #expect(try await bob.data(from: url).0.text == "bob")
    }
    #expect(!fixture.cache.isCached(url))
    proxy.stop()
  }
}

@Suite("Basic challenges")
struct BasicChallengeTests {
  @Test(
    "The first Basic challenge is found among those of a response",
    arguments: [
      (["Basic realm=\"r\""], "r"), (["basic REALM = \"a \\\"b\\\", c\""], "a \"b\", c"),
      (["Basic realm=token"], "token"),
      (["Basic charset=\"UTF-8\", realm=\"r\""], "r"), (["Basic"], "none"), (["Basic, Bearer realm=\"b\""], "none"),
      (["Digest realm=\"d\", nonce=\"x, Basic realm=\\\"n\\\"\", Basic realm=\"r\""], "r"),
      (["Negotiate", "Basic realm=\"r\""], "r"), (["Basic realm=\"1\", Basic realm=\"2\""], "1"),
      (["Bearer realm=\"b\""], nil), (["Negotiate abc=="], nil), ([""], nil), ([], nil), (["=, ,=\"Basic"], nil),
    ] as [([String], String?)])
  func realms(_ lines: [String], _ realm: String?) throws {
    var fields = HeaderFields()
    for line in lines { fields.append(name: "WWW-Authenticate", value: line) }
    #expect(BasicChallenge(fields).map { $0.realm ?? "none" } == realm)
  }

  @Test("A protection space has the port that the URL implies")
  func space() throws {
    let challenge = try #require(BasicChallenge(["WWW-Authenticate": "Basic realm=\"r\""]))
    for (text, port, scheme) in [
      ("https://a.test/", 443, "https"), ("HTTP://a.test/", 80, "http"), ("http://a.test:81/", 81, "http"),
    ] {
      let url = try #require(URL(string: text))
      let space = try #require(challenge.space(of: url))
      #expect(space.host == "a.test")
      #expect(space.port == port)
      #expect(space.`protocol` == scheme)
      #expect(space.realm == "r")
    }
  }
}
