import Foundation
import Glibc
import Testing

@testable import RedisTier

@Suite("Connections to Redis", .timeLimit(.minutes(1)))
struct ConnectionTests {
  @Test(
    "URLs of servers are parsed",
    arguments: [
      ("redis://10.0.0.5", RedisServer.Address.tcp(host: "10.0.0.5", port: 6379), nil, nil),
      ("rediss://u:p@h", .tcp(host: "h", port: 6379), "u", "p"),
      ("redis://h:7000/0", .tcp(host: "h", port: 7000), nil, nil),
      ("REDIS://:p%40ss@h", .tcp(host: "h", port: 6379), nil, "p@ss"),
      ("redis://user:a:b@[::1]:1", .tcp(host: "::1", port: 1), "user", "a:b"),
      ("unix:///run/redis.sock", .unixSocket(path: "/run/redis.sock"), nil, nil),
      ("unix://u:p@/run/redis.sock", .unixSocket(path: "/run/redis.sock"), "u", "p"),
    ] as [(String, RedisServer.Address, String?, String?)])
  func urls(_ url: String, _ address: RedisServer.Address, _ user: String?, _ password: String?) throws {
    let server = try RedisServer(url: url)
    #expect(server.addresses == [address])
    #expect(server.usesTLS == url.hasPrefix("rediss") && server.primaryName == nil)
    #expect(server.user == user)
    #expect(server.password == password)
    #expect(!server.name.contains(password ?? "\n"))
  }

  @Test("URLs with Sentinels are parsed", arguments: ["redis+sentinel", "rediss+sentinel"])
  func sentinelURLs(_ scheme: String) throws {
    let server = try RedisServer(url: "\(scheme)://u:p%40@a,[::1]:1,c:27000/my%20fleet")
    #expect(
      server.addresses == [
        .tcp(host: "a", port: 26379), .tcp(host: "::1", port: 1), .tcp(host: "c", port: 27000),
      ])
    #expect(server.primaryName == "my fleet" && server.user == "u" && server.password == "p@")
    #expect(server.usesTLS == (scheme == "rediss+sentinel"))
    #expect(server.name == "\(scheme)://a:26379,[::1]:1,c:27000/my fleet")
    #expect(try RedisServer(url: "\(scheme)://c/my%20fleet").identity == server.identity)
  }

  @Test(
    "Invalid URLs and settings are refused",
    arguments: [
      "", "redis:", "http://h", "rediss://", "rediss+unix:///run/s", "redis://", "redis://h:0", "redis://h:x",
      "redis://h:70000", "redis://h/1",
      "redis://user@h", "redis://u:%zz@h", "unix://relative", "unix:///",
      "redis+sentinel://h", "redis+sentinel://h/", "redis+sentinel://h/a/b", "redis+sentinel:///a",
      "redis+sentinel://h,/a", "redis+sentinel://h,h/a", "redis+sentinel://h:0/a", "redis+sentinel://h/%zz",
    ])
  func invalidURLs(_ url: String) {
    let error = #expect(throws: RedisTierError.self) { try RedisTier(url: url, secret: testSecret) }
    #expect(error?.code == .invalidConfiguration)
  }

  @Test("Settings that cannot work are refused")
  func invalidSettings() throws {
    func code(_ secret: Data = testSecret, _ change: (inout RedisTier.Configuration) -> Void) -> RedisTierError.Code? {
      var configuration = RedisTier.Configuration()
      change(&configuration)
      do {
        _ = try RedisTier(url: "redis://h", secret: secret, configuration: configuration)
        return nil
      } catch {
        return error.code
      }
    }
    #expect(code { _ in } == nil)
    #expect(code(Data(count: 31)) { _ in } == .invalidConfiguration)
    #expect(code { $0.lease = .milliseconds(199) } == .invalidConfiguration)
    #expect(code { $0.lease = .seconds(3601) } == .invalidConfiguration)
    #expect(code { $0.fleetName = "a}b" } == .invalidConfiguration)
    #expect(code { $0.fleetName = "" } == .invalidConfiguration)
    #expect(code { $0.sentinelUser = "u" } == .invalidConfiguration)
    #expect(code { $0.tls.serverName = "h" } == .invalidConfiguration)
    #expect(code { $0.objectConnectionCount = 0 } == .invalidConfiguration)
  }

  @Test("Commands transfer any bytes, and replies of each type are read", .needsRedis)
  func commands() throws {
    let server = try RedisServerProcess()
    let connection = try server.connect()
    let bytes = (0...255).map { UInt8($0) }
    try connection.command([Array("SET".utf8), bytes, bytes + bytes])
    #expect(try connection.command([Array("GET".utf8), bytes]) == .bytes(bytes + bytes))
    #expect(try connection.command([Array("SET".utf8), [], []]) == .bytes(Array("OK".utf8)))
    #expect(try connection.command(["GET", ""]) == .bytes([]))
    // Long strings are not copied, and outlive their reply.
    let long = [UInt8](repeating: 7, count: RedisReply.longByteCount) + bytes
    try connection.command([Array("SET".utf8), bytes, long])
    let replies = try connection.commands([[Array("GET".utf8), bytes], [Array("MGET".utf8), bytes, bytes]])
    try connection.command([Array("DEL".utf8), bytes])
    #expect(try replies[0].asData() == Data(long))
    #expect(try replies[1].asElements().map { try $0.asBytes() } == [long, long])
    #expect(try connection.command(["GET", "missing"]) == .null)
    #expect(try connection.command(["INCR", "n"]) == .integer(1))
    #expect(try connection.command(["MGET", "n", "missing"]) == .array([.bytes([UInt8(ascii: "1")]), .null]))
    let error = #expect(throws: RedisTierError.self) { try connection.command(["INCR", ""]) }
    #expect(error?.code == .serverError)
    #expect(!connection.isDead)
    #expect(try connection.serverRun().count == 40)
  }

  @Test("A command to a server that does not reply times out, and ends the connection", .needsRedis)
  func timeout() throws {
    let server = try RedisServerProcess()
    let connection = try server.connect()
    server.suspend()
    defer { server.resume() }
    let error = #expect(throws: RedisTierError.self) { try connection.command(["PING"], timeout: .milliseconds(20)) }
    #expect(error?.code == .timedOut)
    #expect(connection.isDead)
  }

  @Test("A command whose predecessor's replies are on their way fails, instead of getting these", .needsRedis)
  func repliesUnderWay() throws {
    let server = try RedisServerProcess()
    let connection = try server.connect()
    try connection.send([[Array("ECHO".utf8), Array("a".utf8)]])
    #expect(!connection.isReady)
    #expect(throws: RedisTierError.self) { try connection.command(["ECHO", "b"]) }
    #expect(try connection.replies() == [.bytes(Array("a".utf8))])
    #expect(connection.isReady)
    #expect(try connection.command(["ECHO", "b"]) == .bytes(Array("b".utf8)))
  }

  @Test("Another thread can interrupt a waiting command", .needsRedis)
  func interruption() async throws {
    let server = try RedisServerProcess()
    let connection = try server.connect()
    let task = Task.detached {
      #expect(throws: RedisTierError.self) { try connection.command(["BLPOP", "q", "0"], timeout: .seconds(50)) }
    }
    let other = try server.connect()
    try await wait { try other.command(["CLIENT", "LIST"]).asText().contains("cmd=blpop") }
    connection.interrupter.interrupt()
    #expect(await task.value?.code == .connectionLost)
  }

  @Test("Writing to a connection that the server has closed does not end the process", .needsRedis)
  func brokenPipe() throws {
    let server = try RedisServerProcess()
    let connection = try server.connect()
    // A thread that was started by one of the library's threads inherits its mask.
    var mask = sigset_t()
    pthread_sigmask(SIG_BLOCK, nil, &mask)
    let wasBlocked = sigismember(&mask, SIGPIPE)
    server.kill()
    for _ in 0..<3 { #expect(throws: RedisTierError.self) { try connection.command(["PING"]) } }
    // The signal is not pending, and the mask is as before.
    var signals = sigset_t()
    sigpending(&signals)
    #expect(sigismember(&signals, SIGPIPE) == 0)
    pthread_sigmask(SIG_BLOCK, nil, &mask)
    #expect(sigismember(&mask, SIGPIPE) == wasBlocked)
    let error = #expect(throws: RedisTierError.self) { try server.connect() }
    #expect(error?.code == .cannotConnect)
  }

  @Test("Passwords and users are used, and refused ones are reported without their value", .needsRedis)
  func passwords() throws {
    let server = try RedisServerProcess(["--requirepass", "secret-word"])
    func connect(_ login: String, _ password: (@Sendable () throws -> String)? = nil) throws -> RedisConnection {
      try FleetAddress(
        url: "unix://\(login)\(server.socketPath)", name: "default", password: password, timeout: .seconds(5)
      ).connect()
    }
    try connect(":secret-word@").command(["PING"])
    try connect("default:secret-word@").command(["PING"])
    try connect("", { "secret-word" }).command(["PING"])
    let wrong: @Sendable () throws -> String = { "wrong-word" }
    for (login, password) in [(":wrong-word@", nil), ("x:secret-word@", nil), ("", wrong)] {
      let error = #expect(throws: RedisTierError.self) { try connect(login, password) }
      #expect(error?.code == .accessDenied)
      #expect(error?.description.contains("-word") == false)
    }
    let error = #expect(throws: RedisTierError.self) { try connect("").command(["PING"]) }
    #expect(error?.code == .accessDenied)
  }

  @Test(
    "A server that speaks another protocol is reported", .needsRedis, arguments: ["HTTP/1.1 400\r\n\r\n", "%1\r\n"])
  func otherProtocol(_ reply: String) throws {
    let listener = try SocketListener { _ in Array(reply.utf8) }
    let connection = try connect("unix://" + listener.path)
    let error = #expect(throws: RedisTierError.self) { try connection.command(["PING"]) }
    #expect(error?.code == .badReply)
  }
}
