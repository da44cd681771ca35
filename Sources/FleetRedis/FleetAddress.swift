/// A fleet's name and server, and how to connect.
package struct FleetAddress: Sendable {
  /// The server.
  package let server: RedisServer
  /// The name of the fleet.
  package let name: String
  /// The beginning of all keys of the fleet.
  package let keyPrefix: String
  private let password: (@Sendable () throws -> String)?
  private let timeout: Duration

  /// - Parameters:
  ///   - password: Returns the password for Redis; nil for that of the URL.
  ///   - timeout: The maximum time for connecting, and for each command without its own.
  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  package init(
    url: String, name: String, password: (@Sendable () throws -> String)?, timeout: Duration
  ) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    server = try RedisServer(url: url)
    guard Self.isFleetName(name) else {
      throw invalid("the fleet's name is not made of 1 to 64 letters, digits, '-', '_' and '.'")
    }
    guard server.user == nil || server.password != nil || password != nil else {
      throw invalid("the Redis URL has a user without a password")
    }
    self.name = name
    keyPrefix = "lmuc:{\(name)}:"
    self.password = password
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

  /// Returns a key of the fleet.
  package func key(_ name: String, _ digits: [UInt8] = []) -> [UInt8] { Array((keyPrefix + name).utf8) + digits }

  /// Connects and logs in.
  ///
  /// - Parameter limit: As for `RedisConnection`; nil for that of the fleet.
  package func connect(timeout limit: Duration? = nil) throws(RedisTierError) -> RedisConnection {
    try RedisConnection(server, password: password, timeout: limit ?? timeout)
  }
}
