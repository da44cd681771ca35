import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import RedisTier

/// A machine of the fleet's demonstration: a process with a cache directory of its own, which reads orders from
/// standard input.
enum FleetMachineCommand: Command {
  static let manual = CommandHelp(
    name: "demo-machine", summary: "A machine of the demonstration of a fleet.", usage: ["DIR REDIS-URL"],
    discussion: """
      Loads each URL of standard input, and prints a line for it. After 'purge ' the URL is purged on all machines.
      For internal use.
      """,
    operandName: "the directory or the URL", operandCount: 2...2, isHidden: true)

  /// The secret of the demonstration's fleet, which is on this machine only.
  private static let secret = Data("the secret of the demonstration!".utf8)

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    var configuration = RedisTier.Configuration()
    configuration.lease = FleetDemo.lease
    // A demonstration on a busy machine shows the same.
    configuration.lookupTimeout = .seconds(2)
    var options = LMDBURLCache.Options()
    options.fleet = try RedisTier(url: arguments.operands[1], secret: secret, configuration: configuration)
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: arguments.operands[0]), memoryCapacity: 1 << 20, diskCapacity: 16 << 20,
      options: options)
    cache.minCacheInterval = 0
    while let line = readLine() {
      do {
        try Output.write(try await carryOut(line, cache) + "\n")
      } catch let error as Output.BrokenPipe {
        throw error
      } catch {
        try Output.write("failed: \(error)\n")
      }
    }
    return .success
  }

  private static func carryOut(_ order: String, _ cache: LMDBURLCache) async throws -> String {
    let start = ContinuousClock.now
    func duration() -> String { Format.latency(ContinuousClock.now - start) }
    if order.hasPrefix("purge "), let url = URL(string: String(order.dropFirst(6))) {
      let result = try await cache.purge(.url(url)) ?? FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
      let ended = result.expiredLeaseCount > 0 ? ", \(Format.count(result.expiredLeaseCount, "lease")) ended" : ""
      return "\(Format.count(result.confirmedCount, "machine")) confirmed\(ended) (\(duration()))"
    }
    guard let url = URL(string: order) else { throw ToolError("'\(order)' is not a URL") }
    let result = try await cache.load(URLRequest(url: url))
    let source =
      result.reason.id == "fleet" ? "another machine's response from Redis" : words(result.source)
    return "\(String(decoding: result.data, as: UTF8.self)), \(source) (\(duration()))"
  }

  private static func words(_ source: ResponseSource) -> String {
    switch source {
    case .hit: "its own store"
    case .revalidated: "its own store after a validation"
    case .miss: "the origin"
    case .coalesced: "a fetch of this process"
    case .stale, .staleOnError: "its own store, stale"
    case .unavailable: "nothing"
    }
  }
}

/// A running machine of the demonstration.
final class FleetMachine {
  private let process = Process()
  private let input = Pipe()
  private let output = Pipe()
  private var received: [UInt8] = []

  init(directory: String, redisURL: String) throws {
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
    process.arguments = [FleetMachineCommand.manual.name, directory, redisURL]
    process.standardInput = input
    process.standardOutput = output
    try process.run()
  }

  func send(_ order: String) throws {
    try input.fileHandleForWriting.write(contentsOf: Data((order + "\n").utf8))
  }

  /// Waits for the line that the machine prints for an order.
  func receive() throws -> String {
    while true {
      if let end = received.firstIndex(of: UInt8(ascii: "\n")) {
        defer { received.removeSubrange(...end) }
        return String(decoding: received[..<end], as: UTF8.self)
      }
      let bytes = output.fileHandleForReading.availableData
      guard !bytes.isEmpty else { throw ToolError("A machine of the demonstration has ended") }
      received += bytes
    }
  }

  func ask(_ order: String) throws -> String {
    try send(order)
    return try receive()
  }

  func suspend() { kill(process.processIdentifier, SIGSTOP) }
  func resume() { kill(process.processIdentifier, SIGCONT) }

  /// Ends the process, also a suspended one.
  func end() {
    kill(process.processIdentifier, SIGKILL)
    process.waitUntilExit()
  }
}
