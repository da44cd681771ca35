import CacheModel

/// A fleet's name and server, and how to connect.
package struct FleetAddress: Sendable {
  package let server: RedisServer
  package let name: String
  /// The beginning of all keys of the fleet.
  package let keyPrefix: String
  private let login: RedisLogin?
  private let sentinelLogin: RedisLogin?
  private let tls: RedisTLS?
  private let timeout: Duration

  /// - Parameters:
  ///   - password: Returns the password for Redis; nil for that of the URL.
  ///   - sentinelLogin: The user and the password for Sentinels; nil for none.
  ///   - tls: The certificates, if the URL selects TLS.
  ///   - timeout: The maximum time for connecting, and for each command without its own.
  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  package init(
    url: String, name: String, password: (@Sendable () throws -> String)? = nil, sentinelLogin: RedisLogin? = nil,
    tls: RedisTLS = RedisTLS(), timeout: Duration
  ) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    let server = try RedisServer(url: url)
    guard Self.isFleetName(name) else {
      throw invalid("the fleet's name is not made of 1 to 64 letters, digits, '-', '_' and '.'")
    }
    guard server.user == nil || server.password != nil || password != nil else {
      throw invalid("the Redis URL has a user without a password")
    }
    guard server.usesTLS || tls == RedisTLS() else {
      throw invalid("certificates are set, but the Redis URL does not select TLS by rediss://")
    }
    if server.usesTLS {
      do throws(RedisTierError) { try tls.check() } catch { throw invalid(error.reason) }
    }
    self.server = server
    self.name = name
    keyPrefix = "lmuc:{\(name)}:"
    login =
      if let password {
        RedisLogin(user: server.user, password: password)
      } else {
        server.password.map { text in RedisLogin(user: server.user) { text } }
      }
    self.sentinelLogin = sentinelLogin
    self.tls = server.usesTLS ? tls : nil
    self.timeout = timeout
  }

  /// Whether a text can be the name of a fleet.
  private static func isFleetName(_ name: String) -> Bool {
    (1...64).contains(name.utf8.count) && name.utf8.allSatisfy(isNameByte)
  }

  private static func isNameByte(_ byte: UInt8) -> Bool {
    switch byte {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
      UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."):
      true
    default: false
    }
  }

  package func key(_ name: String, _ digits: [UInt8] = []) -> [UInt8] { Array((keyPrefix + name).utf8) + digits }

  /// Connects and logs in. With Sentinel, finds the primary first, and checks that it is one.
  ///
  /// - Parameter limit: As for `RedisConnection`; nil for that of the fleet.
  package func connect(timeout limit: Duration? = nil) throws(RedisTierError) -> RedisConnection {
    let limit = limit ?? timeout
    guard let name = server.primaryName else { return try connect(to: server.addresses[0], within: limit) }
    let deadline = BootClock.now + limit.nanoseconds
    let sentinels = Sentinels(server.addresses, primaryName: name) {
      [tls, sentinelLogin] (address, limit) throws(RedisTierError) in
      try RedisConnection(address, tls: tls, login: sentinelLogin, timeout: limit)
    }
    func timeLeft() -> Duration { .nanoseconds(deadline - min(BootClock.now, deadline)) }
    let connection = try connect(to: sentinels.primary(within: limit), within: timeLeft())
    // `INFO` tells the role, too, and unlike `ROLE` is among the permissions that the tier needs anyway.
    _ = try connection.serverRun(timeout: timeLeft())
    connection.sentinels = sentinels
    return connection
  }

  private func connect(
    to address: RedisServer.Address, within limit: Duration
  ) throws(RedisTierError) -> RedisConnection {
    try RedisConnection(address, tls: tls, login: login, timeout: limit)
  }
}
