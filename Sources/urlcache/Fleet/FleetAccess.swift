import Foundation
import Glibc
import RedisTier

/// The options of commands that connect to a fleet's Redis.
enum FleetAccess {
  /// The variable of the environment with the password.
  static let passwordVariable = "URLCACHE_REDIS_PASSWORD"

  static let urlForms = "redis://[USER@]HOST[:PORT] or unix://[USER@]/PATH/OF/SOCKET"

  static let passwordText = """
    The password for Redis is read from the file of --password-file, or from the variable
    \(passwordVariable). It is not accepted on the command line, where other users can read it.
    hiredis has no TLS; use a local TLS proxy with a Unix socket.
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
  ]

  /// Creates the console of the fleet that a command line names.
  ///
  /// - Parameter url: The server.
  /// - Throws: `UsageError` for an unusable URL or name; `ToolError` if the password cannot be read.
  static func console(_ url: String, _ arguments: Arguments) throws -> FleetConsole {
    let password = try passwordReader(arguments)
    do throws(RedisTierError) {
      let console = try FleetConsole(url: url, fleetName: name(arguments), password: password)
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
    var configuration = RedisTier.Configuration()
    configuration.fleetName = name(arguments)
    configuration.password = try passwordReader(arguments)
    configuration.lease = try console.lease()
    do throws(RedisTierError) {
      return try RedisTier(url: url, secret: secret, configuration: configuration)
    } catch {
      throw UsageError(error.reason)
    }
  }

  private static func name(_ arguments: Arguments) -> String { arguments.value("name") ?? "default" }

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

  private static func passwordReader(_ arguments: Arguments) throws -> (@Sendable () throws -> String)? {
    guard let text = try password(arguments) else { return nil }
    return { text }
  }

  private static func password(_ arguments: Arguments) throws -> String? {
    guard let path = arguments.value("password-file") else {
      return ProcessInfo.processInfo.environment[passwordVariable].flatMap { $0.isEmpty ? nil : $0 }
    }
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
