import Foundation
import Glibc
import LoopbackOrigin
import RedisTier
import Synchronization

/// The demonstration of a fleet: a redis-server, and three machines as processes with directories of their own.
final class FleetDemo {
  /// The lease of the machines: short, so that the demonstration is.
  static let lease = Duration.seconds(2)

  private let directory: TemporaryDirectory
  private let redis = Process()
  private let redisURL: String
  private let origin: LoopbackOrigin
  /// The edition of the origin's pages.
  private let edition = SharedNumber()
  /// The standard input of the shell that ends redis-server when this process ends, for any reason.
  private let redisInput = Pipe()
  private var machines: [FleetMachine] = []
  /// One sentence for each line that differs from what the demonstration promises.
  private var failures: [String] = []

  /// - Throws: `ToolError` if redis-server is not installed.
  init(_ directory: TemporaryDirectory) throws {
    self.directory = directory
    redisURL = "unix://" + directory.path(of: "redis.sock")
    origin = try LoopbackOrigin { [edition] request in
      // As slow as a real origin, so that requests of several machines meet.
      usleep(200_000)
      let fields = [("Cache-Control", "public, max-age=600"), ("ETag", "\"\(edition.value)\"")]
      return request["If-None-Match"] == fields[1].1
        ? Reply(304, fields) : Reply(200, fields, "edition \(edition.value)")
    }
    let paths = ["/usr/bin/redis-server", "/usr/local/bin/redis-server"]
    guard let program = paths.first(where: { access($0, X_OK) == 0 }) else {
      throw ToolError("redis-server is not installed. Install it with: apt-get install redis-server")
    }
    redis.executableURL = URL(fileURLWithPath: "/bin/sh")
    redis.arguments = [
      "-c", "\"$@\" < /dev/null & read -r line; kill -KILL $!", "sh", program, "--port", "0", "--unixsocket",
      directory.path(of: "redis.sock"), "--dir", directory.path(of: ""), "--save", "", "--daemonize", "no",
    ]
    redis.standardInput = redisInput
    redis.standardOutput = FileHandle.nullDevice
  }

  /// Runs all phases. Returns the lines that were not as promised.
  func run() throws -> [String] {
    defer { end() }
    try redis.run()
    for number in 1...3 {
      machines.append(try FleetMachine(directory: directory.path(of: "machine\(number)"), redisURL: redisURL))
    }
    let console = try FleetConsole(url: redisURL)
    try waitForMachines(console)
    try showSharedHits()
    try showOneFetch()
    try showPurge(console)
    return failures
  }

  private func end() {
    for machine in machines { machine.end() }
    if redis.isRunning {
      // The shell reads the end of its input.
      try? redisInput.fileHandleForWriting.close()  // A pipe that cannot be closed is closed already.
      redis.waitUntilExit()
    }
    origin.stop()
  }

  // MARK: Phases

  /// Waits until three machines are registered, and no lease of an earlier epoch can be valid.
  private func waitForMachines(_ console: FleetConsole) throws {
    let deadline = ContinuousClock.now + .seconds(20)
    while true {
      // redis-server does not accept connections at once, so errors count until the deadline only as "not yet".
      if let status = try? console.status(), status.machines.count == 3, status.isMature { return }
      guard ContinuousClock.now < deadline else { throw ToolError("The machines could not join the fleet") }
      usleep(20_000)
    }
  }

  private func showSharedHits() throws {
    try say("What one machine has fetched, the others find:")
    let url = origin.url("/page").absoluteString
    try show(1, try machines[0].ask(url), expecting: "the origin")
    // A response is in Redis some milliseconds after its machine has received it. A request in between waits for it.
    for number in 2...3 { try show(number, try machines[number - 1].ask(url), expecting: "Redis") }
    try show(3, try machines[2].ask(url), expecting: "its own store")
    try check("\(Format.count(origin.requestCount, "request")) at the origin", origin.requestCount == 1)
  }

  private func showOneFetch() throws {
    try say("Three machines that miss a URL at once fetch it once:")
    let count = origin.requestCount
    let url = origin.url("/news").absoluteString
    for machine in machines { try machine.send(url) }
    for (index, machine) in machines.enumerated() {
      try show(index + 1, try machine.receive(), expecting: "edition 1")
    }
    try check("\(Format.count(origin.requestCount - count, "request")) at the origin", origin.requestCount == count + 1)
  }

  private func showPurge(_ console: FleetConsole) throws {
    try say("The origin has a second edition, and a purge reaches all machines:")
    let url = origin.url("/page").absoluteString
    edition.increment()
    try show(1, "purge: " + (try machines[0].ask("purge " + url)), expecting: "3 machines confirmed")
    for number in 1...3 { try show(number, try machines[number - 1].ask(url), expecting: "edition 2") }

    try say("A third edition. A purge while machine 3 is suspended waits until its lease has ended, once:")
    machines[2].suspend()
    edition.increment()
    try show(1, "purge: " + (try machines[0].ask("purge " + url)), expecting: "2 machines confirmed, 1 lease ended")
    try show(1, "purge: " + (try machines[0].ask("purge " + url)), expecting: "2 machines confirmed (")
    for number in 1...2 { try show(number, try machines[number - 1].ask(url), expecting: "edition 3") }

    try say("Machine 3 resumes, and does not serve the second edition that it has stored:")
    machines[2].resume()
    try show(3, try machines[2].ask(url), expecting: "edition 3")
    try waitForMachines(console)
    try say("The fleet at the end:")
    let status = try console.status()
    try say(
      FleetCommand.text(status, console, "default").split(separator: "\n").map { "  \($0)" }.joined(separator: "\n"))
  }

  // MARK: Output

  private func say(_ text: String) throws { try Output.write(text + "\n") }

  private func show(_ machine: Int, _ text: String, expecting part: String) throws {
    try say("  machine \(machine): \(text)")
    if !text.contains(part) { failures.append("machine \(machine) was expected to say '\(part)'") }
  }

  private func check(_ text: String, _ isTrue: Bool) throws {
    try say("  \(text)")
    if !isTrue { failures.append("\(text) were not expected") }
  }
}

/// A number that several threads read.
private final class SharedNumber: Sendable {
  private let number = Atomic(1)
  var value: Int { number.load(ordering: .sequentiallyConsistent) }
  func increment() { number.add(1, ordering: .sequentiallyConsistent) }
}
