import Glibc
import StoreContract

/// Runs the contract test for a time: random operations in one process and in several, with other seeds each time.
struct ContractSeries {
  let setting: RunConfiguration
  let directory: String

  private enum Scenario: String, CaseIterable {
    case roomy, evicting, faulty, threads, processes
    case evictingProcesses = "evicting processes"

    var configuration: ContractRun.Configuration? {
      switch self {
      case .roomy: .init()
      case .evicting: .init(isEvicting: true)
      case .faulty: .init(hasFaults: true)
      case .threads: .init(hasThreads: true)
      case .processes, .evictingProcesses: nil
      }
    }
  }

  func run(seconds: Double) -> Bool {
    var isGood = true
    for scenario in Scenario.allCases where setting.only == nil || setting.only == scenario.rawValue {
      makeDirectory(directory)
      let child = Child.start(
        // In memory, where syncs cost nothing.
        ["contract", ContractTest.newDirectory(), scenario.rawValue, "\(Int(seconds * 1000))", "\(setting.seed)"],
        outputPath: directory + "/log")
      let end = child.wait(seconds: seconds + 120)
      let output = child.output
      let isRight = end == .exited(0)
      if !isRight { say("contract: \(scenario.rawValue): the process \(end)\n\(output)") }
      let line = output.split(separator: "\n").last.map(String.init) ?? ""
      setting.report(
        "contract: \(scenario.rawValue)",
        "\(Int(seconds)) s (seed \(setting.seed)): " + (isRight ? "\(line): OK" : "FAILED, see above"))
      isGood = isGood && isRight
    }
    removeTree(directory)
    return isGood
  }

  /// Runs the child process of a scenario.
  static func work(_ directory: String, scenario name: String, seconds: Double, seed: UInt64) -> Never {
    guard let scenario = Scenario(rawValue: name) else { fail("there is no scenario \(name)") }
    guard let configuration = scenario.configuration else {
      let test = ContractProcesses(
        seed: seed, isEvicting: scenario == .evictingProcesses, directory: directory)
      let outcome = test.run(seconds: seconds)
      if let violation = outcome.violation { fail("seed \(seed): \(violation)") }
      say("\(outcome.killCount) kills, \(outcome.checkCount) checks, \(outcome.foundCount) responses compared")
      exit(outcome.foundCount > 0 ? 0 : 1)
    }
    let end = now() + seconds
    var count: UInt64 = 0
    repeat {
      do throws(ContractTest.Failure) {
        try ContractTest.run(seed: seed &+ count, operationCount: 1000, configuration, directory: directory)
      } catch {
        fail("seed \(seed &+ count): \(error)")
      }
      count += 1
    } while now() < end
    say("\(count) runs of 1,000 operations")
    exit(0)
  }
}
