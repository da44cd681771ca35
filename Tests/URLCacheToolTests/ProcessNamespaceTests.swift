import Foundation
import LMDBURLCache
import Testing

@Suite("A directory that a process of another PID namespace uses")
struct ProcessNamespaceTests {
  /// Runs the tool in a new PID namespace and returns its exit code and standard error.
  private static func runInNamespace(_ arguments: [String]) throws -> (status: Int32, errors: String) {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/unshare")
    process.arguments = ["--pid", "--fork", "--kill-child", Tool.executable.path] + arguments
    let errors = Pipe()
    process.standardInput = FileHandle.nullDevice
    process.standardOutput = FileHandle.nullDevice
    process.standardError = errors
    try process.run()
    let text = String(decoding: errors.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
    process.waitUntilExit()
    return (process.terminationStatus, text)
  }

  /// Whether this process may create PID namespaces, which not every user and container may.
  private static let canMakeNamespace: Bool = (try? runInNamespace(["--version"]).status == 0) ?? false

  @Test(
    "The tool fails with a remedy while a cache of another namespace is open, and works afterwards",
    .enabled(if: canMakeNamespace, "unshare --pid is not permitted here"))
  func refused() throws {
    let tool = try Tool()
    let directory = try tool.makeCache([Tool.Stored(url: "http://a.example/1")])
    try withExtendedLifetime(
      LMDBURLCache(directory: URL(fileURLWithPath: directory), memoryCapacity: 0, diskCapacity: 20 << 20)
    ) {
      for arguments in [["stats", directory], ["purge", directory, "--all"]] {
        let result = try Self.runInNamespace(arguments)
        #expect(result.status == 1)
        #expect(result.errors.contains("a process of another PID namespace"))
        #expect(result.errors.contains("in one PID namespace"))
      }
      #expect(try tool.run("stats", directory).status == 0)
    }
    #expect(try Self.runInNamespace(["stats", directory]).status == 0)
    #expect(try tool.run("stats", directory).status == 0)
  }
}
