import Foundation
import LMDBURLCache

/// The demonstration's second process. It reads an order from a file and prints its result as JSON.
enum DemoReaderCommand: Command {
  /// The files to read, and the cache to read them through.
  struct Order: Codable {
    let directory: String
    let files: [DemoFiles.File]
    let readerCount: Int
    /// The time by which the first process has advanced its clock.
    let clockOffset: TimeInterval
  }

  struct Result: Codable {
    let measurements: Measurements
    let residentByteCount: Int
  }

  static let manual = CommandHelp(
    name: "demo-reader", summary: "The second process of the demonstration.", usage: ["ORDER"],
    discussion: "Reads the responses stored by 'urlcache demo'. For internal use.", operandName: "the order",
    operandCount: 1...1, isHidden: true)

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let order = try JSONDecoder().decode(
      Order.self, from: try Data(contentsOf: URL(fileURLWithPath: arguments.operands[0])))
    let clock = SteppedClock(offset: order.clockOffset)
    var options = LMDBURLCache.Options()
    options.clock = { clock.now }
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: order.directory), memoryCapacity: Demo.memoryCapacity,
      diskCapacity: Demo.diskCapacity, options: options)
    let readers = Readers(count: order.readerCount, files: order.files) {}
    let measurements = await readers.readAll(Array(order.files.indices), Readers.byLoad(cache))
    let result = Result(measurements: measurements, residentByteCount: ProcessMemory.residentByteCount)
    try Output.write(try JSONEncoder().encode(result))
    return .success
  }

  /// Runs this executable with an order.
  ///
  /// - Throws: `ToolError` if the process fails.
  static func runInProcess(_ order: Order, orderPath: String, _ directory: TemporaryDirectory) throws -> Result {
    try JSONEncoder().encode(order).write(to: URL(fileURLWithPath: orderPath))
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
    process.arguments = [manual.name, orderPath]
    let output = Pipe()
    process.standardOutput = output
    try process.run()
    let text = output.fileHandleForReading.readDataToEndOfFile()
    process.waitUntilExit()
    guard process.terminationReason == .exit, process.terminationStatus == 0 else {
      throw ToolError("The second process failed with \(process.terminationStatus)")
    }
    return try JSONDecoder().decode(Result.self, from: text)
  }
}
