import Foundation
import Testing

/// Runs the tool, which is in the directory of the test bundle.
enum FleetTool {
  struct Result {
    var status: Int32
    var output: String
    var errors: String

    func json() throws -> [String: Any] {
      try #require(try JSONSerialization.jsonObject(with: Data(output.utf8)) as? [String: Any])
    }
  }

  static func run(_ arguments: [String], environment: [String: String] = [:]) throws -> Result {
    let process = process(arguments, environment: environment)
    let (output, errors) = (Pipe(), Pipe())
    process.standardOutput = output
    process.standardError = errors
    try process.run()
    // Each output is shorter than what a pipe holds.
    process.waitUntilExit()
    func text(_ pipe: Pipe) throws -> String {
      String(decoding: try pipe.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    }
    return Result(status: process.terminationStatus, output: try text(output), errors: try text(errors))
  }

  /// Returns a process that is not running yet.
  private static func process(_ arguments: [String], environment: [String: String]) -> Process {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
      .deletingLastPathComponent().appendingPathComponent("urlcache")
    process.arguments = arguments
    process.environment = ProcessInfo.processInfo.environment.merging(environment) { $1 }
    process.standardInput = FileHandle.nullDevice
    return process
  }
}
