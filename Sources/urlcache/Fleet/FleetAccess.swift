import Foundation
import Glibc
import RedisTier

/// The options of commands that connect to a fleet's Redis.
enum FleetAccess {
  static let passwordVariable = "URLCACHE_REDIS_PASSWORD"

  static let urlText = """
    URL is redis://[USER@]HOST[:PORT], unix://[USER@]/PATH/OF/SOCKET, or with all Sentinels and the name of the primary
    redis+sentinel://[USER@]HOST[:PORT],HOST[:PORT].../NAME. With rediss instead of redis, connections use TLS.
    """

  static let passwordText = """
    The password for Redis is read from the file of --password-file, or from the variable
    \(passwordVariable). It is not accepted on the command line, where other users can read it.
    """

  /// The variable of the environment with the secret of the fleet.
  static let secretVariable = "URLCACHE_FLEET_SECRET"

  static let secretText = """
    The secret of the fleet, which all its machines have, is read from the file of --secret-file, without a line feed at
    its end, or from the variable \(secretVariable).
    """

  /// The options of a command that joins a fleet as a process of one of its machines.
  static let machineOptions =
    [
      Option(
        name: "fleet", placeholder: "URL",
        help: "The Redis of the fleet that the directory belongs to, spelled as in the programs."),
      Option(name: "secret-file", placeholder: "FILE", help: "A file with the secret of the fleet."),
    ] + options

  static let options = [
    Option(name: "name", placeholder: "NAME", help: "The name of the fleet; 'default' by default."),
    Option(
      name: "password-file", placeholder: "FILE",
      help: "A file with the password for Redis in its first line."),
    Option(name: "sentinel-user", placeholder: "USER", help: "The user for Sentinels."),
    Option(
      name: "sentinel-password-file", placeholder: "FILE",
      help: "A file with the password for Sentinels in its first line."),
    Option(
      name: "redis-ca-file", placeholder: "FILE",
      help: "The certificates that are trusted for Redis and Sentinels, in PEM format."),
    Option(
      name: "redis-certificate", placeholder: "FILE",
      help: "The client certificate for Redis and Sentinels, in PEM format."),
    Option(name: "redis-key", placeholder: "FILE", help: "The key of the client certificate, without a password."),
    Option(
      name: "redis-server-name", placeholder: "NAME",
      help: "The name in the certificates of Redis and Sentinels; that of the host by default."),
  ]

  /// Creates the console of the fleet that a command line names.
  ///
  /// - Parameter url: The server.
  /// - Throws: `UsageError` for an unusable URL or name; `ToolError` if the password cannot be read.
  static func console(_ url: String, _ arguments: Arguments) throws -> FleetConsole {
    let configuration = try configuration(arguments)
    do throws(RedisTierError) {
      let console = try FleetConsole(url: url, configuration: configuration)
      guard !console.hasPasswordInURL else {
        throw RedisTierError(
          .invalidConfiguration,
          "other users can read a password on the command line; use --password-file or \(passwordVariable)")
      }
      return console
    } catch {
      // The reason is a part of a sentence, and never contains the URL.
      throw UsageError(error.reason)
    }
  }

  /// Returns the tier of ``machineOptions``; nil without `--fleet`. Asks Redis for the length of the fleet's leases.
  ///
  /// - Throws: `UsageError`; `ToolError` if a file cannot be read; `RedisTierError` if Redis cannot be reached, or
  ///   knows no fleet of this name.
  static func tier(_ arguments: Arguments) throws -> RedisTier? {
    guard let url = arguments.value("fleet") else {
      for option in machineOptions where arguments.has(option.name) {
        throw UsageError("--\(option.name) needs --fleet")
      }
      return nil
    }
    let console = try console(url, arguments)
    let secret = try secret(arguments)
    var configuration = try configuration(arguments)
    configuration.lease = try console.lease()
    // A run looks up on a new connection, and its user would rather wait than ask the origin.
    configuration.lookupTimeout = .seconds(2)
    do throws(RedisTierError) {
      return try RedisTier(url: url, secret: secret, configuration: configuration)
    } catch {
      throw UsageError(error.reason)
    }
  }

  /// The settings of ``options``.
  private static func configuration(_ arguments: Arguments) throws -> RedisTier.Configuration {
    var configuration = RedisTier.Configuration()
    configuration.fleetName = arguments.value("name") ?? configuration.fleetName
    if let password = try password(arguments) { configuration.password = { password } }
    configuration.sentinelUser = arguments.value("sentinel-user")
    if let path = arguments.value("sentinel-password-file") {
      let password = try firstLine(of: path)
      configuration.sentinelPassword = { password }
    }
    configuration.tls.certificateAuthorityFile = arguments.value("redis-ca-file")
    configuration.tls.serverName = arguments.value("redis-server-name")
    switch (arguments.value("redis-certificate"), arguments.value("redis-key")) {
    case (let certificate?, let key?):
      configuration.tls.clientCertificate = RedisTLS.ClientCertificate(certificateFile: certificate, keyFile: key)
    case (nil, nil): break
    case (nil, _?), (_?, nil): throw UsageError("--redis-certificate and --redis-key need each other")
    }
    return configuration
  }

  private static func secret(_ arguments: Arguments) throws -> Data {
    guard let path = arguments.value("secret-file") else {
      guard let text = ProcessInfo.processInfo.environment[secretVariable], !text.isEmpty else {
        throw UsageError("--fleet needs the secret of the fleet: --secret-file FILE, or \(secretVariable)")
      }
      return Data(text.utf8)
    }
    var secret: Data
    do {
      secret = try Data(contentsOf: URL(fileURLWithPath: path))
    } catch {
      throw ToolError("The secret cannot be read from \(path): \(error)")
    }
    if secret.last == UInt8(ascii: "\n") { secret.removeLast() }
    return secret
  }

  private static func password(_ arguments: Arguments) throws -> String? {
    guard let path = arguments.value("password-file") else {
      return ProcessInfo.processInfo.environment[passwordVariable].flatMap { $0.isEmpty ? nil : $0 }
    }
    return try firstLine(of: path)
  }

  private static func firstLine(of path: String) throws -> String {
    let text: String
    do {
      text = try String(contentsOfFile: path, encoding: .utf8)
    } catch {
      throw ToolError("The password cannot be read from \(path): \(error)")
    }
    let line = text.prefix { !$0.isNewline }
    guard !line.isEmpty else { throw ToolError("The first line of \(path) is empty, and has no password") }
    return String(line)
  }
}
