/// A fleet's name and server, for a program that is not a machine of the fleet.
struct FleetAddress: Sendable {
  let server: RedisServer
  /// The default settings, with the fleet's name and the password.
  let configuration: RedisTier.Configuration

  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  init(
    url: String, fleetName: String, password: (@Sendable () throws -> String)?
  ) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    server = try RedisServer(url: url)
    guard FleetSettings.isFleetName(fleetName) else {
      throw invalid("the fleet's name is not made of 1 to 64 letters, digits, '-', '_' and '.'")
    }
    guard server.user == nil || server.password != nil || password != nil else {
      throw invalid("the Redis URL has a user without a password")
    }
    var configuration = RedisTier.Configuration()
    configuration.fleetName = fleetName
    configuration.password = password
    self.configuration = configuration
  }

  func key(_ name: String) -> [UInt8] {
    Array((FleetSettings.keyPrefix(fleetName: configuration.fleetName) + name).utf8)
  }

  func connect() throws(RedisTierError) -> RedisConnection {
    try RedisConnection(server, password: configuration.password, timeout: configuration.commandTimeout)
  }
}
