/// A fleet's name and server, and how to connect.
struct FleetAddress: Sendable {
  let server: RedisServer
  let configuration: RedisTier.Configuration

  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  init(url: String, _ configuration: RedisTier.Configuration) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    server = try RedisServer(url: url)
    guard Self.isFleetName(configuration.fleetName) else {
      throw invalid("the fleet's name is not made of 1 to 64 letters, digits, '-', '_' and '.'")
    }
    guard server.user == nil || server.password != nil || configuration.password != nil else {
      throw invalid("the Redis URL has a user without a password")
    }
    self.configuration = configuration
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

  /// The beginning of all keys of the fleet.
  var keyPrefix: String { "lmuc:{\(configuration.fleetName)}:" }

  func key(_ name: String) -> [UInt8] { Array((keyPrefix + name).utf8) }

  /// Connects and logs in.
  ///
  /// - Parameter timeout: As for `RedisConnection`; nil for that of the configuration.
  func connect(timeout: Duration? = nil) throws(RedisTierError) -> RedisConnection {
    try RedisConnection(
      server, password: configuration.password, timeout: timeout ?? configuration.commandTimeout)
  }
}
