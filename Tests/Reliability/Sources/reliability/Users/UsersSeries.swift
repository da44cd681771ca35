import Foundation
import Glibc
import StoreContract
import Synchronization

/// Runs users with credentials of every kind, who send requests over all interfaces, cancel, time out and check their
/// responses.
struct UsersSeries {
  let setting: RunConfiguration
  let directory: String

  func run(seconds: Double) -> Bool {
    var isGood = true
    for scenario in UserScenario.all where setting.only == nil || setting.only == scenario.name {
      makeDirectory(directory)
      isGood = run(scenario, seconds: seconds) && isGood
    }
    removeTree(directory)
    return isGood
  }

  private func run(_ scenario: UserScenario, seconds: Double) -> Bool {
    let origin: UserOrigin
    let ledgerPath = directory + "/ledger"
    do { origin = try UserOrigin(Self.ledger(path: ledgerPath)) } catch { fail("no origin: \(error)") }
    defer { origin.stop() }
    // Foundation stores cookies in the home directory.
    let child = Child.start(
      ["users", scenario.name, directory, "\(Int(seconds * 1000))", "\(setting.seed)", "\(origin.port)", ledgerPath],
      outputPath: directory + "/process",
      environment: ["HOME": directory, "TSAN_OPTIONS": "die_after_fork=0 exitcode=0"])
    let end = child.wait(seconds: seconds + 120)
    let output = child.output
    let lines = output.split(separator: "\n")
    let prefix = "users: seed \(setting.seed), scenario \(scenario.name):"
    for line in lines where line.hasPrefix("violation ") { say("\(prefix) \(line)") }
    for violation in origin.violations.prefix(5) { say("\(prefix) violation, found by the origin: \(violation)") }
    let hasRaces = output.contains("WARNING: ThreadSanitizer")
    let numbers =
      lines.last { $0.hasPrefix("numbers ") }?.split(separator: " ").dropFirst().compactMap { Int($0) } ?? []
    // A scenario without requests shows nothing.
    let hasWorked = numbers.first ?? 0 > 0 && origin.requestCount > 0
    let isGood = end == .exited(0) && origin.violations.isEmpty && !hasRaces && hasWorked
    if hasRaces || end != .exited(0) && end != .exited(1) || setting.isVerbose {
      say("\(prefix) the process \(end): \(output.prefix(20_000))")
    }
    let found = zip(UserChecks.Violation.allCases, numbers.dropFirst(2)).filter { $0.1 > 0 }
    var outcomes = found.map { "\($0.1) times: \($0.0.rawValue)" }
    if let comparison = lines.last(where: { $0.hasPrefix("relative ") }) { outcomes.append(String(comparison)) }
    if !origin.violations.isEmpty {
      outcomes.append("\(origin.violations.count) requests with credentials that must not be sent")
    }
    if end != .exited(0) && end != .exited(1) { outcomes.append("the process \(end)") }
    setting.report(
      "users: \(scenario.name)",
      "\(Int(seconds)) s (seed \(setting.seed)): \(numbers.first ?? 0) requests, "
        + "\(origin.requestCount) at the origin, "
        + "\(numbers.count > 1 ? numbers[1] : 0) timed relative to a session without a cache: "
        + (isGood ? "OK" : "FAILED") + (outcomes.isEmpty ? "" : ", " + outcomes.joined(separator: ", ")))
    return isGood
  }

  private static func ledger(path: String) -> Ledger {
    let ledger = Ledger(path: path, .init(slotCount: User.all.count))
    ledger.isEvicting = true
    return ledger
  }

  private final class Counters: Sendable {
    let running: Atomic<Int>
    let rounds = Atomic<Int>(0)

    init(running: Int) {
      self.running = Atomic(running)
    }
  }

  /// Runs the child process of a scenario and exits.
  static func work(
    _ scenario: UserScenario, directory: String, seconds: Double, seed: UInt64, port: Int, ledgerPath: String
  ) throws -> Never {
    alarm(UInt32(seconds) + 110)
    let checks = UserChecks(ledger(path: ledgerPath))
    let clients = try UserClients(directory: directory) { say("log: \($0)") }
    let rounds = UserRounds(clients: clients, checks: checks, port: port)
    let deadline = now() + seconds
    let counters = Counters(running: scenario.width)
    for worker in 0..<scenario.width {
      Task.detached {
        var random = SeededRandom(seed &* 31 &+ UInt64(worker))
        while now() < deadline {
          let number = counters.rounds.wrappingAdd(1, ordering: .relaxed).newValue
          await rounds.run(scenario.rounds[random.below(scenario.rounds.count)], number: number, &random)
        }
        counters.running.subtract(1, ordering: .releasing)
      }
    }
    while counters.running.load(ordering: .acquiring) > 0 {
      usleep(1000)
      if now() > deadline + 30 {
        for text in checks.pending { say("violation at the end, a request did not end: \(text)") }
        exit(4)
      }
    }
    if let comparison = checks.comparison { say(comparison) }
    say("numbers \(checks.numbers.map { "\($0)" }.joined(separator: " "))")
    exit(checks.isGood ? 0 : 1)
  }
}
