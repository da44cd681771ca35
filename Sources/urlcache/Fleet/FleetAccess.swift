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
    var password: (@Sendable () throws -> String)?
    if let text = try Self.password(arguments) { password = { text } }
    do throws(RedisTierError) {
      let console = try FleetConsole(
        url: url, fleetName: arguments.value("name") ?? "default", password: password)
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
