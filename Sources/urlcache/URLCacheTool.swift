import Foundation
import Glibc
import ResponseStore

/// The command-line tool: runs a subcommand, and converts errors into a line and an exit code.
@main
enum URLCacheTool {
  static let version = "0.1.0"

  static var commands: [any Command.Type] {
    [
      GetCommand.self, ListCommand.self, ShowCommand.self, CatCommand.self, ExplainCommand.self, StatsCommand.self,
      LogCommand.self, TopCommand.self,
      PurgeCommand.self, PurgesCommand.self, FleetCommand.self, WarmCommand.self, ExportCommand.self,
      VerifyCommand.self, DemoCommand.self,
      DemoReaderCommand.self, FleetMachineCommand.self, GenerateCommand.self,
    ]
  }

  static func main() {
    reserveStandardDescriptors()
    // Writing to a closed pipe then returns an error, which the writer handles.
    signal(SIGPIPE, SIG_IGN)
    let arguments: [String]
    do {
      try RuntimeRequirements.check()
      arguments = try ProcessArguments.read()
    } catch {
      exit(report(error, command: nil).rawValue)
    }
    Task.detached { exit(await run(arguments).rawValue) }
    // Without this thread, `/proc/self` would be that of a process that has ended.
    while true { pause() }
  }

  private static func run(_ arguments: [String]) async -> ExitCode {
    guard let name = arguments.first else {
      Output.error(CommandHelp.overview(of: commands))
      return .usage
    }
    do {
      switch name {
      case "-h", "--help", "help":
        guard arguments.count > 1, let command = command(named: arguments[1]) else {
          if arguments.count > 1 { throw UsageError("there is no command '\(arguments[1])'") }
          try Output.write(CommandHelp.overview(of: commands))
          return .success
        }
        try Output.write(command.manual.text)
      case "--version":
        try Output.write("urlcache \(version)\n")
      default:
        guard let command = command(named: name) else { throw UsageError("there is no command '\(name)'") }
        return await run(command, Array(arguments.dropFirst()))
      }
      return .success
    } catch {
      return report(error, command: nil)
    }
  }

  private static func run(_ command: any Command.Type, _ arguments: [String]) async -> ExitCode {
    do {
      let parsed = try Arguments(arguments, for: command.manual)
      if parsed.has("help") {
        try Output.write(command.manual.text)
        return .success
      }
      if parsed.has(DirectoryOwner.option.name) {
        guard let directory = parsed.operands.first else { throw UsageError("--as-owner needs a directory") }
        try DirectoryOwner.become(ownerOf: directory)
      }
      return try await command.run(parsed)
    } catch {
      return report(error, command: command.manual.name)
    }
  }

  private static func command(named name: String) -> (any Command.Type)? {
    commands.first { $0.manual.name == name }
  }

  private static func report(_ error: any Error, command: String?) -> ExitCode {
    let place = ["urlcache", command].compactMap(\.self).joined(separator: " ")
    switch error {
    case is Output.BrokenPipe:
      // The reader of standard output has enough.
      return .success
    case let error as UsageError:
      Output.error("\(place): \(Format.visible(error.message))\nTry '\(place) --help'.\n")
      return .usage
    default:
      let isOfOtherUser = (error as? StoreError)?.code == .untrustedDirectory
      let hint = isOfOtherUser && command != nil && geteuid() == 0 ? " As root, --as-owner opens it." : ""
      Output.error("\(place): \(Format.visible("\(error)"))\(hint)\n")
      return .failure
    }
  }

  /// Opens `/dev/null` for closed standard descriptors, so that no file of the store gets their numbers.
  ///
  /// Printed text would otherwise be written into that file. The descriptors are read-only, so that printing still
  /// fails.
  private static func reserveStandardDescriptors() {
    for descriptor in CInt(0)...2 where fcntl(descriptor, F_GETFD) == -1 {
      _ = open("/dev/null", O_RDONLY)
    }
  }
}

/// A subcommand: its manual and its action.
protocol Command {
  static var manual: CommandHelp { get }
  static func run(_ arguments: Arguments) async throws -> ExitCode
}

/// The exit code of the tool.
enum ExitCode: Int32 {
  case success = 0
  case failure = 1
  case usage = 2
}

/// An invalid command line.
struct UsageError: Error {
  let message: String
  init(_ message: String) { self.message = message }
}

/// A failure, described in a sentence.
struct ToolError: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}
